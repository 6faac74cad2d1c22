//! The error of a plugin call.

use hotseam_abi as abi;

/// Result of a plugin call.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused or failed call: a code of the contract and a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// One of the `ERR_` codes of [`hotseam_abi`].
    pub code: i32,
    /// What was expected and what was found.
    pub message: String,
}

impl Error {
    /// An argument is outside what the plugin supports.
    pub fn argument(message: impl Into<String>) -> Self {
        Self { code: abi::ERR_ARGUMENT, message: message.into() }
    }

    /// The plugin cannot run here or with these options.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { code: abi::ERR_UNSUPPORTED, message: message.into() }
    }

    /// Anything else.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: abi::ERR_INTERNAL, message: message.into() }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
