//! `moe.experts`.

use super::sm120::Fp4;
use super::{Moe, SHARED_BYTES};
use crate::failed;
use crate::gemm::{FEW_ROWS, TILE, TILE_THREADS, few_threads};
use crate::stream;
use crate::workspace::{Workspace, chunks};
use hotseam_sdk::abi::{Batch, ExpertRef, ExpertsArgs};
use hotseam_sdk::{Ctx, Error, Result};

/// Pairs of an expert, on average, from which on tiles pay.
const MANY_PAIRS: u32 = 32;
/// Most pairs of a chunk of rows: a grid has no more blocks in y.
const MOST_PAIRS: u32 = 65_535;
/// Channels of a block of the sum.
const SUM_THREADS: u32 = 256;

/// `ExpertsParams` of `cuda/moe.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Params {
    args: ExpertsArgs,
    batch: Batch,
    row_begin: u32,
    rows: u32,
    inter: u32,
    tile_pairs: u32,
    order: u64,
    tiles: u64,
    inner: u64,
    results: u64,
}

/// Who multiplies few rows.
#[derive(Clone, Copy)]
enum Few<'a> {
    /// Kernels for weights in FP4.
    Fp4(&'a Fp4),
    /// Those whose weights stream.
    Stream,
    /// Those for weights of any format and place.
    Any,
}

/// Whether weights of all experts can stream.
fn streams(a: &ExpertsArgs, experts: &[ExpertRef], inter: u32) -> bool {
    let hidden = a.x.shape[1];
    stream::aligned(a.x.data)
        && experts.iter().all(|e| {
            e.w1.format == e.w3.format
                && stream::serves(&e.w1, hidden)
                && stream::serves(&e.w3, hidden)
                && stream::serves(&e.w2, i64::from(inter))
        })
}

impl Moe {
    /// `moe.experts`. The rows are taken in as many chunks as the workspace asks for.
    ///
    /// # Errors
    /// If the workspace does not hold one row, there are more experts than shared memory takes counters of, or the driver
    /// refuses.
    ///
    /// # Safety
    /// The arguments are those of a call on a device, checked by the SDK's shim.
    pub unsafe fn experts(&self, ctx: &Ctx, a: &ExpertsArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.experts_with(ctx, a, batch, None) }
    }

    /// As [`Self::experts`], with other products of few rows.
    ///
    /// # Safety
    /// As [`Self::experts`]; weights are such as `fp4` serves.
    pub(super) unsafe fn experts_with(
        &self,
        ctx: &Ctx,
        a: &ExpertsArgs,
        batch: &Batch,
        fp4: Option<&Fp4>,
    ) -> Result<()> {
        if batch.n_rows == 0 {
            return Ok(());
        }
        if a.n_experts > SHARED_BYTES / 4 {
            return Err(Error::argument(format!(
                "{} experts, this variant counts at most {}",
                a.n_experts,
                SHARED_BYTES / 4
            )));
        }
        let experts = match a.n_experts {
            0 => &[][..],
            // SAFETY: the array is the host's and has `n_experts` members.
            n => unsafe { std::slice::from_raw_parts(a.experts, n as usize) },
        };
        let inter = experts.first().map_or(0, |e| e.w1.data.shape[0] as u32);
        let hidden = a.x.shape[1] as u32;
        let few = match fp4 {
            Some(fp4) => Few::Fp4(fp4),
            None if streams(a, experts, inter) => Few::Stream,
            None => Few::Any,
        };
        // A pair has its inner values, its result, a place in the order and at most one tile of three numbers.
        let of_pair = 4 * (u64::from(inter) + u64::from(hidden) + 4);
        let mut workspace = Workspace::of(ctx);
        let most =
            workspace.units(of_pair * u64::from(a.topk), 4, batch.n_rows)?.min(MOST_PAIRS / a.topk.max(1));
        let pairs = u64::from(most) * u64::from(a.topk);
        let params = Params {
            args: *a,
            batch: *batch,
            row_begin: 0,
            rows: 0,
            inter,
            tile_pairs: FEW_ROWS,
            order: workspace.take(4 * pairs)?,
            tiles: workspace.take(4 * (1 + 3 * pairs))?,
            inner: workspace.take(4 * pairs * u64::from(inter))?,
            results: workspace.take(4 * pairs * u64::from(hidden))?,
        };
        for (row_begin, rows) in chunks(batch.n_rows, most) {
            let params = Params { row_begin, rows, ..params };
            // SAFETY: the caller's contract, and the parts of the workspace have room for the chunk.
            unsafe { self.chunk(ctx.stream(), params, hidden, few)? };
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::experts`], for the rows that `params` names.
    unsafe fn chunk(&self, queue: u64, mut params: Params, hidden: u32, few: Few<'_>) -> Result<()> {
        let (topk, n, rows, inter) = (params.args.topk, params.args.n_experts, params.rows, params.inter);
        let pairs = rows * topk;
        let many = pairs >= MANY_PAIRS.saturating_mul(n);
        params.tile_pairs = if many { TILE } else { FEW_ROWS };
        let mut tiles = pairs.min(pairs / params.tile_pairs + n);
        if rows == 1 {
            // The pairs of a row have experts of their own: there is nothing to group.
            (params.order, params.tile_pairs, tiles) = (0, 1, topk);
        }
        // SAFETY: the caller's contract; the struct is the kernels'.
        let launch = |kernel: &hotseam_cuda::Kernel, grid, threads, shared| unsafe {
            kernel.launch_early(queue, grid, threads, shared, &params).map_err(failed)
        };
        if n > 0 && pairs > 0 {
            if rows > 1 {
                let warps = (SHARED_BYTES / (4 * n)).clamp(1, 32).min(pairs.div_ceil(32));
                launch(&self.plan, [1, 1, 1], 32 * warps, 4 * n * warps)?;
            }
            if many && rows > 1 {
                launch(&self.up_many, [inter.div_ceil(TILE / 2), tiles, 1], TILE_THREADS, 0)?;
                launch(&self.down_many, [hidden.div_ceil(TILE), tiles, 1], TILE_THREADS, 0)?;
            } else {
                match few {
                    // SAFETY: the caller's contract.
                    Few::Fp4(fp4) => unsafe { fp4.products(queue, &params, [inter, hidden], tiles)? },
                    Few::Stream => {
                        let grid = |outputs: u32, of_block| [outputs.div_ceil(of_block), tiles, 1];
                        let (up, down) = (2 * stream::OUTPUTS, 4 * stream::OUTPUTS);
                        launch(&self.up_stream, grid(inter, up), stream::THREADS, 0)?;
                        launch(&self.down_stream, grid(hidden, down), stream::THREADS, 0)?;
                    }
                    Few::Any => {
                        let (up, down) = (few_threads(2 * inter), few_threads(hidden));
                        launch(&self.up_few, [inter.div_ceil(up / 32), tiles, 1], up, 0)?;
                        launch(&self.down_few, [hidden.div_ceil(down / 32 * 2), tiles, 1], down, 0)?;
                    }
                }
            }
        }
        launch(&self.sum, [hidden.div_ceil(SUM_THREADS), rows, 1], SUM_THREADS, 0)
    }
}
