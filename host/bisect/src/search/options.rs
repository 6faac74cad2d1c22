//! Bounds of a search, and what it is expected to cost.

use hotseam_target::{Noise, Plan};
use serde::{Deserialize, Serialize};

use super::stats;

/// How a search treats what the oracle says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// As the target says: verdicts of an exact oracle halve the suspects, draws of a noisy one update beliefs.
    #[default]
    Auto,
    /// Halving; if outcomes are draws, each arm is repeated until it is decided.
    Prefix,
    /// Beliefs, even if the oracle is said to be exact.
    Bayes,
}

/// Bounds of a search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Oracle runs allowed, both ends included.
    pub budget_runs: usize,
    /// Seconds of oracle runs allowed; no run begins after them.
    pub budget_seconds: Option<u64>,
    /// Independent culprits looked for.
    pub max_culprits: usize,
    /// Largest set of changes that only fail together.
    pub max_set: usize,
    /// Probability that a claim needs, if outcomes are draws.
    pub confidence: f64,
    /// Arms that are measured at the same time.
    pub jobs: usize,
    /// Seed of the order in which the ends take turns.
    pub seed: u64,
    /// How outcomes are treated.
    pub strategy: Strategy,
    /// Whether other settings are tried if the good end fails.
    pub axes: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            budget_runs: 20,
            budget_seconds: None,
            max_culprits: 4,
            max_set: 3,
            confidence: 0.95,
            jobs: 1,
            seed: 0,
            strategy: Strategy::Auto,
            axes: true,
        }
    }
}

/// Failure rates of the ends that a noisy search is expected to meet, before they are known.
const GUESS: [f64; 2] = [0.05, 0.75];
/// Runs of each end that tell such rates apart.
const ENDS: f64 = 4.0;

/// Runs a search for one culprit is expected to take: both ends, the search, the layers, two confirmations. If outcomes
/// are draws, at rates of 5 % and 75 % and 95 % confidence; the report keeps up with the real ones.
pub fn expected_runs(plan: &Plan, noise: Noise) -> usize {
    let layers = plan.changes.iter().map(|change| change.atoms.len()).max().unwrap_or(1);
    let halvings = |n: usize| n.next_power_of_two().trailing_zeros() as usize;
    match noise {
        Noise::Exact => 2 + halvings(plan.changes.len()) + 2 * halvings(layers) + 2,
        Noise::Counted => {
            let bits = (plan.changes.len().max(1) as f64).log2() + 2.0 * (layers.max(1) as f64).log2();
            (2.0 * ENDS + stats::expected_draws(bits, GUESS[0], GUESS[1], 0.95)).ceil() as usize
        }
    }
}
