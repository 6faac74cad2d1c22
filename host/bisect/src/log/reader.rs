//! From the bytes of a log to the answers in it.

use std::collections::{HashMap, VecDeque};

use hotseam_target::{Conformance, Counts, Handoff, Outcome, Suspicion, Verdict};
use serde_json::Value;
use thiserror::Error;

use super::line::{Answer, Begun, FORMAT, Failed, Header, Line};

/// Crashes in a row after which a run is not tried again.
const MAX_CRASHES: usize = 2;

/// A log cannot be used.
#[derive(Debug, Error)]
pub enum LogError {
    /// Nothing usable is in it.
    #[error(
        "the log has no header line: the search ended before its first run. Start it again with `hotseam bisect run`"
    )]
    Empty,
    /// A line other than the last is damaged.
    #[error("line {line} of the log is damaged: {message}. Restore the file, or cut it off before that line")]
    Damaged {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// Written by another version.
    #[error("the log has format {found}, expected {FORMAT}: use the version that wrote it")]
    Format {
        /// The format found.
        found: u64,
    },
    /// There is no such run.
    #[error("the log has no run {number} to undo; it has {known}")]
    NoSuchRun {
        /// The run asked for.
        number: usize,
        /// The runs there are.
        known: String,
    },
}

/// A log as it was read.
#[derive(Debug, Clone)]
pub struct Log {
    /// The first line.
    pub header: Header,
    /// The lines after it.
    pub lines: Vec<Line>,
    /// Bytes of the file that hold whole lines; what follows is the torn rest of a line.
    pub whole: usize,
}

impl Log {
    /// Reads a log. A torn last line is left out.
    ///
    /// # Errors
    /// [`LogError`], with the line.
    pub fn read(bytes: &[u8]) -> Result<Self, LogError> {
        let mut lines = Vec::new();
        let mut whole = 0;
        let mut number = 0;
        while let Some(length) = bytes[whole..].iter().position(|byte| *byte == b'\n') {
            number += 1;
            let text = &bytes[whole..whole + length];
            let line = read_line(text).map_err(|error| match format_of(text) {
                Some(found) if number == 1 && found != u64::from(FORMAT) => LogError::Format { found },
                _ => LogError::Damaged { line: number, message: error.to_string() },
            });
            // A crash of the machine may leave garbage as the last line, if its end was on disk before its middle.
            let last = whole + length + 1 == bytes.len();
            match line {
                Err(LogError::Damaged { .. }) if last && number > 1 => break,
                line => lines.push(line?),
            }
            whole += length + 1;
        }
        let mut lines = lines.into_iter();
        match lines.next() {
            Some(Line::Header(header)) if header.format == FORMAT => {
                Ok(Self { header: *header, lines: lines.collect(), whole })
            }
            Some(Line::Header(header)) => Err(LogError::Format { found: u64::from(header.format) }),
            Some(_) => Err(LogError::Damaged { line: 1, message: "expected the header".to_owned() }),
            None => Err(LogError::Empty),
        }
    }

    /// The bounds of the search, as of the last resumption.
    pub fn options(&self) -> &serde_json::Value {
        let resumed = self.lines.iter().rev().find_map(|line| match line {
            Line::Resume { options } => Some(options),
            _ => None,
        });
        resumed.unwrap_or(&self.header.options)
    }

    /// The verdict, if the search came to its end and nothing was undone since.
    pub fn verdict(&self) -> Option<&str> {
        match self.lines.iter().rev().find(|line| !matches!(line, Line::Note { .. }))? {
            Line::Done { verdict } => Some(verdict),
            _ => None,
        }
    }

