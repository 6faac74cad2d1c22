//! Reads a DeepSeek-V4 checkpoint directory: `config.json` and safetensors shards in the official tensor names.
//!
//! This is the only crate that knows tensor names and the spelling of configuration files. Shards are mapped, not read:
//! a matrix costs no memory of its own, and keeps the format that it has in the file: bf16, f32, FP8 in blocks, MXFP4 or
//! NVFP4. Everything is checked before the first token: names, shapes, element types, that the configuration and the
//! tensors tell the same, NaN codes and scales, values of small tensors, the token table. Files come from elsewhere, so
//! nothing in them may panic.
//!
//! Other programs must not shorten or rewrite a shard while it is mapped; the operating system would end the process
//! (`SIGBUS`) at the next access. Replace checkpoints by renaming directories.

mod config;
pub mod convert;
mod error;
mod fields;
mod inspect;
mod pattern;
pub mod plan;
mod quantisation;
pub mod quantise;
pub mod random;
mod resident;
mod scan;
mod shards;
mod source;
mod stored;
mod weights;

use std::path::Path;

use hotseam_model::{ModelConfig, Weights};

pub use config::parse_config;
pub use error::CheckpointError;
pub use inspect::{Holding, inspect};
pub use resident::copy_resident;
pub use shards::TensorInfo;

use quantisation::Quantisation;
use shards::Shards;
use source::Source;

/// ModelOpt's statement of what it quantised, beside `config.json`.
const MODELOPT: &str = "hf_quant_config.json";

/// A checkpoint that passed every check.
#[derive(Debug)]
pub struct Checkpoint {
    /// Geometry.
    pub config: ModelConfig,
    /// Tensors.
    pub weights: Weights,
    /// What was there and is not used, one sentence each; for the user to read.
    pub notes: Vec<String>,
}

/// Reads `dir/config.json`, in the official or in the `transformers` form.
///
/// # Errors
/// [`CheckpointError`] naming the field, what was expected and what was found.
pub fn read_config(dir: &Path) -> Result<ModelConfig, CheckpointError> {
    read_configs(dir).map(|(config, _)| config)
}

/// `config.json`, and what it and `hf_quant_config.json` say about storage.
fn read_configs(dir: &Path) -> Result<(ModelConfig, Quantisation), CheckpointError> {
    let path = dir.join("config.json");
    let text = shards::read_text(&path)?;
    let (config, mut quantisation) =
        config::parse(&text).map_err(|source| CheckpointError::Config { path, source })?;
    let path = dir.join(MODELOPT);
    if path.exists() {
        let text = shards::read_text(&path)?;
        let value = serde_json::from_str(&text)
            .map_err(|e| CheckpointError::Malformed { path: path.clone(), reason: e.to_string() })?;
        quantisation.add_modelopt(&value).map_err(|source| CheckpointError::Config { path, source })?;
    }
    Ok((config, quantisation))
}

/// Reads a checkpoint: `dir/config.json` and either the shards of `dir/model.safetensors.index.json` or
/// `dir/model.safetensors`. `progress(done, total)` is called after each tensor.
///
/// # Errors
/// [`CheckpointError`] naming the file, field or tensor.
pub fn read(dir: &Path, progress: impl Fn(usize, usize)) -> Result<Checkpoint, CheckpointError> {
    let (config, quantisation) = read_configs(dir)?;
    let mut source = Source::new(Shards::open(dir)?, quantisation, &progress);
    let weights = weights::build(&config, &mut source)?;
    let notes = source.finish()?;
    Ok(Checkpoint { config, weights, notes })
}

/// [`read`] without the notes.
///
/// # Errors
/// As [`read`].
pub fn load(dir: &Path, progress: impl Fn(usize, usize)) -> Result<(ModelConfig, Weights), CheckpointError> {
    read(dir, progress).map(|c| (c.config, c.weights))
}

/// Lists the tensors of a checkpoint by name, whatever their element types, without reading their data.
///
/// # Errors
/// [`CheckpointError`] if a shard is missing or malformed.
pub fn list(dir: &Path) -> Result<Vec<TensorInfo>, CheckpointError> {
    Ok(Shards::open(dir)?.list())
}
