//! The patched `attention.core` of SM120; `cuda/core_sm120.cuh` has the kernels' side.

use super::core::Params;
use crate::failed;
use crate::images::ATTENTION_SM120;
use crate::pools::most_entries;
use crate::workspace::{Workspace, chunks};
use hotseam_cuda::{Kernel, Module};
use hotseam_sdk::abi::{Batch, CoreArgs, PoolRef, layout};
use hotseam_sdk::{Ctx, Error, Result};

/// Heads and threads of a block, and keys of a tile.
const HEADS: u32 = 16;
const THREADS: u32 = 256;
const TILE: u32 = 32;
/// Channels of a thread that joins parts.
const JOIN_CHANNELS: u32 = 4;
/// Blocks that occupy a device: one for each multiprocessor of an RTX PRO 6000.
const BLOCKS: u32 = 188;
/// Most rows of a launch: a grid has no more blocks in z.
const MOST_ROWS: u32 = 65_535;
/// Most parts of a row.
pub const MOST_SPLITS: u32 = 64;

/// `Sm120CoreParams` of `cuda/core_sm120.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sm120Params {
    core: Params,
    splits: u32,
}

/// A form of entries that has a kernel.
#[derive(Debug)]
struct Form {
    layout: u32,
    dim: u32,
    /// Roped values; `None` where they are kept as all others.
    rope: Option<u32>,
    shared: u32,
    kernel: Kernel,
}

/// `sizeof(Sm120Form<DIM, CODES, SCALED>::Shared)`; the bytes of codes count on every device.
const fn shared(dim: u32, codes: u32) -> u32 {
    let keys = TILE * (2 * dim + 16);
    let raw = if codes == 448 { TILE * (codes + 16 + 8) } else { 8 };
    let scores = 4 * 2 * HEADS * (TILE + 4) + 2 * HEADS * (TILE + 8);
    keys + raw + scores + 4 * THREADS / 32 + 12 * HEADS
}

/// The kernels, loaded into the current context.
#[derive(Debug)]
pub struct Sm120 {
    forms: Vec<Form>,
    join: Kernel,
    splits: u32,
}

impl Sm120 {
    /// Loads them, for at most `splits` parts of a row, from 1 to [`MOST_SPLITS`]. May synchronise the device.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load(splits: u32) -> Result<Self> {
        let module = Module::load(ATTENTION_SM120).map_err(failed)?;
        let kernel = |name: &str| module.kernel(&format!("hotseam_attention_sm120_{name}")).map_err(failed);
        let form = |name: &str, layout, dim, rope: Option<u32>| {
            let (kernel, shared) = (kernel(name)?, shared(dim, rope.map_or(0, |rope| dim - rope)));
            kernel.allow_shared(shared).map_err(failed)?;
            Ok(Form { layout, dim, rope, shared, kernel })
        };
        let forms = vec![
            form("bf16_64", layout::KV_BF16, 64, None)?,
            form("bf16_512", layout::KV_BF16, 512, None)?,
            form("fp8_64", layout::KV_FP8_DS_MLA, 64, Some(16))?,
            form("fp8_512", layout::KV_FP8_DS_MLA, 512, Some(64))?,
        ];
        Ok(Self { forms, join: kernel("join")?, splits })
    }

    /// The kernel for entries of a pool.
    fn form(&self, pool: &PoolRef, what: &str) -> Result<&Form> {
        let fits = |form: &&Form| {
            form.layout == pool.layout
                && form.dim == pool.dim
                && form.rope.is_none_or(|rope| rope == pool.rope_dim)
        };
        self.forms.iter().find(fits).ok_or_else(|| {
            Error::unsupported(format!(
                "{what} has entries of {} values, {} of them roped, in layout {}; attention/cuda-sm120 serves bf16 entries of 64 \
                 or 512 values and fp8 entries of 64 with 16 roped or 512 with 64 roped. Use attention/cuda-stock.",
                pool.dim, pool.rope_dim, pool.layout
            ))
        })
    }

    /// `attention.core`. The bits of a row do not depend on the other rows. Outputs of padded rows are not written.
    ///
    /// # Errors
    /// If entries have a form that no kernel serves, the workspace is too small, or the driver refuses.
    ///
    /// # Safety
    /// The arguments are those of a call on a device, checked by the SDK's shim.
    pub unsafe fn core(&self, ctx: &Ctx, a: &CoreArgs, batch: &Batch) -> Result<()> {
        let form = self.form(&a.swa, "swa")?;
        let (heads, dim, positions) = (a.q.shape[1] as u32, a.q.shape[2] as u32, a.rope.cos.shape[0]);
        let mut keys = a.window.min(positions as u32);
        if a.ratio > 0 {
            let found = self.form(&a.entries, "entries")?;
            if found.layout != form.layout {
                return Err(Error::unsupported(format!(
                    "swa has layout {} and entries have layout {}; attention/cuda-sm120 serves pools of one layout. Use \
                     attention/cuda-stock.",
                    form.layout, found.layout
                )));
            }
            keys += match a.ids.is_null() {
                true => most_entries(&a.entries, positions, a.ratio),
                false => a.ids_width,
            };
        }
        let parts = keys.div_ceil(TILE).clamp(1, self.splits);
        let core = Params { args: *a, batch: *batch, partial: 0, first_row: 0, rows: 0, parts };
        let mut params = Sm120Params { core, splits: self.splits };
        let mut most = MOST_ROWS;
        if parts > 1 && batch.n_rows.saturating_mul(heads.div_ceil(HEADS)) < BLOCKS {
            // Of a part: its sums, its largest score and its weight.
            let of_row = u64::from(parts) * u64::from(heads) * (u64::from(dim) + 2) * 4;
            let mut workspace = Workspace::of(ctx);
            most = workspace.units(of_row, 1, batch.n_rows.max(1))?;
            params.core.partial = workspace.take(u64::from(most) * of_row)?;
        }
        for (first_row, rows) in chunks(batch.n_rows, most) {
            (params.core.first_row, params.core.rows) = (first_row, rows);
            let alone = params.core.partial == 0;
            let grid = [heads.div_ceil(HEADS), if alone { 1 } else { parts }, rows];
            // SAFETY: the caller's contract; the struct is the kernels', and the workspace has room for the parts of these rows.
            unsafe {
                form.kernel
                    .launch_early(ctx.stream(), grid, THREADS, form.shared, &params)
                    .map_err(failed)?;
                if !alone {
                    let threads = dim.div_ceil(JOIN_CHANNELS).next_multiple_of(32);
                    self.join
                        .launch_early(ctx.stream(), [heads, rows, 1], threads, 0, &params)
                        .map_err(failed)?;
                }
            }
        }
        Ok(())
    }
}
