//! Times of the ops of variants, on the inputs of the cases.

use crate::runner::{Case, call};
use crate::{Op, Subject};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Calls before the first that is timed.
const WARM: usize = 2;
/// Calls of a subject, at least, whatever the time.
const LEAST: usize = 5;

/// Times of one subject in one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// The op.
    pub op: Op,
    /// What was run: phase, sequences, shapes.
    pub case: String,
    /// Rows of the call.
    pub rows: usize,
    /// Which subject, in the order they were given.
    pub subject: usize,
    /// Calls that were timed.
    pub calls: usize,
    /// Median duration of a call in nanoseconds.
    pub median_ns: u64,
    /// 10th percentile.
    pub low_ns: u64,
    /// 90th percentile.
    pub high_ns: u64,
}

/// What is timed, and the results.
pub(crate) struct Bench<'a> {
    others: &'a [Subject<'a>],
    op: Option<Op>,
    time: Duration,
    timings: Vec<Timing>,
    failure: Option<String>,
}

/// Times every case of every op that the first subject serves, or of `op`, for `time` each. Calls of the subjects
/// alternate; a subject that does not serve the op, or has another layout, is left out. `kv_transport` has no cases that
/// could be timed: it works on its own time.
///
/// # Errors
/// The variant, op and case of the first call that failed.
pub fn bench(subjects: &[Subject<'_>], op: Option<Op>, time: Duration) -> Result<Vec<Timing>, String> {
    let Some((first, others)) = subjects.split_first() else { return Ok(Vec::new()) };
    if first.seam == hotseam_abi::seam::KV_TRANSPORT {
        return Ok(Vec::new());
    }
    for memory in subjects.iter().filter_map(|subject| subject.device) {
        memory.make_current().map_err(|error| error.to_string())?;
    }
    let bench = Bench { others, op, time, timings: Vec::new(), failure: None };
    match crate::runner::time(first, bench) {
        Some(Bench { failure: Some(failure), .. }) => Err(failure),
        Some(bench) => Ok(bench.timings),
        None => Ok(Vec::new()),
    }
}

impl Bench<'_> {
    /// Times a case with the subjects that can run it.
    pub(crate) fn run<C: Case>(&mut self, first: &Subject<'_>, case: &C) {
        let rows = case.rows().live().len();
        if self.failure.is_some() || rows == 0 || self.op.is_some_and(|op| op != case.op()) {
            return;
        }
        let runs = |s: &Subject<'_>| s.info.layout == first.info.layout && case.op().served_by(s);
        let all = std::iter::once(first).chain(self.others).enumerate();
        let subjects: Vec<_> = all.filter(|(_, subject)| runs(subject)).collect();
        let mut samples = vec![Vec::new(); subjects.len()];
        let mut started = Instant::now();
        for round in 0.. {
            if round == WARM {
                samples.iter_mut().for_each(Vec::clear);
                started = Instant::now();
            }
            if round >= WARM + LEAST && started.elapsed() >= self.time {
                break;
            }
            for ((_, subject), samples) in subjects.iter().zip(&mut samples) {
                match timed(subject, case) {
                    Ok(time) => samples.push(time),
                    Err(what) => {
                        let (op, title) = (case.op(), case.title());
                        self.failure = Some(format!("{} {op} case \"{title}\": {what}", subject.variant));
                        return;
                    }
                }
            }
        }
        for ((index, _), mut samples) in subjects.into_iter().zip(samples) {
            samples.sort_unstable();
            let at = |percent: usize| samples[(samples.len() - 1) * percent / 100];
            self.timings.push(Timing {
                op: case.op(),
                case: case.title(),
                rows,
                subject: index,
                calls: samples.len(),
                median_ns: at(50),
                low_ns: at(10),
                high_ns: at(90),
            });
        }
    }
}

/// Duration in nanoseconds of one call on inputs of its own: a call may change what it was given in place. On a device it is
/// the time that the stream was busy, from before the call until what it enqueued was done.
fn timed<C: Case>(subject: &Subject<'_>, case: &C) -> Result<u64, String> {
    match call(subject, &mut case.clone()) {
        Ok((hotseam_abi::OK, seconds)) => Ok((seconds * 1e9).round() as u64),
        Ok((code, _)) => Err(format!("returned code {code}: {}", (subject.take_error)())),
        Err(failed) => Err(failed.to_string()),
    }
}
