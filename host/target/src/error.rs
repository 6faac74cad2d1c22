//! Why a target gave no answer.

use thiserror::Error;

/// A target could not be set up, or an arm could not be measured.
#[derive(Debug, Error)]
pub enum TargetError {
    /// The configuration has no `bisect` section, or it names something that is not there.
    #[error("{0}")]
    Setup(String),
    /// An assignment is refused.
    #[error("assignment of {what} is refused: {source}")]
    Arm {
        /// Which arm.
        what: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The oracle could not be asked.
    #[error("the oracle failed on {what}: {message}")]
    Oracle {
        /// Which arm.
        what: String,
        /// Why.
        message: String,
    },
    /// A run did not end in its time. A search reports it as a bad run with the signature [`HANG`](crate::HANG).
    #[error("{what} did not end in {seconds:.0} s")]
    Hang {
        /// Which arm.
        what: String,
        /// The time it was given.
        seconds: f64,
    },
}
