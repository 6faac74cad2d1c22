//! Perplexity against that of the good end, at chosen lengths.

use hotseam_config::PerplexityOracle;
use hotseam_evidence::divergence::{DECODE_TOKENS, Passage};
use hotseam_evidence::{EvidenceError, perplexity};

use super::{Kind, Material, NoVerdict, Report, Subject, failed, outcome};
use crate::{Outcome, Progress};

pub(super) struct Perplexity {
    passages: Vec<Passage>,
    oracle: PerplexityOracle,
    /// Perplexity of the good end, by length.
    bar: Option<Vec<f64>>,
}

impl Perplexity {
    pub(super) fn new(oracle: &PerplexityOracle, material: &Material<'_>) -> Result<Self, EvidenceError> {
        let passage = |length: &usize| {
            // Short texts have short decode parts, so that both phases are seen.
            let decode = DECODE_TOKENS.min(length / 4).max(1);
            Passage::new(material.tokenizer, material.haystack, *length, decode)
        };
        let passages = oracle.lengths.iter().map(passage).collect::<Result<_, _>>()?;
        Ok(Self { passages, oracle: oracle.clone(), bar: None })
    }

    /// The perplexities, or the outcome of a failure.
    fn run(&self, subject: &Subject<'_>, report: Report<'_>) -> Result<Result<Vec<f64>, Outcome>, NoVerdict> {
        let (engine, _) = subject.engine("perplexity")?;
        let total = self.passages.len();
        let mut values = Vec::new();
        for (done, passage) in self.passages.iter().enumerate() {
            report(Progress { done, total });
            match perplexity::run(engine, passage, subject.assignment)? {
                Ok(found) => values.push(found.value()),
                Err(failure) => return Ok(Err(failed(&failure))),
            }
        }
        Ok(Ok(values))
    }

    fn detail(&self, values: &[f64]) -> String {
        let pairs = self.passages.iter().zip(values);
        pairs.map(|(passage, value)| format!("{} {value:.3}", passage.len())).collect::<Vec<_>>().join("  ")
    }
}

impl Kind for Perplexity {
    fn describe(&self) -> String {
        let at: Vec<String> = self.passages.iter().map(|passage| passage.len().to_string()).collect();
        format!(
            "perplexity at {} tokens; bad above {} times the good end's",
            at.join(", "),
            self.oracle.ratio
        )
    }

    fn base(&mut self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        let values = match self.run(subject, report)? {
            Ok(values) => values,
            Err(outcome) => return Ok(outcome),
        };
        let worst = values.iter().copied().fold(0.0, f64::max);
        let bad = !worst.is_finite() || self.oracle.most.is_some_and(|most| worst > most);
        let detail = self.detail(&values);
        self.bar = Some(values);
        Ok(outcome(bad, "perplexity", worst, format!("perplexity {worst:.3}"), detail))
    }

    fn arm(&self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        let Some(bar) = &self.bar else {
            let text = "the good end has no perplexity to compare with, because its run failed";
            return Err(NoVerdict::Unsupported(text.to_owned()));
        };
        let values = match self.run(subject, report)? {
            Ok(values) => values,
            Err(outcome) => return Ok(outcome),
        };
        let ratio = values.iter().zip(bar).map(|(value, bar)| value / bar).fold(0.0, f64::max);
        // Infinite over infinite is no number, and no better than the good end.
        let bad = ratio.is_nan() || ratio > self.oracle.ratio || values.iter().any(|v| !v.is_finite());
        Ok(outcome(bad, "perplexity", ratio, format!("perplexity x {ratio:.3}"), self.detail(&values)))
    }
}
