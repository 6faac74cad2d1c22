//! Why a call was not captured, or a file not replayed.

use std::path::PathBuf;

use thiserror::Error;

/// Errors of capture files. A file that is refused has not been shown to any plugin.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no capture.
    #[error("{path} is not a capture: {why}. Write one with `hotseam trace --capture CELL -o FILE`.")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The bytes are not those that were written.
    #[error("{path} was changed after it was written: its data has sha256 {found}, expected {expected}")]
    Checksum {
        /// The file.
        path: PathBuf,
        /// In the header.
        expected: String,
        /// Of the data.
        found: String,
    },
    /// A field is absent, or is not what the contract asks for.
    #[error("field `{field}` {found}, expected {expected}")]
    Field {
        /// Name of the field.
        field: String,
        /// What would do.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The fields do not make a call that the contract allows.
    #[error("{op}: {why}")]
    Call {
        /// The op.
        op: String,
        /// What is wrong.
        why: String,
    },
    /// The request came to its end without that call.
    #[error("{cell} was called {calls} times, so it has no call number {wanted}. Give --call 0 to {last}, or a longer prompt.",
            last = calls.saturating_sub(1))]
    NoCall {
        /// The cell.
        cell: String,
        /// Calls of it.
        calls: u64,
        /// Number asked for.
        wanted: u64,
    },
    /// The variant is of another seam.
    #[error(
        "the file holds a call of {op}, which {variant} does not serve. Give a variant of the seam {seam}."
    )]
    Variant {
        /// Op of the file.
        op: String,
        /// Variant asked for.
        variant: String,
        /// Seam of the file.
        seam: String,
    },
    /// The variant runs where the stored call is not.
    #[error(
        "{variant} runs on {device}, and a stored call is made again in host memory. Give a variant for the CPU, such as \
         {seam}/truth, to judge the call's outputs, or look at {variant} with `hotseam compare` on an engine of its device."
    )]
    OtherDevice {
        /// Variant asked for.
        variant: String,
        /// Its device.
        device: String,
        /// Seam of the file.
        seam: String,
    },
    /// The device of the call failed.
    #[error(
        "the device failed under the call: {why}. Look at it with nvidia-smi, and make the request with `engine.guard`."
    )]
    Device {
        /// What the driver says.
        why: String,
    },
}

/// A field that is wrong.
pub(super) fn field(name: &str, expected: impl Into<String>, found: impl Into<String>) -> CaptureError {
    CaptureError::Field { field: name.to_owned(), expected: expected.into(), found: found.into() }
}
