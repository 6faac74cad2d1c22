//! What an oracle and a conformance check answer.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Signature of a run that did not end in its time.
pub const HANG: &str = "hang";

/// The oracle's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As good as the good end.
    Good,
    /// Worse than the bar.
    Bad,
    /// This arm cannot be judged: the oracle said so (exit 125), or the assignment is refused. It convicts nobody and
    /// clears nobody.
    Skip,
}

/// `fail` of `total` draws failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Draws that failed.
    pub fail: u32,
    /// Draws made; zero if the run made none, as a run that is skipped.
    pub total: u32,
}

impl Counts {
    /// Of an oracle that answers once.
    pub fn once(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Good => Self { fail: 0, total: 1 },
            Verdict::Bad => Self { fail: 1, total: 1 },
            Verdict::Skip => Self::default(),
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.fail, self.total)
    }
}

/// One cell of a needle grid.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Prompt length in tokens.
    pub length: usize,
    /// Where the needle stood, as a share of the length.
    pub depth: f64,
    /// True if the needle was recalled.
    pub passed: bool,
}

/// One measurement of an arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Good or bad.
    pub verdict: Verdict,
    /// Kind of failure, or of measurement when good: `recall`, `kl`, `error:<code>`, [`HANG`]. Two bad runs with
    /// different signatures are two different faults.
    pub signature: String,
    /// The number that was compared with the bar: recall, or nats per token.
    pub metric: f64,
    /// The measurement in words, such as `3/8 recalled`.
    pub summary: String,
    /// More of the measurement: hits by depth, or KL by phase.
    pub detail: String,
    /// Wall time of the run in seconds.
    pub seconds: f64,
    /// Draws of this run; of an exact oracle its probes, or the verdict as one draw.
    #[serde(default)]
    pub counts: Counts,
    /// Launch of the engine or server in which the run was made: runs of one launch may fail or pass together.
    #[serde(default)]
    pub launch: u64,
    /// The needles one by one; empty for other oracles.
    #[serde(default)]
    pub grid: Vec<Probe>,
}

/// What kind of answers a target gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Noise {
    /// One run is one verdict, always the same.
    Exact,
    /// A run is a number of draws; the search infers the rates at which they fail.
    Counted,
}

/// Step of the evidence ladder, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Evidence {
    /// Effective configurations compared.
    E0,
    /// Receipts: which cells were called in the failing run.
    E1,
    /// Determinism: the same call repeated.
    E2,
    /// Lockstep shadow: stock, patched and truth on the same inputs.
    E3,
    /// Graft: an output replaced by the good side's.
    E4,
    /// Swapped and judged by the oracle.
    E5,
}

/// Cheap evidence for or against a change, before the oracle is asked about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Suspicion {
    /// Index of the change in the plan.
    pub change: usize,
    /// Likelihood ratio of the change being the culprit: 1 if nothing is known, never zero, since equal numbers on some
    /// inputs do not clear wiring.
    pub weight: f64,
    /// What was seen, such as `E3 shadow: rms 3.1x stock's error in attention.core`.
    pub evidence: String,
    /// Step of the ladder.
    pub step: Evidence,
}

/// Part of the configuration that can be changed without a patch, such as `index_topk`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Axis {
    /// Name of the setting.
    pub name: String,
    /// Value that the ends were measured with.
    pub now: String,
    /// Other values to try, the smallest change first.
    pub values: Vec<String>,
}

/// Result of checking one variant against the truth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Conformance {
    /// Variant with its options.
    pub variant: String,
    /// True if every case is within tolerance.
    pub passed: bool,
    /// Number of cases, and the first failure if there is one.
    pub detail: String,
}
