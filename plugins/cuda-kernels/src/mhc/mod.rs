//! `mhc.pre`, `mhc.post` and `mhc.head`.

pub mod sm120;

use crate::failed;
use crate::images::MHC;
use crate::workspace::{Workspace, chunks};
use hotseam_cuda::{Kernel, Module};
use hotseam_sdk::abi::{Batch, MhcHeadArgs, MhcPostArgs, MhcPreArgs, TensorRef};
use hotseam_sdk::{Ctx, Result};

/// Threads of every block but those of the products of few rows, and the channels that it takes in a step.
const THREADS: u32 = 256;
const SLICE: u32 = 4 * THREADS;
/// Threads of a block of the products of few rows, so that many share a row, and what few are.
const FEW_THREADS: u32 = 64;
const FEW_ROWS: u32 = 64;
/// Rows of a block of the products, if there are that many.
const MIX_ROWS: u32 = 4;
/// Blocks that occupy a device: two for each multiprocessor of an H200.
const BLOCKS: u32 = 264;
/// Most rows of a chunk: a grid has no more blocks in y.
const MOST_ROWS: u32 = 65_535;

/// `MixParams` of `cuda/mhc.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MixParams {
    streams: u64,
    weight: u64,
    partials: u64,
    width: i64,
    rows: u32,
    outputs: u32,
    splits: u32,
    block_rows: u32,
}

/// `PreParams` and `HeadParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GateParams<A> {
    args: A,
    batch: Batch,
    partials: u64,
    row_begin: u32,
    splits: u32,
}

/// `PostParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PostParams {
    args: MhcPostArgs,
    batch: Batch,
}

/// The kernels of the seam, loaded into the current context.
#[derive(Debug)]
pub struct Mhc {
    mix: Kernel,
    pre: Kernel,
    head: Kernel,
    post: Kernel,
}

impl Mhc {
    /// Loads them. May synchronise the device.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load() -> Result<Self> {
        let module = Module::load(MHC).map_err(failed)?;
        let kernel = |name: &str| module.kernel(&format!("hotseam_mhc_{name}")).map_err(failed);
        Ok(Self { mix: kernel("mix")?, pre: kernel("pre")?, head: kernel("head")?, post: kernel("post")? })
    }

    /// `mhc.pre` without the norm that follows. Padded rows are left alone.
    ///
    /// # Errors
    /// If the workspace does not hold one row, or the driver refuses.
    ///
    /// # Safety
    /// The arguments are those of a call on a device, checked by the SDK's shim.
    pub unsafe fn pre(&self, ctx: &Ctx, a: &MhcPreArgs, batch: &Batch) -> Result<()> {
        let slices = (a.streams.shape[2] as u32).div_ceil(SLICE);
        // SAFETY: the caller's contract.
        unsafe { self.gated(ctx, (&a.streams, &a.fn_weight), *a, batch, &self.pre, 1 + slices) }
    }

    /// `mhc.head`. Padded rows are left alone.
    ///
    /// # Errors
    /// As [`Self::pre`].
    ///
    /// # Safety
    /// As [`Self::pre`].
    pub unsafe fn head(&self, ctx: &Ctx, a: &MhcHeadArgs, batch: &Batch) -> Result<()> {
        let slices = (a.streams.shape[2] as u32).div_ceil(SLICE);
        // SAFETY: the caller's contract.
        unsafe { self.gated(ctx, (&a.streams, &a.fn_weight), *a, batch, &self.head, slices) }
    }

    /// The products of `fn` with the streams, then `gates`, a block for each of `blocks` parts of a row.
    ///
    /// # Safety
    /// As [`Self::pre`]; `gates` takes [`GateParams`] of `args`.
    unsafe fn gated<A: Copy>(
        &self,
        ctx: &Ctx,
        (streams, weight): (&TensorRef, &TensorRef),
        args: A,
        batch: &Batch,
        gates: &Kernel,
        blocks: u32,
    ) -> Result<()> {
        if batch.n_rows == 0 {
            return Ok(());
        }
        let (outputs, width) = (weight.shape[0] as u32, weight.shape[1]);
        let threads = if batch.n_rows <= FEW_ROWS { FEW_THREADS } else { THREADS };
        let steps = (width as u64).div_ceil(u64::from(4 * threads)) as u32;
        let block_rows = if batch.n_rows < MIX_ROWS { 1 } else { MIX_ROWS };
        // The fewer rows, the more blocks share one.
        let splits = (BLOCKS / batch.n_rows.div_ceil(block_rows)).clamp(1, steps);
        let of_row = 4 * u64::from(splits) * u64::from(outputs + 1);
        let mut workspace = Workspace::of(ctx);
        let most = workspace.units(of_row, 1, batch.n_rows.min(MOST_ROWS))?;
        let partials = workspace.take(of_row * u64::from(most))?;
        for (row_begin, rows) in chunks(batch.n_rows, most) {
            let mix = MixParams {
                streams: streams.data as u64 + u64::from(row_begin) * width as u64 * 4,
                weight: weight.data as u64,
                partials,
                width,
                rows,
                outputs,
                splits,
                block_rows,
            };
            let params = GateParams { args, batch: *batch, partials, row_begin, splits };
            // SAFETY: the caller's contract; the structs are the kernels', and the partial sums lie in the workspace.
            unsafe {
                let grid = [splits, rows.div_ceil(block_rows), 1];
                self.mix.launch_early(ctx.stream(), grid, threads, 0, &mix).map_err(failed)?;
                gates.launch_early(ctx.stream(), [blocks, rows, 1], THREADS, 0, &params).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// `mhc.post`, in place or not. Padded rows are left alone.
    ///
    /// # Errors
    /// If the driver refuses.
    ///
    /// # Safety
    /// As [`Self::pre`].
    pub unsafe fn post(&self, ctx: &Ctx, a: &MhcPostArgs, batch: &Batch) -> Result<()> {
        let slices = (a.streams.shape[2] as u32).div_ceil(SLICE);
        let params = PostParams { args: *a, batch: *batch };
        // SAFETY: the caller's contract; the struct is the kernel's.
        unsafe {
            self.post
                .launch_early(ctx.stream(), [slices, batch.n_rows, 1], THREADS, 0, &params)
                .map_err(failed)
        }
    }
}
