//! Geometry and weights of a DeepSeek-V4 model, rope tables.
//!
//! Plain data that every other host crate reads: [`ModelConfig`] says how large everything is, [`Weights`] holds the
//! tensors by their role, each [`Matrix`] in the format of its checkpoint, [`RopeTable`] holds cos and sin. Nothing here
//! knows a file, a tensor name or a plugin: `hotseam-checkpoint` fills these types from a directory.

#[cfg(target_endian = "big")]
compile_error!("weights are mapped from little-endian files; big-endian machines are not supported");

mod config;
mod matrix;
mod part;
mod rope;
mod shard;
mod tensor;
mod weights;

/// The number formats of weights.
pub mod number {
    pub use hotseam_ops::formats::{e2m1, ue8m0};
    pub use hotseam_ops::{bf16, e4m3};
}

pub use config::{ConfigError, LayerClass, ModelConfig, Yarn};
pub use matrix::{FP8_BLOCK, Format, MXFP4_GROUP, Matrix, MatrixError, NVFP4_GROUP};
pub use part::PartError;
pub use rope::{RopeKind, RopeTable};
pub use shard::{ShardError, part};
pub use tensor::{DType, Tensor, TensorError};
pub use weights::{Compressor, Expert, Hc, Indexer, LayerWeights, Weights};

/// Everything a running model needs: geometry, weights and both rope tables.
#[derive(Debug, Clone)]
pub struct Model {
    /// Geometry.
    pub config: ModelConfig,
    /// Tensors, by role.
    pub weights: Weights,
    /// Rope of window layers: base `rope_theta`, no YaRN.
    pub rope_main: RopeTable,
    /// Rope of csa and hca layers (their q, window keys, compressed entries and indexer): base `compress_rope_theta`,
    /// with YaRN when the configuration has it.
    pub rope_compress: RopeTable,
}

impl Model {
    /// Puts a model together; the rope tables cover positions `0..max_positions`.
    pub fn new(config: ModelConfig, weights: Weights, max_positions: usize) -> Self {
        let rope_main = RopeTable::new(&config, RopeKind::Main, max_positions);
        let rope_compress = RopeTable::new(&config, RopeKind::Compress, max_positions);
        Self { config, weights, rope_main, rope_compress }
    }

    /// Both rope tables.
    pub fn ropes(&self) -> [&RopeTable; 2] {
        [&self.rope_main, &self.rope_compress]
    }

    /// Both rope tables.
    pub fn ropes_mut(&mut self) -> [&mut RopeTable; 2] {
        [&mut self.rope_main, &mut self.rope_compress]
    }

    /// Rope tables of a layer. Panics if `layer >= num_hidden_layers`.
    pub fn rope(&self, layer: usize) -> &RopeTable {
        match self.config.class(layer) {
            LayerClass::Window => &self.rope_main,
            LayerClass::Csa | LayerClass::Hca => &self.rope_compress,
        }
    }
}