    /// The line that drops the answer of run `number`, or of the last one.
    ///
    /// # Errors
    /// [`LogError::NoSuchRun`].
    pub fn undo(&self, number: Option<usize>) -> Result<Line, LogError> {
        let standing = self.standing();
        let found = match number {
            Some(number) => standing.iter().copied().find(|known| *known == number),
            None => standing.last().copied(),
        };
        found.map(|number| Line::Undo { number }).ok_or_else(|| {
            let mut sorted = standing.clone();
            sorted.sort_unstable();
            sorted.dedup();
            LogError::NoSuchRun {
                number: number.unwrap_or(0),
                known: match sorted.as_slice() {
                    [] => "none".to_owned(),
                    runs => crate::report::ranges(runs),
                },
            }
        })
    }

    /// Runs with an answer that was not undone, in the order they ended.
    fn standing(&self) -> Vec<usize> {
        let mut standing: Vec<usize> = Vec::new();
        for line in &self.lines {
            match line {
                Line::End { number, .. } => standing.push(*number),
                Line::Undo { number } => {
                    if let Some(at) = standing.iter().rposition(|known| known == number) {
                        standing.remove(at);
                    }
                }
                _ => {}
            }
        }
        standing
    }

    /// The answers in it. For a search that goes on, failures that another try may mend are left out; a `replay` has
    /// them too.
    pub fn recorded(&self, replay: bool) -> Recorded {
        let mut recorded = Recorded::default();
        // By key, the answers with the number of their run; undo takes one out.
        let mut answers: HashMap<String, Vec<(usize, Answer)>> = HashMap::new();
        let mut open: HashMap<usize, Begun> = HashMap::new();
        let mut crashes: HashMap<String, usize> = HashMap::new();
        let mut begun: HashMap<usize, String> = HashMap::new();
        for line in &self.lines {
            match line {
                Line::Start(start) => {
                    if let Some(lost) = open.insert(start.number, start.clone()) {
                        *crashes.entry(lost.key).or_default() += 1;
                    }
                    begun.insert(start.number, start.key.clone());
                }
                Line::End { number, answer, not_run } => {
                    let Some(start) = open.remove(number) else { continue };
                    crashes.remove(&start.key);
                    answers.entry(start.key).or_default().push((*number, answer.clone()));
                    recorded.keep_not_run(not_run.as_deref());
                }
                Line::Undo { number } => {
                    let Some(key) = begun.get(number) else { continue };
                    if let Some(list) = answers.get_mut(key)
                        && let Some(at) = list.iter().rposition(|(known, _)| known == number)
                    {
                        list.remove(at);
                    }
                }
                Line::Digest { arm, digest } => {
                    recorded.digests.insert(arm.clone(), digest.clone());
                }
                Line::Launch { id } => recorded.launches.push_back(*id),
                Line::Conformance { variant, result } => {
                    recorded.conformance.insert(variant.clone(), result.clone());
                }
                Line::Handoff { arm, result } => {
                    recorded.handoffs.insert(arm.clone(), result.clone());
                }
                Line::Suspicions { result } => recorded.suspicions = Some(result.clone()),
                Line::Resume { .. } | Line::Header(_) => {
                    for (_, lost) in open.drain() {
                        *crashes.entry(lost.key).or_default() += 1;
                    }
                }
                Line::Note { .. } | Line::Bar { .. } | Line::Done { .. } => {}
            }
        }
        for (_, lost) in open.drain() {
            *crashes.entry(lost.key).or_default() += 1;
        }
        let launches = answers.values().flatten().filter_map(|(_, answer)| match answer {
            Answer::Outcome(outcome) => Some(outcome.launch),
            Answer::Failed(_) => None,
        });
        recorded.last_launch = launches.chain(recorded.launches.iter().copied()).max().unwrap_or(0);
        for (key, list) in answers {
            // A failure that another try mended is no answer any more.
            let last = list.len().saturating_sub(1);
            let stands = |index: usize, answer: &Answer| match answer {
                Answer::Outcome(_) => true,
                Answer::Failed(failed) => failed.stands() || (replay && index == last),
            };
            let kept = list.into_iter().map(|(_, answer)| answer).enumerate();
            let kept = kept.filter(|(index, answer)| stands(*index, answer)).map(|(_, answer)| answer);
            recorded.answers.insert(key, kept.collect());
        }
        if !replay {
            let (often, once): (Vec<_>, Vec<_>) =
                crashes.into_iter().partition(|(_, times)| *times >= MAX_CRASHES);
            recorded.crashed = often.into_iter().map(|(key, _)| key).collect();
            recorded.crashed_once = once.into_iter().map(|(key, _)| key).collect();
            recorded.conformance.retain(|_, result| result.is_ok());
            recorded.handoffs.retain(|_, result| result.is_ok());
            recorded.suspicions = recorded.suspicions.filter(Result::is_ok);
            recorded.digests.retain(|_, digest| digest.as_ref().err().is_none_or(Failed::stands));
        }
        recorded
    }
}

