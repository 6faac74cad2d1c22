//! How far a run of the oracle is.

/// Probes done and all probes of the run in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Finished.
    pub done: usize,
    /// All.
    pub total: usize,
}
