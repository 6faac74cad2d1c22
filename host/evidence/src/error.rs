//! Why a measurement did not come about.

use std::path::PathBuf;

use hotseam_encoding::EncodingError;
use hotseam_engine::SubmitError;
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
}
