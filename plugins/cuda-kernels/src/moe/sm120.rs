//! The patched `moe.experts` of SM120; `cuda/moe_sm120.cu` has the kernels' side.

use super::Moe;
use super::experts::Params;
use crate::failed;
use crate::images::MOE_SM120;
use hotseam_cuda::{Kernel, Module};
use hotseam_sdk::abi::{Batch, ExpertsArgs, WeightRef, weight_format};
use hotseam_sdk::{Ctx, Result};

/// Threads of a block, and outputs of all its warps.
const THREADS: u32 = 128;
const OUTPUTS: u32 = 64;
/// What the inputs of a matrix are a multiple of.
const GROUP: i64 = 32;

/// Products with weights in FP4 for few rows.
#[derive(Debug)]
pub(super) struct Fp4 {
    up: Kernel,
    down: Kernel,
}

impl Fp4 {
    /// The inner values and the results of `tiles` tiles of at most eight pairs.
    ///
    /// # Safety
    /// As [`Moe::experts`], and weights are such as [`serves`] tells.
    pub(super) unsafe fn products(
        &self,
        stream: u64,
        params: &Params,
        [inter, hidden]: [u32; 2],
        tiles: u32,
    ) -> Result<()> {
        // SAFETY: the caller's contract; the struct is the kernels'.
        unsafe {
            let grid = |outputs: u32| [outputs.div_ceil(OUTPUTS), tiles, 1];
            self.up.launch_early(stream, grid(inter), THREADS, 0, params).map_err(failed)?;
            self.down.launch_early(stream, grid(hidden), THREADS, 0, params).map_err(failed)
        }
    }
}

/// Whether the kernels read a matrix.
fn serves(w: &WeightRef) -> bool {
    // A row of codes has two in a byte.
    matches!(w.format, weight_format::MXFP4 | weight_format::NVFP4) && (2 * w.data.shape[1]) % GROUP == 0
}

/// The kernels, loaded into the current context.
#[derive(Debug)]
pub struct Sm120 {
    stock: Moe,
    fp4: Fp4,
}

impl Sm120 {
    /// Loads them. May synchronise the device.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load() -> Result<Self> {
        let module = Module::load(MOE_SM120).map_err(failed)?;
        let kernel = |name: &str| module.kernel(&format!("hotseam_moe_sm120_{name}")).map_err(failed);
        Ok(Self { stock: Moe::load()?, fp4: Fp4 { up: kernel("up")?, down: kernel("down")? } })
    }

    /// `moe.experts`. Batches in which an expert has many rows, and weights other than MXFP4 and NVFP4 with a multiple of 32
    /// inputs, go the stock way.
    ///
    /// # Errors
    /// As [`Moe::experts`].
    ///
    /// # Safety
    /// As [`Moe::experts`].
    pub unsafe fn experts(&self, ctx: &Ctx, a: &ExpertsArgs, batch: &Batch) -> Result<()> {
        let experts = match a.n_experts {
            0 => &[][..],
            // SAFETY: the array is the host's and has `n_experts` members.
            n => unsafe { std::slice::from_raw_parts(a.experts, n as usize) },
        };
        let fp4 = experts.iter().all(|e| [&e.w1, &e.w2, &e.w3].into_iter().all(serves));
        // SAFETY: the caller's contract.
        unsafe { self.stock.experts_with(ctx, a, batch, fp4.then_some(&self.fp4)) }
    }
}
