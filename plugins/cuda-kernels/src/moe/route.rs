//! `moe.route`.

use super::{Moe, SHARED_BYTES};
use crate::failed;
use crate::gemm::{FEW_ROWS, TILE, TILE_THREADS, few_threads, is_few};
use crate::stream;
use crate::workspace::{Workspace, chunks};
use hotseam_sdk::abi::{Batch, RouteArgs, WeightRef, dtype, weight_format};
use hotseam_sdk::{Ctx, Error, Result};

/// `RouteParams` of `cuda/moe.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    args: RouteArgs,
    batch: Batch,
    scores: u64,
    row_begin: u32,
    rows: u32,
}

impl Moe {
    /// `moe.route`. The weights are not multiplied by `routed_scale`. Ties of `s + bias` go to the lower expert, a NaN is
    /// chosen only when there is no number left. What a table sends to an expert that does not exist gets id -1 and weight 0.
    ///
    /// # Errors
    /// If there are more experts than shared memory takes scores of, or the driver refuses.
    ///
    /// # Safety
    /// The arguments are those of a call on a device, checked by the SDK's shim.
    pub unsafe fn route(&self, ctx: &Ctx, a: &RouteArgs, batch: &Batch) -> Result<()> {
        let (rows, n) = (batch.n_rows, a.gate.shape[0] as u32);
        if rows == 0 || a.topk == 0 {
            return Ok(());
        }
        let params = Params { args: *a, batch: *batch, scores: 0, row_begin: 0, rows };
        if !a.tid2eid.data.is_null() {
            // SAFETY: the caller's contract; the struct is the kernel's.
            return unsafe {
                self.hash
                    .launch_early(ctx.stream(), [rows, 1, 1], 32 * a.topk.min(8), 0, &params)
                    .map_err(failed)
            };
        }
        // Each warp of `choose` has the scores of its row in shared memory.
        let warps = (SHARED_BYTES / (4 * n)).min(4);
        if warps == 0 {
            return Err(Error::argument(format!(
                "{n} experts, this variant chooses among at most {}",
                SHARED_BYTES / 4
            )));
        }
        let gate = WeightRef::plain(weight_format::BF16, a.gate);
        let streams = a.gate.dtype == dtype::BF16
            && stream::serves(&gate, a.gate.shape[1])
            && stream::aligned(a.x.data);
        let mut workspace = Workspace::of(ctx);
        let most = workspace.units(4 * u64::from(n), 1, rows)?;
        let scores = workspace.take(u64::from(most) * u64::from(n) * 4)?;
        for (row_begin, rows) in chunks(rows, most) {
            let params = Params { scores, row_begin, rows, ..params };
            // SAFETY: the caller's contract; the structs are the kernels', and the scores lie in the workspace.
            unsafe {
                match is_few(rows, n) {
                    _ if streams && rows <= stream::MOST_ROWS => {
                        let grid = [n.div_ceil(stream::OUTPUTS), rows.div_ceil(stream::ROWS), 1];
                        self.scores_stream.launch_early(ctx.stream(), grid, stream::THREADS, 0, &params)
                    }
                    true => {
                        let threads = few_threads(n);
                        let grid = [n.div_ceil(threads / 32 * 2), rows.div_ceil(FEW_ROWS), 1];
                        self.scores_few.launch_early(ctx.stream(), grid, threads, 0, &params)
                    }
                    false => {
                        let grid = [n.div_ceil(TILE), rows.div_ceil(TILE), 1];
                        self.scores_many.launch_early(ctx.stream(), grid, TILE_THREADS, 0, &params)
                    }
                }
                .map_err(failed)?;
                let grid = [rows.div_ceil(warps), 1, 1];
                self.choose
                    .launch_early(ctx.stream(), grid, 32 * warps, 4 * n * warps, &params)
                    .map_err(failed)?;
            }
        }
        Ok(())
    }
}