/// A line, with every control character but line ends and tabs replaced: reports print what it says to terminals.
fn read_line(text: &[u8]) -> serde_json::Result<Line> {
    fn clean(value: &mut Value) {
        match value {
            Value::String(text) if text.contains(unprintable) => {
                *text = text.replace(unprintable, "\u{fffd}")
            }
            Value::Array(items) => items.iter_mut().for_each(clean),
            Value::Object(fields) => fields.values_mut().for_each(clean),
            _ => {}
        }
    }
    let mut value: Value = serde_json::from_slice(text)?;
    clean(&mut value);
    serde_json::from_value(value)
}

/// Control characters, and those that turn the direction of writing.
fn unprintable(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn format_of(text: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Value>(text).ok()?.get("format")?.as_u64()
}

/// Answers of earlier runs.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    pub(super) answers: HashMap<String, VecDeque<Answer>>,
    /// Keys of runs that the program ended in twice, each time it was tried.
    crashed: Vec<String>,
    crashed_once: Vec<String>,
    pub(super) digests: HashMap<Vec<usize>, Result<String, Failed>>,
    pub(super) launches: VecDeque<u64>,
    pub(super) last_launch: u64,
    pub(super) not_run: Option<Vec<usize>>,
    pub(super) conformance: HashMap<String, Result<Conformance, Failed>>,
    pub(super) suspicions: Option<Result<Vec<Suspicion>, Failed>>,
    pub(super) handoffs: HashMap<Vec<usize>, Result<Option<Handoff>, Failed>>,
}

/// What the log says to a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Taken {
    /// The answer.
    Answer(Answer),
    /// The program ended in this run twice.
    Crashed,
}

impl Recorded {
    /// Runs whose answers are there.
    pub fn runs(&self) -> usize {
        self.answers.values().map(VecDeque::len).sum()
    }

    /// What is known about the question `key`; every answer is given once.
    pub fn take(&mut self, key: &str) -> Option<Taken> {
        if let Some(answer) = self.answers.get_mut(key).and_then(VecDeque::pop_front) {
            return Some(Taken::Answer(answer));
        }
        let at = self.crashed.iter().position(|crashed| crashed == key)?;
        self.crashed.remove(at);
        Some(Taken::Crashed)
    }

    /// Runs that will be skipped, because the program ended in them twice.
    pub fn crashed(&self) -> usize {
        self.crashed.len()
    }

    pub(super) fn crashed_once(&self, key: &str) -> bool {
        self.crashed_once.iter().any(|known| known == key)
    }

    pub(super) fn last_launch(&self) -> u64 {
        self.last_launch
    }

    /// Keeps the first of several answers: it is the one that the search went by.
    pub(super) fn keep_not_run(&mut self, atoms: Option<&[usize]>) {
        if self.not_run.is_none() {
            self.not_run = atoms.map(<[usize]>::to_vec);
        }
    }
}

/// What stands for a run that took the program down each time.
pub(super) fn crashed_twice() -> Outcome {
    Outcome {
        verdict: Verdict::Skip,
        signature: "crash".to_owned(),
        metric: 0.0,
        summary: "crashed the host twice".to_owned(),
        detail: "the program ended in this run each time it was tried".to_owned(),
        seconds: 0.0,
        counts: Counts::default(),
        launch: 0,
        grid: Vec::new(),
    }
}
