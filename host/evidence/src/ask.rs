//! Requests whose answer is wanted as a whole.

use hotseam_engine::{Event, Handle};
use serde::{Deserialize, Serialize};

/// A request that failed inside the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFailure {
    /// Stable code.
    pub code: String,
    /// What failed.
    pub message: String,
}

impl RequestFailure {
    /// The engine ended before the request.
    pub(crate) fn engine_stopped() -> Self {
        Self { code: "E-ENGINE-STOPPED".into(), message: "the engine stopped".into() }
    }
}

/// Waits for the end of a request; calls `row` for each row of logits as it comes.
///
/// # Errors
/// The failure of the request.
pub(crate) fn finish(
    handle: &Handle,
    mut row: impl FnMut(usize, Vec<f32>),
) -> Result<Vec<u32>, RequestFailure> {
    let mut tokens = Vec::new();
    loop {
        match handle.recv() {
            Some(Event::Token { id, .. }) => tokens.push(id),
            Some(Event::Logits { position, logits }) => row(position as usize, logits),
            Some(Event::Prompt { .. }) => {}
            Some(Event::Done { .. }) => return Ok(tokens),
            Some(Event::Failed { code, message }) => return Err(RequestFailure { code, message }),
            None => {
                return Err(RequestFailure::engine_stopped());
            }
        }
    }
}
