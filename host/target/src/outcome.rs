//! What an oracle and a conformance check answer.

use serde::{Deserialize, Serialize};

/// The oracle's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As good as the good end.
    Good,
    /// Worse than the bar.
    Bad,
}

/// One measurement of an arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Good or bad.
    pub verdict: Verdict,
    /// Kind of failure, or of measurement when good: `recall`, `kl`, `error:<code>`. Two bad runs with different
    /// signatures are two different faults.
    pub signature: String,
    /// The number that was compared with the bar: recall, or nats per token.
    pub metric: f64,
    /// The measurement in words, such as `3/8 recalled`.
    pub summary: String,
    /// More of the measurement: hits by depth, or KL by phase.
    pub detail: String,
    /// Wall time of the run in seconds.
    pub seconds: f64,
}

/// Result of checking one variant against the truth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conformance {
    /// Variant with its options.
    pub variant: String,
    /// True if every case is within tolerance.
    pub passed: bool,
    /// Number of cases, and the first failure if there is one.
    pub detail: String,
}
