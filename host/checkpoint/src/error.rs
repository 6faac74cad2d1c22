//! What can be wrong with a checkpoint.

use std::io;
use std::path::PathBuf;

use hotseam_model::{ConfigError, Format, MatrixError};

/// A checkpoint that cannot be used. Each message names the thing, what was expected, what was found and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file cannot be opened, read or mapped.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}; check the path, its permissions and the free space", path.display())]
    Write {
        /// File.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Something is where a new checkpoint is to be written.
    #[error("{} exists already; nothing is overwritten: give another directory or remove it", path.display())]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// A matrix that a storage format cannot hold.
    #[error(
        "tensor `{name}` cannot be stored as {format}: its rows of {k} values are no multiple of {}; choose another form",
        format.group()
    )]
    Unstorable {
        /// Name of the weights.
        name: String,
        /// Wanted format.
        format: Format,
        /// Values of a row.
        k: usize,
    },
    /// Neither an index nor a single shard is there.
    #[error(
        "no weights in {}: expected `model.safetensors.index.json` or `model.safetensors`; give the directory that holds \
         config.json and the shards", dir.display()
    )]
    NoWeights {
        /// Directory searched.
        dir: PathBuf,
    },
    /// A shard that the index names is not there.
    #[error(
        "shard {} is missing: the index puts {tensors} tensors there, `{example}` for one; fetch the shard again",
        path.display()
    )]
    MissingShard {
        /// Where it should be.
        path: PathBuf,
        /// Number of tensors in it.
        tensors: usize,
        /// One of them.
        example: String,
    },
    /// JSON that does not parse, or parses to something else than expected.
    #[error("{} is malformed: {reason}; fetch the file again", path.display())]
    Malformed {
        /// File.
        path: PathBuf,
        /// What is wrong, with its place where known.
        reason: String,
    },
    /// A shard's header is malformed, or does not fit the file.
    #[error("shard {} is damaged: {reason}; fetch the file again", path.display())]
    Shard {
        /// File.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A value in `config.json`.
    #[error("{}: {source}", path.display())]
    Config {
        /// File.
        path: PathBuf,
        /// Field, expectation and finding.
        source: ConfigError,
    },
    /// A tensor that the geometry calls for is not there.
    #[error("tensor `{name}` is missing{}; the checkpoint is incomplete or config.json belongs to another model",
        hint.as_ref().map(|h| format!(" (an unknown tensor `{h}` is there)")).unwrap_or_default())]
    MissingTensor {
        /// Official name.
        name: String,
        /// Unused tensor of a similar name.
        hint: Option<String>,
    },
    /// A tensor that no part of the model uses.
    #[error(
        "tensor `{name}` is unknown ({count} such in all); no part of this model uses it: config.json may belong to \
         another model"
    )]
    ExtraTensor {
        /// First such name.
        name: String,
        /// How many there are.
        count: usize,
    },
    /// The same name in two shards.
    #[error("tensor `{name}` is in two shards, {first} and {second}; remove one")]
    DuplicateTensor {
        /// Name.
        name: String,
        /// One shard.
        first: String,
        /// The other shard.
        second: String,
    },
    /// A tensor of another shape than the geometry calls for.
    #[error(
        "tensor `{name}`: expected shape {expected:?}, found {found:?}; config.json may belong to another model"
    )]
    Shape {
        /// Name.
        name: String,
        /// From the geometry.
        expected: Vec<usize>,
        /// In the shard.
        found: Vec<usize>,
    },
    /// An element type that this build does not read.
    #[error("tensor `{name}`: expected element type {expected}, found {found}; {advice}")]
    DType {
        /// Name.
        name: String,
        /// Accepted types.
        expected: &'static str,
        /// Type in the shard.
        found: String,
        /// What to do.
        advice: &'static str,
    },
    /// A part of a quantised matrix whose partner is not there.
    #[error(
        "tensor `{name}` needs `{partner}`, which is missing; the checkpoint is incomplete, fetch it again"
    )]
    Alone {
        /// Tensor that is there.
        name: String,
        /// Tensor, or tensors of which one must be there.
        partner: String,
    },
    /// Scales of weights that have none.
    #[error(
        "tensor `{name}` is unexpected: `{weight}` is {found}, which has no such scales; fetch both again"
    )]
    Needless {
        /// Name of the scales.
        name: String,
        /// Name of the weights.
        weight: String,
        /// Format of the weights.
        found: String,
    },
    /// Weights in another format than the configuration says.
    #[error(
        "tensor `{name}` is stored as {found}, but `{field}` of the configuration says {expected}; correct the \
         configuration or fetch the shard again"
    )]
    Contradiction {
        /// Name of the weights.
        name: String,
        /// Format in the shard.
        found: Format,
        /// Field of the configuration.
        field: String,
        /// Formats that the field allows.
        expected: String,
    },
    /// Weights and scales that make no matrix.
    #[error("tensor `{name}`: {source}; config.json may belong to another model")]
    Matrix {
        /// Name of the weights.
        name: String,
        /// What does not fit.
        source: MatrixError,
    },
    /// A value that makes the model unusable.
    #[error(
        "tensor `{name}`, element {index}: expected {expected}, found {found}; the file is damaged, fetch it again"
    )]
    Value {
        /// Name.
        name: String,
        /// Flat index of the first such element.
        index: usize,
        /// What would be accepted.
        expected: String,
        /// What is there.
        found: String,
    },
}
