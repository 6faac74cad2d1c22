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
        source: Box<hotseam_slots::SlotsError>,
    },
    /// The oracle could not be asked.
    #[error("the oracle failed on {what}: {message}")]
    Oracle {
        /// Which arm.
        what: String,
        /// Why.
        message: String,
    },
}
