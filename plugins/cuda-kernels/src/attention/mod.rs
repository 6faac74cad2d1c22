//! `attention.store`, `attention.compress` and `attention.core`.

mod core;
pub mod sm120;

use crate::images::ATTENTION;
use crate::pools::served;
use crate::{compress, failed};
use hotseam_cuda::{Kernel, Module};
use hotseam_sdk::abi::{Batch, CompressArgs, StoreArgs};
use hotseam_sdk::{Ctx, Result};

/// Threads of a block of `store`, whose warps have a row each.
const STORE_THREADS: u32 = 128;

/// The kernels of the seam, loaded into the current context.
#[derive(Debug)]
pub struct Attention {
    store: Kernel,
    compress: Kernel,
    core: Kernel,
    core_mma: Kernel,
    core_join: Kernel,
}

/// `StoreParams` of `cuda/attention.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct StoreParams {
    args: StoreArgs,
    batch: Batch,
}

impl Attention {
    /// Loads them. May synchronise the device.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load() -> Result<Self> {
        let module = Module::load(ATTENTION).map_err(failed)?;
        let kernel = |name: &str| module.kernel(&format!("hotseam_attention_{name}")).map_err(failed);
        let core_mma = kernel("core_mma")?;
        core_mma.allow_shared(core::mma_shared(core::MMA_WARPS)).map_err(failed)?;
        Ok(Self {
            store: kernel("store")?,
            compress: kernel("compress")?,
            core: kernel("core")?,
            core_mma,
            core_join: kernel("core_join")?,
        })
    }

    /// `attention.store`.
    ///
    /// # Errors
    /// If entries have a dimension that the kernels do not serve, or the driver refuses.
    ///
    /// # Safety
    /// The arguments are those of a call on a device, checked by the SDK's shim.
    pub unsafe fn store(&self, ctx: &Ctx, a: &StoreArgs, batch: &Batch) -> Result<()> {
        served(&a.pool, "pool")?;
        let params = StoreParams { args: *a, batch: *batch };
        let grid = [batch.n_rows.div_ceil(STORE_THREADS / 32), 1, 1];
        // SAFETY: the caller's contract; the struct is the kernel's.
        unsafe { self.store.launch_early(ctx.stream(), grid, STORE_THREADS, 0, &params).map_err(failed) }
    }

    /// `attention.compress`. An entry whose sources are all absent is NaN, as the softmax of nothing is.
    ///
    /// # Errors
    /// If entries have a dimension that the kernels do not serve, or the driver refuses.
    ///
    /// # Safety
    /// As [`Self::store`].
    pub unsafe fn compress(&self, ctx: &Ctx, a: &CompressArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { compress::compress(&self.compress, ctx, a, batch) }
    }
}
