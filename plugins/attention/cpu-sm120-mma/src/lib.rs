//! The numerics of the SM120 MMA sparse-MLA decode kernel on the CPU: q, K and V enter the products as bf16 and are
//! summed in f32, the keys of a row are cut into splits, probabilities are rounded to bf16 for PV while their row sum is
//! of the unrounded ones, and the splits are merged by their log-sum-exp in base 2. It serves decode and verify only, as
//! the original; prefill and the other ops stay with the base.
//!
//! Expect differences of about 2^-9 relative to the stock variant: rounding, not a fault.

mod row;

use hotseam_sdk::abi::{layout, phase};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::ops::Parallel;
use hotseam_sdk::views::Core;
use hotseam_sdk::{Attention, Ctx, Error, Host, Info, Plugin, Result, SharedMut};

/// Heads of a work item: they share the gathered keys, as the heads of a block of the GPU kernel do.
const HEADS: usize = 4;
/// Longest split.
const MAX_SPLIT: usize = 4096;

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    split: usize,
}

struct Mma {
    split: usize,
}

impl Plugin for Mma {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        match options.split {
            1..=MAX_SPLIT => Ok(Self { split: options.split }),
            other => Err(Error::argument(format!("option split is {other}, expected 1 to {MAX_SPLIT} keys"))),
        }
    }

    fn info(&self, shape: Shape) -> Info {
        let phases = 1 << phase::DECODE | 1 << phase::VERIFY;
        Info { phases, ..Info::of_layout(layout::KV_F32, shape) }
    }
}

impl Attention for Mma {
    fn core(&self, ctx: &Ctx, mut a: Core<'_>) -> Result<()> {
        for pool in [Some(a.swa), a.entries].into_iter().flatten() {
            if pool.form.layout != layout::KV_F32 {
                let layout = pool.form.layout;
                return Err(Error::argument(format!("pool layout {layout}, expected f32 entries")));
            }
        }
        let groups = a.heads.div_ceil(HEADS);
        let width = a.heads * a.dim;
        let out = SharedMut::new(std::mem::take(&mut a.out));
        ctx.host().run(a.rows.len() * groups, 1, &|items| {
            for item in items {
                let (row, first) = (item / groups, item % groups * HEADS);
                if a.rows.positions[row] < 0 {
                    continue;
                }
                let heads = first..a.heads.min(first + HEADS);
                // SAFETY: rows and groups of heads do not overlap.
                let out =
                    unsafe { out.slice(row * width + heads.start * a.dim..row * width + heads.end * a.dim) };
                row::attend(&a, row, heads, self.split, out);
            }
        });
        Ok(())
    }
}

hotseam_sdk::export_plugin! {
    seam: attention, plugin: Mma, ops: [core],
    name: "attention/cpu-sm120-mma", description: "split-K decode with bf16 operands and probabilities",
    base: "attention/cpu-stock",
    options: r#"{"split": {"type": "integer", "default": 64, "help": "keys of a split"}}"#,
    cpu: "[]"
}
