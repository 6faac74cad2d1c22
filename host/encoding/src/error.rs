//! What can go wrong between text and tokens.

use std::path::PathBuf;

/// Failure to load a tokenizer or to use it.
#[derive(Debug, thiserror::Error)]
pub enum EncodingError {
    /// The file could not be read.
    #[error("cannot read tokenizer {}: {source}", .path.display())]
    Read {
        /// The file looked for.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not in the `tokenizer.json` form of the `tokenizers` library.
    #[error("tokenizer {} is malformed: {message}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the library said.
        message: String,
    },
    /// The file describes a tokenizer of another family.
    #[error(
        "tokenizer {}: expected a byte-level decoder (`decoder.type: ByteLevel`), found {found}; \
         DeepSeek-V4 checkpoints carry one",
        .path.display()
    )]
    Decoder {
        /// The file.
        path: PathBuf,
        /// The decoder type found.
        found: String,
    },
    /// A token that the chat form needs is not in the vocabulary.
    #[error(
        "tokenizer {} has no token `{name}`, which the chat form of DeepSeek-V4 needs; \
         take the tokenizer.json that belongs to the checkpoint",
        .path.display()
    )]
    MissingToken {
        /// The file.
        path: PathBuf,
        /// The token's name.
        name: &'static str,
    },
    /// The library refused a text.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {size} tokens")]
    UnknownId {
        /// The id.
        id: u32,
        /// Ids are below this number.
        size: usize,
    },
    /// A conversation that the chat form cannot express.
    #[error("{0}")]
    Conversation(String),
}
