//! The oracles: needle recall and KL divergence.

use std::time::Instant;

use hotseam_config::Oracle;
use hotseam_encoding::Tokenizer;
use hotseam_engine::Engine;
use hotseam_evidence::divergence::{self, Baseline, DECODE_TOKENS, DivergenceReport, Passage, TAIL};
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::{self, NeedlePlan, NeedleReport, Probe, Sweep};
use hotseam_evidence::{EvidenceError, RequestFailure};

use super::Progress;
use crate::{Outcome, Verdict};

/// Recall that the good end must reach to be called good.
const LEAST_GOOD_RECALL: f64 = 0.75;

/// Begin of the signature of a run in which a request failed inside the model.
pub(super) const ERROR: &str = "error:";

/// Probes that an arm may lose against the good end and still be good: one, or an eighth of more than eight.
fn tolerance(probes: usize) -> usize {
    (probes / 8).max(1)
}

/// An oracle with its bar.
pub(super) enum Judge {
    Needle {
        probes: Vec<Probe>,
        lengths: Vec<usize>,
        /// Hits of the good end.
        bar: Option<usize>,
    },
    Kl {
        passage: Passage,
        threshold: f64,
        baseline: Option<Baseline>,
    },
}

impl Judge {
    pub(super) fn new(
        oracle: &Oracle,
        tokenizer: &Tokenizer,
        haystack: &Haystack,
        seed: u64,
    ) -> Result<Self, EvidenceError> {
        match oracle {
            Oracle::Needle { lengths, depths } => {
                let plan = NeedlePlan { lengths: lengths.clone(), probes: *depths, seed };
                let probes = plan.probes(tokenizer, haystack)?;
                Ok(Self::Needle { probes, lengths: lengths.clone(), bar: None })
            }
            Oracle::Kl { tokens, threshold } => {
                let passage = Passage::new(tokenizer, haystack, *tokens, DECODE_TOKENS)?;
                Ok(Self::Kl { passage, threshold: *threshold, baseline: None })
            }
        }
    }

    /// One line that names the oracle and its bar.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Needle { probes, lengths, .. } => {
                let at: Vec<String> = lengths.iter().map(ToString::to_string).collect();
                format!(
                    "needle at {} tokens, {} probes; bad if {} or more are lost",
                    at.join(", "),
                    probes.len(),
                    tolerance(probes.len()) + 1
                )
            }
            Self::Kl { passage, threshold, .. } => format!(
                "KL on {} tokens ({DECODE_TOKENS} in decode); bad above {threshold:.1e} nats, mean of a phase or p99 / {TAIL}",
                passage.len()
            ),
        }
    }

    /// Judges an assignment. `baseline` marks the good end.
    pub(super) fn measure(
        &mut self,
        engine: &Engine,
        tokenizer: &Tokenizer,
        assignment: &str,
        is_baseline: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, EvidenceError> {
        let begin = Instant::now();
        let mut outcome = match self {
            Self::Needle { probes, bar, .. } => {
                let total = probes.len();
                let sweep = Sweep {
                    assignment: assignment.to_owned(),
                    in_flight: engine.config().max_seqs,
                    reuse_prefill: true,
                };
                progress(Progress { done: 0, total });
                let report = needle::run(engine, tokenizer, probes, &sweep, |done, _| {
                    progress(Progress { done, total })
                })?;
                if is_baseline {
                    *bar = Some(report.hits());
                }
                judge_needle(&report, if is_baseline { None } else { *bar })
            }
            Self::Kl { passage, threshold, baseline } => match baseline.as_ref().filter(|_| !is_baseline) {
                None => {
                    let captured = Baseline::capture(engine, passage, assignment);
                    match captured {
                        Ok(captured) => {
                            let outcome = judge_baseline(&captured);
                            *baseline = Some(captured);
                            outcome
                        }
                        Err(EvidenceError::Baseline { code, message, .. }) => {
                            failed(&RequestFailure { code, message })
                        }
                        Err(other) => return Err(other),
                    }
                }
                Some(baseline) => {
                    judge_kl(&divergence::compare(engine, passage, baseline, assignment, *threshold)?)
                }
            },
        };
        outcome.seconds = begin.elapsed().as_secs_f64();
        Ok(outcome)
    }
}

/// `bar` is the number of hits of the good end; without it the good end itself is judged.
fn judge_needle(report: &NeedleReport, bar: Option<usize>) -> Outcome {
    if let Some(failure) = report.failure() {
        return failed(failure);
    }
    let (hits, total) = (report.hits(), report.probes.len());
    let bad = match bar {
        None => report.recall < LEAST_GOOD_RECALL,
        Some(bar) => hits + tolerance(total) < bar,
    };
    Outcome {
        verdict: if bad { Verdict::Bad } else { Verdict::Good },
        signature: "recall".to_owned(),
        metric: report.recall,
        summary: format!("{hits}/{total} recalled"),
        detail: report.marks(),
        seconds: 0.0,
    }
}

fn judge_baseline(baseline: &Baseline) -> Outcome {
    Outcome {
        verdict: if baseline.nll.is_finite() { Verdict::Good } else { Verdict::Bad },
        signature: "kl".to_owned(),
        metric: 0.0,
        summary: format!("baseline, nll {:.2}", baseline.nll),
        detail: String::new(),
        seconds: 0.0,
    }
}

fn judge_kl(report: &DivergenceReport) -> Outcome {
    if let Some(failure) = &report.failure {
        return failed(failure);
    }
    let (worst, place) = report.worst();
    Outcome {
        verdict: if worst > report.threshold { Verdict::Bad } else { Verdict::Good },
        signature: "kl".to_owned(),
        metric: worst,
        summary: if worst == 0.0 { "KL 0".to_owned() } else { format!("KL {worst:.1e} {place}") },
        detail: format!("prefill {}; decode {}", report.prefill, report.decode),
        seconds: 0.0,
    }
}

fn failed(failure: &RequestFailure) -> Outcome {
    Outcome {
        verdict: Verdict::Bad,
        signature: format!("{ERROR}{}", failure.code),
        metric: 0.0,
        summary: failure.code.clone(),
        detail: failure.message.clone(),
        seconds: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_probe_of_eight_is_tolerated() {
        assert_eq!(tolerance(4), 1);
        assert_eq!(tolerance(8), 1);
        assert_eq!(tolerance(16), 2);
        assert_eq!(tolerance(24), 3);
    }
}
