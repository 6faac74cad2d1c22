//! `indexer.select`.

use super::Indexer;
use super::ragged::{Choose, ROW_BYTES, ROW_PARTS, Scored};
use crate::failed;
use crate::gemm::{FEW_ROWS, TILE, TILE_THREADS, few_threads, is_few};
use crate::pools::{most_entries, served};
use crate::stream;
use crate::workspace::{Workspace, chunks};
use hotseam_cuda::Kernel;
use hotseam_sdk::abi::{Batch, SelectArgs, WeightRef, dtype, layout, weight_format};
use hotseam_sdk::{Ctx, Result};

/// Outputs of a warp of the way for few rows.
const FEW_OUTPUTS: u32 = 2;
/// Threads of a block of queries, whose warps have a row and head each.
const QUERY_THREADS: u32 = 128;
/// Threads of a block of scores.
const SCORE_THREADS: u32 = 256;
/// Keys that a block scores at once on tensor cores.
const MMA_KEYS: u32 = 256;
/// What keys of tensor cores are a multiple of, and the most of it.
const MMA_DIM: (u32, u32) = (64, 128);
/// Most heads on tensor cores, whose queries lie in shared memory.
const MMA_HEADS: u32 = 128;
/// Threads of a block that chooses.
const CHOOSE_THREADS: u32 = 512;
/// Blocks of scores of a launch that occupy a device; with more, a block takes several tiles.
const BLOCKS: u32 = 1024;
/// Threads of a block that looks through scores, and the scores that it takes in a step.
const RAGGED_THREADS: u32 = 256;
const RAGGED_EACH: u32 = 4 * RAGGED_THREADS;
/// Most rows of a launch: a grid has no more blocks in y.
const MOST_ROWS: u32 = 65_535;

/// `SelectParams` of `cuda/select.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) args: SelectArgs,
    pub(super) batch: Batch,
    pub(super) q: u64,
    pub(super) weights: u64,
    pub(super) scores: u64,
    pub(super) first_row: u32,
    pub(super) rows: u32,
    pub(super) width: u32,
}

/// `RaggedParams` of `cuda/select_ragged.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RaggedParams {
    select: Params,
    lengths: u64,
    offsets: u64,
}

