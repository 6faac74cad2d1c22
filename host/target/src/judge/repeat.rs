//! Equal bits on repetition.

use hotseam_config::RepeatOracle;
use hotseam_evidence::EvidenceError;
use hotseam_evidence::divergence::Passage;
use hotseam_evidence::model::Question;
use hotseam_evidence::repeat::{self, RepeatReport};

use super::{Kind, Material, NoVerdict, Report, Subject, counts, failed, outcome};
use crate::Outcome;

/// Rows of the prompt that are decoded, or tokens of an answer where a server is asked.
const DECODE_TOKENS: usize = 16;

pub(super) struct Repeat {
    passage: Passage,
    times: usize,
}

impl Repeat {
    pub(super) fn new(oracle: &RepeatOracle, material: &Material<'_>) -> Result<Self, EvidenceError> {
        let passage = Passage::new(material.tokenizer, material.haystack, oracle.tokens, DECODE_TOKENS)?;
        Ok(Self { passage, times: oracle.times })
    }

    fn run(&self, subject: &Subject<'_>) -> Result<Outcome, NoVerdict> {
        let report = match subject.engine {
            Some((engine, _)) => repeat::logits(engine, &self.passage, self.times, subject.assignment)?,
            None => {
                let question = Question {
                    prompt: self.passage.prompt(),
                    max_tokens: DECODE_TOKENS,
                    assignment: subject.assignment,
                    reuse_prefill: false,
                };
                repeat::answers(subject.model, &question, self.times)?
            }
        };
        Ok(judge(&report))
    }
}

impl Kind for Repeat {
    fn describe(&self) -> String {
        let (times, tokens) = (self.times, self.passage.len());
        format!("the same {tokens} tokens {times} times; bad if a bit differs")
    }

    fn base(&mut self, subject: &Subject<'_>, _: Report<'_>) -> Result<Outcome, NoVerdict> {
        self.run(subject)
    }

    fn arm(&self, subject: &Subject<'_>, _: Report<'_>) -> Result<Outcome, NoVerdict> {
        self.run(subject)
    }
}

fn judge(report: &RepeatReport) -> Outcome {
    if let Some(failure) = &report.failure {
        return failed(failure);
    }
    let (differing, repeats) = (report.differing, report.times.saturating_sub(1));
    let detail = report
        .first
        .map_or(String::new(), |(run, position)| format!("run {run} differs first at position {position}"));
    let metric = differing as f64 / repeats.max(1) as f64;
    Outcome {
        counts: counts(differing, repeats),
        ..outcome(differing > 0, "nondeterminism", metric, format!("{differing}/{repeats} differ"), detail)
    }
}
