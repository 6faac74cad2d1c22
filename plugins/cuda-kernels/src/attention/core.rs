//! `attention.core`.

use super::Attention;
use crate::failed;
use crate::pools::{most_entries, served};
use crate::workspace::{Workspace, chunks};
use hotseam_cuda::Kernel;
use hotseam_sdk::abi::{Batch, CoreArgs, PoolRef, layout};
use hotseam_sdk::{Ctx, Error, Result};

/// Heads of a block.
const HEADS: u32 = 16;
/// Keys that are looked up at once; a part of a row's keys is a multiple of it.
const STRIDE: u32 = 64;
/// Most parts of a row.
const PARTS: u32 = 32;
/// Most dimensions of a head.
const MOST_DIM: u32 = 512;
/// Threads of a block in f32.
const THREADS: u32 = 256;
/// Threads of a block that joins parts, whose warps have a row and head each.
const JOIN_THREADS: u32 = 128;
/// Dimensions of a warp on tensor cores.
const MMA_SLICE: u32 = 64;
/// Most warps of a block on tensor cores.
pub(super) const MMA_WARPS: u32 = MOST_DIM / MMA_SLICE;
/// Blocks that occupy a device; with fewer, the parts of a row go to blocks of their own.
const BLOCKS: u32 = 256;
/// Most rows of a launch: a grid has no more blocks in z.
const MOST_ROWS: u32 = 65_535;

/// `CoreParams` of `cuda/core.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) args: CoreArgs,
    pub(super) batch: Batch,
    pub(super) partial: u64,
    pub(super) first_row: u32,
    pub(super) rows: u32,
    pub(super) parts: u32,
}

/// Bytes of shared memory of a block of so many warps on tensor cores: `MMA_SHARED` of `cuda/core_mma.cuh`.
pub(super) const fn mma_shared(warps: u32) -> u32 {
    let (queries, keys, scores) = (MMA_SLICE / 16 * 2 * 32 * 4, 32 * (MMA_SLICE / 2 + 4), HEADS * (32 + 8));
    // Of the block: two addresses a key, weights in two bf16 numbers, and three numbers a head.
    warps * 4 * (queries + keys + scores) + 16 * STRIDE + 4 * HEADS * (32 + 8) + 12 * HEADS
}

/// Whether the entries of a pool are bf16 values.
fn is_bf16(pool: &PoolRef) -> bool {
    matches!(pool.layout, layout::KV_BF16 | layout::KV_FP8_DS_MLA)
}

impl Attention {
    /// `attention.core`. Entries in bf16 and fp8 go through tensor cores, with queries and weights in two bf16 numbers each; entries in
    /// f32 do not. The bits of a row do not depend on the other rows. Outputs of padded rows are not written.
    ///
    /// # Errors
    /// If heads have a dimension that the kernels do not serve, the workspace is too small, or the driver refuses.
    ///
    /// # Safety
    /// As [`Self::store`].
    pub unsafe fn core(&self, ctx: &Ctx, a: &CoreArgs, batch: &Batch) -> Result<()> {
        served(&a.swa, "swa")?;
        let (heads, dim) = (a.q.shape[1] as u32, a.q.shape[2] as u32);
        if dim > MOST_DIM {
            return Err(Error::unsupported(format!(
                "heads of {dim} values; this variant serves up to {MOST_DIM}"
            )));
        }
        let mut mma = is_bf16(&a.swa) && dim.is_multiple_of(MMA_SLICE);
        let mut keys = a.window.min(a.rope.cos.shape[0] as u32);
        if a.ratio > 0 {
            served(&a.entries, "entries")?;
            mma &= is_bf16(&a.entries);
            keys += match a.ids.is_null() {
                true => most_entries(&a.entries, a.rope.cos.shape[0], a.ratio),
                false => a.ids_width,
            };
        }
        let kernel = match mma {
            true => (&self.core_mma, 32 * (dim / MMA_SLICE), mma_shared(dim / MMA_SLICE)),
            false => (&self.core, THREADS, 0),
        };
        let parts = keys.div_ceil(STRIDE).clamp(1, PARTS);
        let mut params = Params { args: *a, batch: *batch, partial: 0, first_row: 0, rows: 0, parts };
        let mut most = MOST_ROWS;
        if parts > 1 && batch.n_rows.saturating_mul(heads.div_ceil(HEADS)) < BLOCKS {
            // Of a part: its sums, its largest score and its weight.
            let of_row = u64::from(parts) * u64::from(heads) * (u64::from(dim) + 2) * 4;
            let mut workspace = Workspace::of(ctx);
            most = workspace.units(of_row, 1, batch.n_rows.max(1))?;
            params.partial = workspace.take(u64::from(most) * of_row)?;
        }
        for (first_row, rows) in chunks(batch.n_rows, most) {
            // SAFETY: the caller's contract, and the workspace has room for the parts of these rows.
            unsafe { self.rows(ctx.stream(), kernel, &Params { first_row, rows, ..params })? };
        }
        Ok(())
    }

    /// The rows that `params` names; `kernel` with its threads and its shared memory.
    ///
    /// # Safety
    /// As [`Self::core`].
    unsafe fn rows(&self, stream: u64, kernel: (&Kernel, u32, u32), params: &Params) -> Result<()> {
        let (heads, alone) = (params.args.q.shape[1] as u32, params.partial == 0);
        let (kernel, threads, shared) = kernel;
        let grid = [heads.div_ceil(HEADS), if alone { 1 } else { params.parts }, params.rows];
        // SAFETY: the caller's contract; the struct is the kernels'.
        unsafe {
            kernel.launch_early(stream, grid, threads, shared, params).map_err(failed)?;
            match alone {
                true => Ok(()),
                false => {
                    let grid = [(params.rows * heads).div_ceil(JOIN_THREADS / 32), 1, 1];
                    self.core_join.launch_early(stream, grid, JOIN_THREADS, 0, params).map_err(failed)
                }
            }
        }
    }
}
