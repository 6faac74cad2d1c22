//! `attention.compress` and `indexer.compress`, whose kernels are the same but for their module.

use crate::failed;
use crate::pools::served;
use hotseam_cuda::Kernel;
use hotseam_sdk::abi::{Batch, CompressArgs};
use hotseam_sdk::{Ctx, Result};

/// Threads of a block, which makes an entry or keeps a row for each of its warps.
const THREADS: u32 = 512;

/// `CompressParams` of `cuda/compress.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    args: CompressArgs,
    batch: Batch,
}

/// Closes groups of tokens into entries, and keeps the rows that later groups need.
///
/// # Errors
/// If entries have a dimension that the kernels do not serve, or the driver refuses.
///
/// # Safety
/// The arguments are those of a call on a device, checked by the SDK's shim; `kernel` is a compress kernel.
pub(crate) unsafe fn compress(kernel: &Kernel, ctx: &Ctx, a: &CompressArgs, batch: &Batch) -> Result<()> {
    served(&a.pool, "pool")?;
    let blocks = a.n_entries + batch.n_rows.div_ceil(THREADS / 32);
    let params = Params { args: *a, batch: *batch };
    // SAFETY: the caller's contract; the struct is the kernel's.
    unsafe { kernel.launch_early(ctx.stream(), [blocks, 1, 1], THREADS, 0, &params).map_err(failed) }
}
