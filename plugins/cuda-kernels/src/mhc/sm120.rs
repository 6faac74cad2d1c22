//! The patched `mhc.pre` and `mhc.post` of SM120; `cuda/mhc_sm120.cu` has the kernels' side.

use crate::failed;
use crate::images::MHC_SM120;
use crate::workspace::{Workspace, chunks};
use hotseam_cuda::{Kernel, Module};
use hotseam_sdk::abi::{Batch, MhcPostArgs, MhcPreArgs};
use hotseam_sdk::{Ctx, Error, Result};

/// Threads of every block.
const THREADS: u32 = 128;
/// Rows and channels of a block of the products.
const MIX_ROWS: u32 = 16;
const MIX_SPLIT: u32 = 256;
/// Channels that a block collapses or expands.
const SLICE: u32 = 4 * THREADS;
/// Most rows of a launch: a grid has no more blocks in y.
const MOST_ROWS: u32 = 65_535;
/// Numbers of streams that have kernels.
const STREAMS: [u32; 3] = [1, 2, 4];

/// `MixParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MixParams {
    streams: u64,
    weight: u64,
    partials: u64,
    width: i64,
    rows: u32,
    splits: u32,
}

/// `PreParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PreParams {
    args: MhcPreArgs,
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

/// Kernels for a number of streams.
#[derive(Debug)]
struct Form {
    mix: Kernel,
    pre: Kernel,
    post: Kernel,
}

/// The kernels, loaded into the current context.
#[derive(Debug)]
pub struct Sm120([Form; STREAMS.len()]);

impl Sm120 {
    /// Loads them. May synchronise the device.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load() -> Result<Self> {
        let module = Module::load(MHC_SM120).map_err(failed)?;
        let form = |streams: u32| {
            let kernel =
                |name: &str| module.kernel(&format!("hotseam_mhc_sm120_{name}_{streams}")).map_err(failed);
            Ok(Form { mix: kernel("mix")?, pre: kernel("pre")?, post: kernel("post")? })
        };
        let [one, two, four] = STREAMS.map(form);
        Ok(Self([one?, two?, four?]))
    }

    /// The kernels for so many streams.
    fn form(&self, streams: i64) -> Result<&Form> {
        match STREAMS.iter().position(|have| i64::from(*have) == streams) {
            Some(i) => Ok(&self.0[i]),
            None => Err(Error::unsupported(format!(
                "{streams} streams; mhc/cuda-sm120 serves 1, 2 or 4. Use mhc/cuda-stock."
            ))),
        }
    }

    /// `mhc.pre` without the norm that follows. The bits of a row do not depend on the other rows. Padded rows are left alone.
    ///
    /// # Errors
    /// If there are not 1, 2 or 4 streams, the workspace does not hold one row, or the driver refuses.
    ///
    /// # Safety
    /// The arguments are those of a call on a device, checked by the SDK's shim.
    pub unsafe fn pre(&self, ctx: &Ctx, a: &MhcPreArgs, batch: &Batch) -> Result<()> {
        let form = self.form(a.streams.shape[1])?;
        if batch.n_rows == 0 {
            return Ok(());
        }
        let (outputs, width) = (a.fn_weight.shape[0] as u64, a.fn_weight.shape[1]);
        let splits = (width as u64).div_ceil(u64::from(MIX_SPLIT)) as u32;
        let of_row = 4 * u64::from(splits) * (outputs + 1);
        let mut workspace = Workspace::of(ctx);
        let most = workspace.units(of_row, 1, batch.n_rows.min(MOST_ROWS))?;
        let partials = workspace.take(of_row * u64::from(most))?;
        let blocks = 1 + (a.streams.shape[2] as u32).div_ceil(SLICE);
        for (row_begin, rows) in chunks(batch.n_rows, most) {
            let mix = MixParams {
                streams: a.streams.data as u64 + u64::from(row_begin) * width as u64 * 4,
                weight: a.fn_weight.data as u64,
                partials,
                width,
                rows,
                splits,
            };
            let params = PreParams { args: *a, batch: *batch, partials, row_begin, splits };
            // SAFETY: the caller's contract; the structs are the kernels', and the partial sums lie in the workspace.
            unsafe {
                let grid = [splits, rows.div_ceil(MIX_ROWS), 1];
                form.mix.launch_early(ctx.stream(), grid, THREADS, 0, &mix).map_err(failed)?;
                form.pre
                    .launch_early(ctx.stream(), [blocks, rows, 1], THREADS, 0, &params)
                    .map_err(failed)?;
            }
        }
        Ok(())
    }

    /// `mhc.post`, in place or not. Padded rows are left alone.
    ///
    /// # Errors
    /// If there are not 1, 2 or 4 streams, or the driver refuses.
    ///
    /// # Safety
    /// As [`Self::pre`].
    pub unsafe fn post(&self, ctx: &Ctx, a: &MhcPostArgs, batch: &Batch) -> Result<()> {
        let form = self.form(a.streams.shape[1])?;
        let slices = (a.streams.shape[2] as u32).div_ceil(SLICE);
        let params = PostParams { args: *a, batch: *batch };
        // SAFETY: the caller's contract; the struct is the kernel's.
        unsafe {
            form.post
                .launch_early(ctx.stream(), [slices, batch.n_rows, 1], THREADS, 0, &params)
                .map_err(failed)
        }
    }
}