impl Indexer {
    /// `indexer.select`. Ids are written in rising order, ties go to the lower entry, and an entry that no page is mapped for
    /// scores minus infinity. A row that keeps all its entries is not scored, unless the tap is wanted. Padded rows get -1.
    ///
    /// Scores of keys in bf16, fp8 and fp4 come from tensor cores, exact but for the rounding of queries for bf16 keys.
    ///
    /// # Errors
    /// If keys have a dimension that the kernels do not serve, the workspace does not hold a row, or the driver refuses.
    ///
    /// # Safety
    /// As [`Self::compress`].
    pub unsafe fn select(&self, ctx: &Ctx, a: &SelectArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.select_by(ctx, a, batch, None) }
    }

    /// As [`Self::select`], with the choice among the scores made by `choose`, if there is one. A call in which every row keeps all
    /// its entries has no scores and does not ask it.
    ///
    /// # Errors
    /// As [`Self::select`], and those of `choose`.
    ///
    /// # Safety
    /// As [`Self::compress`].
    pub unsafe fn select_by(
        &self,
        ctx: &Ctx,
        a: &SelectArgs,
        batch: &Batch,
        choose: Option<&dyn Choose>,
    ) -> Result<()> {
        served(&a.keys, "keys")?;
        let (queries, heads) = (u64::from(a.heads) * u64::from(a.keys.dim), u64::from(a.heads));
        let entries = most_entries(&a.keys, a.rope.cos.shape[0], a.ratio);
        let scored = entries > if a.scores.is_null() { a.topk } else { 0 };
        let choose = choose.filter(|_| scored && a.topk > 0);
        let mut params = Params {
            args: *a,
            batch: *batch,
            q: 0,
            weights: 0,
            scores: 0,
            first_row: 0,
            rows: 0,
            // Rows of scores that others read begin where they can read four at once.
            width: if choose.is_some() { entries.next_multiple_of(4) } else { entries },
        };
        let (mut most, mut lengths, mut offsets) = (MOST_ROWS, 0, 0);
        if scored && batch.n_rows > 0 {
            let width = u64::from(params.width);
            let mut workspace = Workspace::of(ctx);
            let of_row = 4 * (queries + heads + width) + choose.map_or(0, |_| ROW_BYTES);
            let parts = 3 + choose.map_or(0, |_| ROW_PARTS);
            most = workspace.units(of_row, parts, batch.n_rows)?.min(MOST_ROWS);
            let rows = u64::from(most);
            params.q = workspace.take(4 * rows * queries)?;
            params.weights = workspace.take(4 * rows * heads)?;
            params.scores = workspace.take(4 * rows * width)?;
            if choose.is_some() {
                (lengths, offsets) = (workspace.take(4 * rows)?, workspace.take(4 * rows)?);
            }
        }
        for (first_row, rows) in chunks(batch.n_rows, most) {
            let params = Params { first_row, rows, ..params };
            // SAFETY: the caller's contract, and the parts of the workspace have room for these rows.
            unsafe {
                if scored {
                    self.score(ctx.stream(), &params)?;
                }
                match choose {
                    Some(choose) => {
                        let scored = self.ragged(ctx.stream(), &params, lengths, offsets)?;
                        choose.choose(ctx, &scored)?;
                    }
                    None => {
                        let grid = [rows, 1, 1];
                        self.choose
                            .launch_early(ctx.stream(), grid, CHOOSE_THREADS, 0, &params)
                            .map_err(failed)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What a [`Choose`] is given of the rows that `params` names.
    ///
    /// # Safety
    /// As [`Self::select`].
    unsafe fn ragged(&self, stream: u64, params: &Params, lengths: u64, offsets: u64) -> Result<Scored> {
        let (args, rows, width) = (&params.args, params.rows, params.width);
        let ragged = RaggedParams { select: *params, lengths, offsets };
        let grid = [width.div_ceil(RAGGED_EACH).min(BLOCKS.div_ceil(rows)), rows, 1];
        // SAFETY: the caller's contract; the struct is the kernel's.
        unsafe { self.ragged.launch_early(stream, grid, RAGGED_THREADS, 0, &ragged).map_err(failed)? };
        let ids = args.ids.wrapping_add(params.first_row as usize * args.topk as usize) as u64;
        let (scores, topk, device) = (params.scores, args.topk, args.x.device_id);
        Ok(Scored { scores, lengths, offsets, ids, rows, width, topk, device })
    }

    /// Queries and head weights of the rows that `params` names.
    ///
    /// # Safety
    /// As [`Self::select`].
    pub(super) unsafe fn queries(&self, stream: u64, params: &Params) -> Result<()> {
        let (a, rows) = (&params.args, params.rows);
        let (heads, dim) = (a.heads, a.keys.dim);
        // SAFETY: the caller's contract; the struct is the kernels'.
        let launch = |kernel: &Kernel, grid, threads, shared| unsafe {
            kernel.launch_early(stream, grid, threads, shared, params).map_err(failed)
        };
        // Outputs of the two matrices go to blocks of their own.
        let blocks = |each: u32| (heads * dim).div_ceil(each) + heads.div_ceil(each);
        let head_weights = WeightRef::plain(weight_format::BF16, a.weights_proj);
        let streams = rows <= stream::MOST_ROWS
            && a.weights_proj.dtype == dtype::BF16
            && stream::serves(&head_weights, a.x.shape[1])
            && stream::serves(&a.wq_b, a.q_lora.shape[1])
            && stream::aligned(a.x.data)
            && stream::aligned(a.q_lora.data);
        if streams {
            let grid = [blocks(stream::OUTPUTS), rows.div_ceil(stream::ROWS), 1];
            launch(&self.project_stream, grid, stream::THREADS, 0)?;
        } else if is_few(rows, heads * dim) {
            let threads = few_threads(heads * dim);
            let grid = [blocks(threads / 32 * FEW_OUTPUTS), rows.div_ceil(FEW_ROWS), 1];
            launch(&self.project_few, grid, threads, 0)?;
        } else {
            launch(&self.project_many, [blocks(TILE), rows.div_ceil(TILE), 1], TILE_THREADS, 0)?;
        }
        let units = (u64::from(rows) * u64::from(heads)).div_ceil(u64::from(QUERY_THREADS / 32)) as u32;
        launch(&self.queries, [units, 1, 1], QUERY_THREADS, 0)
    }

    /// Scores of the rows that `params` names.
    ///
    /// # Safety
    /// As [`Self::select`].
    unsafe fn score(&self, stream: u64, params: &Params) -> Result<()> {
        let (a, rows) = (&params.args, params.rows);
        let (heads, dim) = (a.heads, a.keys.dim);
        // SAFETY: the caller's contract.
        unsafe { self.queries(stream, params)? };
        // SAFETY: the caller's contract; the struct is the kernels'.
        let launch = |kernel: &Kernel, grid, threads, shared| unsafe {
            kernel.launch_early(stream, grid, threads, shared, params).map_err(failed)
        };
        let mma = a.keys.layout != layout::KEY_F32
            && dim.is_multiple_of(MMA_DIM.0)
            && dim <= MMA_DIM.1
            && heads <= MMA_HEADS;
        let keys = match heads {
            _ if mma => MMA_KEYS,
            0..=8 => 512,
            9..=16 => 256,
            _ => 64,
        };
        let tiles = params.width.div_ceil(keys).min(BLOCKS.div_ceil(rows));
        match mma {
            true => {
                let shared = 4 * heads.next_multiple_of(8) * (dim / 2 + 3);
                launch(&self.scores_mma, [tiles, rows, 1], SCORE_THREADS, shared)
            }
            false => launch(&self.scores, [tiles, rows, 1], SCORE_THREADS, 0),
        }
    }
}
