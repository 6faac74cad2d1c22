//! The patched `indexer.select` of SM120; `cuda/indexer_sm120.cu` has the kernels' side.

use super::Indexer;
use super::select::Params;
use crate::failed;
use crate::images::INDEXER_SM120;
use crate::pools::most_entries;
use crate::workspace::{Workspace, chunks};
use hotseam_cuda::{Kernel, Module};
use hotseam_sdk::abi::{Batch, SelectArgs, layout};
use hotseam_sdk::{Ctx, Error, Result};

/// Threads of every block, and the keys that one takes in a step.
const THREADS: u32 = 256;
const KEYS: u32 = 256;
/// Values of a key.
const DIM: u32 = 128;
/// Most heads, whose queries lie in shared memory.
const MOST_HEADS: u32 = 64;
/// Most entries that a row keeps.
const MOST_KEPT: u32 = 1024;
/// A block goes over so many times the entries that it keeps, or there is nothing to win.
const FACTOR: u32 = 4;
/// Blocks that occupy a device: two for each multiprocessor of an RTX PRO 6000.
const BLOCKS: u32 = 376;
/// Most rows of a launch: a grid has no more blocks in y.
const MOST_ROWS: u32 = 65_535;

/// `PickParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PickParams {
    select: Params,
    candidates: u64,
    counts: u64,
    blocks: u32,
    early_exit: u32,
}

/// The kernels, loaded into the current context.
#[derive(Debug)]
pub struct Sm120 {
    stock: Indexer,
    pick_fp8: Kernel,
    pick_fp4: Kernel,
    merge: Kernel,
    early_exit: bool,
}

impl Sm120 {
    /// Loads them; with `early_exit` a row's entries are gone over up to its last one, else up to the end of its table. May
    /// synchronise the device.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load(early_exit: bool) -> Result<Self> {
        let module = Module::load(INDEXER_SM120).map_err(failed)?;
        let kernel = |name: &str| module.kernel(&format!("hotseam_indexer_sm120_{name}")).map_err(failed);
        Ok(Self {
            stock: Indexer::load()?,
            pick_fp8: kernel("pick_fp8")?,
            pick_fp4: kernel("pick_fp4")?,
            merge: kernel("merge")?,
            early_exit,
        })
    }

    /// `indexer.select` of keys in fp8 or fp4. Ids are written in rising order, ties go to the lower entry. Where all scores are
    /// wanted, where there are few entries, and for keys of other than 128 values or more than 64 heads, it is the stock way.
    ///
    /// # Errors
    /// If keys are of another layout, a row keeps more than 1024 entries, the workspace does not hold a row, or the driver
    /// refuses.
    ///
    /// # Safety
    /// The arguments are those of a call on a device, checked by the SDK's shim.
    pub unsafe fn select(&self, ctx: &Ctx, a: &SelectArgs, batch: &Batch) -> Result<()> {
        let pick = match a.keys.layout {
            layout::KEY_FP8_HADAMARD => &self.pick_fp8,
            layout::KEY_FP4_HADAMARD => &self.pick_fp4,
            other => {
                return Err(Error::unsupported(format!(
                    "keys have layout {other}; indexer/cuda-sm120 serves fp8 and fp4 keys. Use indexer/cuda-stock."
                )));
            }
        };
        if a.topk > MOST_KEPT {
            return Err(Error::unsupported(format!(
                "{} entries to keep a row; indexer/cuda-sm120 keeps up to {MOST_KEPT}. Use indexer/cuda-stock.",
                a.topk
            )));
        }
        let width = most_entries(&a.keys, a.rope.cos.shape[0], a.ratio);
        let plain = !a.scores.is_null() || a.keys.dim != DIM || a.heads > MOST_HEADS;
        if plain || a.topk == 0 || width <= FACTOR * a.topk || batch.n_rows == 0 {
            // SAFETY: the caller's contract.
            return unsafe { self.stock.select(ctx, a, batch) };
        }
        let most_blocks = width.div_ceil(KEYS).div_ceil((FACTOR * a.topk).div_ceil(KEYS));
        let blocks = most_blocks.min(BLOCKS.div_ceil(batch.n_rows));
        let (queries, heads) = (u64::from(a.heads) * u64::from(DIM), u64::from(a.heads));
        let kept = u64::from(blocks) * u64::from(a.topk);
        let mut workspace = Workspace::of(ctx);
        let of_row = 4 * (queries + heads + 2 * kept + u64::from(blocks));
        let rows = workspace.units(of_row, 4, batch.n_rows)?.min(MOST_ROWS);
        let most = u64::from(rows);
        let select = Params {
            args: *a,
            batch: *batch,
            q: workspace.take(4 * most * queries)?,
            weights: workspace.take(4 * most * heads)?,
            scores: 0,
            first_row: 0,
            rows: 0,
            width,
        };
        let mut params = PickParams {
            select,
            candidates: workspace.take(8 * most * kept)?,
            counts: workspace.take(4 * most * u64::from(blocks))?,
            blocks,
            early_exit: self.early_exit.into(),
        };
        // Queries in bf16, which take the most room, and weights.
        let shared = 4 * a.heads.next_multiple_of(8) * (DIM / 2 + 3);
        for (first_row, rows) in chunks(batch.n_rows, rows) {
            (params.select.first_row, params.select.rows) = (first_row, rows);
            // SAFETY: the caller's contract; the structs are the kernels', and the workspace has room for these rows.
            unsafe {
                self.stock.queries(ctx.stream(), &params.select)?;
                pick.launch_early(ctx.stream(), [blocks, rows, 1], THREADS, shared, &params)
                    .map_err(failed)?;
                self.merge.launch_early(ctx.stream(), [rows, 1, 1], THREADS, 0, &params).map_err(failed)?;
            }
        }
        Ok(())
    }
}
