//! Divergence from a baseline.

use std::path::PathBuf;

use hotseam_config::KlOracle;
use hotseam_evidence::EvidenceError;
use hotseam_evidence::RequestFailure;
use hotseam_evidence::divergence::floor::{self, Floor};
use hotseam_evidence::divergence::{self, Baseline, DECODE_TOKENS, DivergenceReport, Passage, TAIL};

use super::{Kind, Material, NoVerdict, Report, Subject, failed, outcome};
use crate::Outcome;

/// Least bar in nats, for an engine whose good end does not move at all.
const LEAST_BAR: f64 = 1e-6;

pub(super) struct Kl {
    passage: Passage,
    oracle: KlOracle,
    model: String,
    /// Set by the good end.
    based: Option<Based>,
}

struct Based {
    baseline: Baseline,
    bar: f64,
    floor: Option<Floor>,
}

impl Kl {
    pub(super) fn new(oracle: &KlOracle, material: &Material<'_>) -> Result<Self, EvidenceError> {
        let passage = Passage::new(material.tokenizer, material.haystack, oracle.tokens, DECODE_TOKENS)?;
        Ok(Self { passage, oracle: oracle.clone(), model: material.model.to_owned(), based: None })
    }

    fn compare(&self, subject: &Subject<'_>, based: &Based) -> Result<Outcome, NoVerdict> {
        let (engine, _) = subject.engine("kl")?;
        let report =
            divergence::compare(engine, &self.passage, &based.baseline, subject.assignment, based.bar)?;
        Ok(judge(&report, self.oracle.least_top1))
    }

    fn saved(&self) -> Option<&PathBuf> {
        self.oracle.baseline.as_ref()
    }
}

impl Kind for Kl {
    fn describe(&self) -> String {
        let bar = match (&self.based, self.oracle.threshold) {
            (Some(based), _) => format!("{:.1e} nats", based.bar),
            (None, Some(threshold)) => format!("{threshold:.1e} nats"),
            (None, None) => format!("{} times what harmless variations do", self.oracle.times_floor),
        };
        let top1 =
            self.oracle.least_top1.map_or(String::new(), |least| format!(", or same top-1 below {least}"));
        format!(
            "KL on {} tokens ({DECODE_TOKENS} in decode); bad above {bar}, mean of a phase or p99 / {TAIL}{top1}",
            self.passage.len()
        )
    }

    fn base(&mut self, subject: &Subject<'_>, _: Report<'_>) -> Result<Outcome, NoVerdict> {
        let (engine, fresh) = subject.engine("kl")?;
        let captured = match Baseline::capture(engine, &self.passage, subject.assignment) {
            Ok(captured) => captured,
            Err(EvidenceError::Baseline { code, message, .. }) => {
                return Ok(failed(&RequestFailure { code, message }));
            }
            Err(other) => return Err(other.into()),
        };
        let (bar, floor) = match self.oracle.threshold {
            Some(threshold) => (threshold, None),
            None => {
                let floor = floor::measure(engine, &self.passage, &captured, subject.assignment, fresh)?;
                ((floor.worst() * self.oracle.times_floor).max(LEAST_BAR), Some(floor))
            }
        };
        let nll = captured.nll;
        let (baseline, place) = match self.saved() {
            None => (captured, String::new()),
            Some(path) if path.exists() => {
                let loaded = Baseline::load(path, &self.passage, &self.model)?;
                (loaded, format!("; held against {}", path.display()))
            }
            Some(path) => {
                captured.save(path, &self.passage, &self.model)?;
                (captured, format!("; saved as {}", path.display()))
            }
        };
        let based = Based { baseline, bar, floor };
        let floor = based.floor.as_ref().map_or(String::new(), |floor| format!("; floor: {floor}"));
        let detail = format!("bar {bar:.1e}{floor}{place}");
        let outcome = if place.starts_with("; held") {
            let judged = self.compare(subject, &based)?;
            Outcome { detail: format!("{}; {detail}", judged.detail), ..judged }
        } else {
            outcome(!nll.is_finite(), "kl", 0.0, format!("baseline, nll {nll:.2}"), detail)
        };
        self.based = Some(based);
        Ok(outcome)
    }

    fn arm(&self, subject: &Subject<'_>, _: Report<'_>) -> Result<Outcome, NoVerdict> {
        match &self.based {
            Some(based) => self.compare(subject, based),
            None => {
                let text = "the good end has no distributions to compare with, because its run failed";
                Err(NoVerdict::Unsupported(text.to_owned()))
            }
        }
    }
}

fn judge(report: &DivergenceReport, least_top1: Option<f64>) -> Outcome {
    if let Some(failure) = &report.failure {
        return failed(failure);
    }
    let (worst, place) = report.worst();
    let top1 = report.all.same_top1;
    let flips = least_top1.is_some_and(|least| top1 < least);
    let mut summary = if worst == 0.0 { "KL 0".to_owned() } else { format!("KL {worst:.1e} {place}") };
    if flips {
        summary += &format!(", same top-1 {top1:.3}");
    }
    let detail = format!(
        "token 1 {:.1e}; later tokens {}; prefill {}",
        report.first_token.mean, report.decode, report.prefill
    );
    outcome(worst > report.threshold || flips, "kl", worst, summary, detail)
}
