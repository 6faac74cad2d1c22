//! `indexer.compress` and `indexer.select`.

mod ragged;
mod select;
pub mod sm120;

use crate::images::INDEXER;
use crate::{compress, failed};
use hotseam_cuda::{Kernel, Module};
use hotseam_sdk::abi::{Batch, CompressArgs, layout};
use hotseam_sdk::{Ctx, Result};
pub use ragged::{Choose, Scored};

/// How index keys are kept, as the option `keys` of a variant that serves all layouts.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keys {
    /// As they are computed.
    F32,
    /// Rounded to bf16.
    Bf16,
    /// Rotated and rounded to e4m3 with one scale a key.
    Fp8,
    /// Rotated and rounded to e2m1 with a power of two for every 32 values.
    Fp4,
}

impl Keys {
    /// One of [`layout`].
    pub fn layout(self) -> u32 {
        match self {
            Self::F32 => layout::KEY_F32,
            Self::Bf16 => layout::KEY_BF16,
            Self::Fp8 => layout::KEY_FP8_HADAMARD,
            Self::Fp4 => layout::KEY_FP4_HADAMARD,
        }
    }
}

/// The kernels of the seam, loaded into the current context.
#[derive(Debug)]
pub struct Indexer {
    compress: Kernel,
    project_few: Kernel,
    project_stream: Kernel,
    project_many: Kernel,
    queries: Kernel,
    scores: Kernel,
    scores_mma: Kernel,
    choose: Kernel,
    ragged: Kernel,
}

impl Indexer {
    /// Loads them. May synchronise the device.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load() -> Result<Self> {
        let module = Module::load(INDEXER).map_err(failed)?;
        let kernel = |name: &str| module.kernel(&format!("hotseam_indexer_{name}")).map_err(failed);
        Ok(Self {
            compress: kernel("compress")?,
            project_few: kernel("project_few")?,
            project_stream: kernel("project_stream")?,
            project_many: kernel("project_many")?,
            queries: kernel("queries")?,
            scores: kernel("scores")?,
            scores_mma: kernel("scores_mma")?,
            choose: kernel("choose")?,
            ragged: kernel("ragged")?,
        })
    }

    /// `indexer.compress`. An entry whose sources are all absent is NaN, as the softmax of nothing is.
    ///
    /// # Errors
    /// If keys have a dimension that the kernels do not serve, or the driver refuses.
    ///
    /// # Safety
    /// The arguments are those of a call on a device, checked by the SDK's shim.
    pub unsafe fn compress(&self, ctx: &Ctx, a: &CompressArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { compress::compress(&self.compress, ctx, a, batch) }
    }
}
