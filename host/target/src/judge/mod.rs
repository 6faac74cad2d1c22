//! The oracles of this crate: what is asked of an assignment, and when the answer is bad.

mod audit;
mod command;
mod exact;
mod kl;
mod needle;
mod perplexity;
mod repeat;

use std::sync::Arc;
use std::time::Instant;

use hotseam_config::{NoiseKind, Oracle, OracleKind};
use hotseam_encoding::Tokenizer;
use hotseam_engine::Engine;
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::kv_map::Audited;
use hotseam_evidence::model::Model;
use hotseam_evidence::{EvidenceError, RequestFailure, guard};
use hotseam_slots::Slots;

use crate::command::{Broken, Places};
use crate::{Counts, Noise, Outcome, Progress, TargetError, Verdict};

/// Begin of the signature of a run in which a request failed inside the model.
const ERROR: &str = "error:";

/// Whether the run of an outcome ended before its time, by a fault of a call or of the hand-off, or by the guard.
pub(crate) fn broke_off(outcome: &Outcome) -> bool {
    outcome.signature.starts_with(ERROR) || outcome.signature.starts_with(guard::SIGNATURE)
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoVerdict {
    /// The question could not be put.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    /// The command of an oracle is broken.
    #[error(transparent)]
    Command(#[from] Broken),
    /// The run was ended after these seconds.
    #[error("no answer in {0:.0} s")]
    Hang(f64),
    /// This oracle needs what the target does not have.
    #[error("{0}")]
    Unsupported(String),
}

impl NoVerdict {
    /// As the error of a target; `what` names the arm.
    pub(crate) fn of(self, what: String) -> TargetError {
        match self {
            Self::Hang(seconds) | Self::Evidence(EvidenceError::TimedOut { seconds, .. }) => {
                TargetError::Hang { what, seconds }
            }
            other => TargetError::Oracle { what, message: other.to_string() },
        }
    }
}

/// Makes the assignments of a measurement anew, for a second engine.
pub(crate) type Fresh<'a> = &'a (dyn Fn() -> Result<Arc<Slots>, EvidenceError> + Sync);

/// An assignment and the ways to ask it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    /// What answers prompts.
    pub(crate) model: &'a dyn Model,
    /// The engine and how to make its slots anew, if it is in this process: only there whole rows of logits are seen.
    pub(crate) engine: Option<(&'a Engine, Fresh<'a>)>,
    /// What runs requests with audited hand-offs.
    pub(crate) audits: &'a dyn Audits,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) assignment: &'a str,
    /// Identity of what it runs.
    pub(crate) digest: &'a str,
    /// Requests that may be in flight.
    pub(crate) in_flight: usize,
    /// Where a command reaches it.
    pub(crate) places: &'a Places,
}

impl<'a> Subject<'a> {
    fn engine(&self, oracle: &str) -> Result<(&'a Engine, Fresh<'a>), NoVerdict> {
        self.engine.ok_or_else(|| {
            let text = "needs the logits of every row, which no server gives out";
            let next = "use needle, exact, repeat or command, or leave `bisect.target` away";
            NoVerdict::Unsupported(format!("the oracle {oracle} {text}; {next}"))
        })
    }
}

/// Something that runs a prompt and says what its hand-off from prefill to decode brought.
pub(crate) trait Audits: Sync {
    /// # Errors
    /// If the question cannot be put, or hand-offs are not audited there.
    fn audit(&self, assignment: &str, prompt: &[u32]) -> Result<Audited, EvidenceError>;
}

/// Called as a run proceeds.
pub(crate) type Report<'a> = &'a mut dyn FnMut(Progress);

/// One kind of oracle.
trait Kind: Sync + Send {
    /// One line that names the oracle and its bar.
    fn describe(&self) -> String;
    /// Judges the good end and sets the bar by it.
    fn base(&mut self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict>;
    /// Judges an arm by the bar.
    fn arm(&self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict>;
}

/// An oracle with its bar.
pub(crate) struct Judge {
    kind: Box<dyn Kind>,
    noise: Noise,
    /// Whether the good end was judged.
    based: bool,
}

/// What oracles are made of.
pub(crate) struct Material<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) haystack: &'a Haystack,
    pub(crate) seed: u64,
    /// Identity of the checkpoint.
    pub(crate) model: &'a str,
}

impl Judge {
    pub(crate) fn new(oracle: &Oracle, material: &Material<'_>) -> Result<Self, EvidenceError> {
        let kind: Box<dyn Kind> = match &oracle.kind {
            OracleKind::Needle(needle) => Box::new(needle::Needle::new(needle, material)?),
            OracleKind::Kl(kl) => Box::new(kl::Kl::new(kl, material)?),
            OracleKind::Perplexity(perplexity) => {
                Box::new(perplexity::Perplexity::new(perplexity, material)?)
            }
            OracleKind::Exact(exact) => Box::new(exact::Exact::new(exact)),
            OracleKind::Repeat(repeat) => Box::new(repeat::Repeat::new(repeat, material)?),
            OracleKind::Audit(audit) => Box::new(audit::Audit::new(audit, material)),
            OracleKind::Command(command) => Box::new(command::Command::new(command)),
        };
        let noise = match oracle.noise() {
            NoiseKind::Exact => Noise::Exact,
            NoiseKind::Counted => Noise::Counted,
        };
        Ok(Self { kind, noise, based: false })
    }

    pub(crate) fn describe(&self) -> String {
        self.kind.describe()
    }

    pub(crate) fn noise(&self) -> Noise {
        self.noise
    }

    /// Whether the good end was judged, so that arms can be.
    pub(crate) fn is_based(&self) -> bool {
        self.based
    }

    /// Judges the good end. The first verdict sets the bar; later ones leave it, so that all arms have one bar.
    pub(crate) fn base(&mut self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        if self.based && self.noise == Noise::Counted {
            return self.arm(subject, report);
        }
        let begin = Instant::now();
        let mut outcome = self.kind.base(subject, report)?;
        self.based = true;
        outcome.seconds = begin.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// Judges an arm.
    pub(crate) fn arm(&self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        let begin = Instant::now();
        let mut outcome = self.kind.arm(subject, report)?;
        outcome.seconds = begin.elapsed().as_secs_f64();
        Ok(outcome)
    }
}

/// An outcome with one draw and no grid.
fn outcome(bad: bool, signature: &str, metric: f64, summary: String, detail: String) -> Outcome {
    let verdict = if bad { Verdict::Bad } else { Verdict::Good };
    Outcome {
        verdict,
        signature: signature.to_owned(),
        metric,
        summary,
        detail,
        seconds: 0.0,
        counts: Counts::once(verdict),
        launch: 0,
        grid: Vec::new(),
    }
}

/// The outcome of a run in which a request failed inside the model.
fn failed(failure: &RequestFailure) -> Outcome {
    let signature = guard::signature(&failure.code).unwrap_or_else(|| format!("{ERROR}{}", failure.code));
    outcome(true, &signature, 0.0, failure.code.clone(), failure.message.clone())
}

/// A number of draws as [`Counts`] has them.
fn counts(fail: usize, total: usize) -> Counts {
    let draws = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Counts { fail: draws(fail), total: draws(total) }
}
