//! Why a measurement did not come about.

use std::path::PathBuf;

use hotseam_encoding::EncodingError;
use hotseam_engine::{EngineError, SubmitError};
use thiserror::Error;

/// A measurement that could not be made. A request that failed inside the model is a result, not an error.
#[derive(Debug, Error)]
pub enum EvidenceError {
    /// A text could not be read.
    #[error("haystack {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// There is no text.
    #[error("no haystack text: `needle.haystack` lists no file with sentences. List at least one text file.")]
    NoText,
    /// The tokenizer refused a text.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
    /// A prompt of that length does not hold the question and a needle.
    #[error("a needle prompt of {length} tokens is too short, expected at least {least}")]
    TooShort {
        /// Length asked for.
        length: usize,
        /// Least length.
        least: usize,
    },
    /// Too few tokens for prefill and decode rows.
    #[error("{tokens} tokens are too few, expected more than the {decode} that are decoded")]
    TooFewTokens {
        /// Tokens asked for.
        tokens: usize,
        /// Tokens for decode.
        decode: usize,
    },
    /// The engine did not take a request.
    #[error("the engine did not take a request: {0}")]
    Submit(#[from] SubmitError),
    /// A second engine did not start.
    #[error("a second engine did not start: {0}")]
    Engine(#[from] EngineError),
    /// No such assignment.
    #[error("assignment `{name}` is not defined; there are: {known}")]
    Assignment {
        /// The name.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// The prompt of a probe does not hold the fact in its plain form.
    #[error(
        "the prompt does not hold the fact about {name} as one plain sentence; only single needles can be explained"
    )]
    NoNeedle {
        /// Whose word was asked for.
        name: String,
    },
    /// No such cell.
    #[error("there is no cell `{cell}` in this model; `hotseam slots` lists those there are")]
    Cell {
        /// The cell asked for.
        cell: String,
    },
    /// A call was not captured.
    #[error(transparent)]
    Capture(#[from] crate::capture::CaptureError),
    /// A request failed before there was anything to look at.
    #[error("the request failed: {code}: {message}")]
    Request {
        /// Code of the failure.
        code: String,
        /// Text of the failure.
        message: String,
    },
    /// No KV was handed over.
    #[error(
        "nothing was handed over: set engine.topology to paired, so that there are two stores, and disaggregation.audit to true"
    )]
    NoHandoff,
    /// The baseline of a comparison failed.
    #[error("the baseline `{assignment}` failed: {code}: {message}")]
    Baseline {
        /// Assignment of the baseline.
        assignment: String,
        /// Code of the failure.
        code: String,
        /// Text of the failure.
        message: String,
    },
    /// A task of no or too many facts.
    #[error("{found} facts or turns in a prompt, expected 2 to {most}")]
    TaskSize {
        /// Asked for.
        found: usize,
        /// Most there can be.
        most: usize,
    },
    /// A server could not be asked.
    #[error("{place}: {message}")]
    Transport {
        /// Which server.
        place: String,
        /// Why, and what to do.
        message: String,
    },
    /// A server did not answer in time.
    #[error("{place} did not answer in {seconds:.0} s")]
    TimedOut {
        /// Which server.
        place: String,
        /// The time it was given.
        seconds: f64,
    },
    /// A saved baseline cannot be read or does not fit.
    #[error("baseline {path}: {message}")]
    Saved {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        message: String,
    },
}
