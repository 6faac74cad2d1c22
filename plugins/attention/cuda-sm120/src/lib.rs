//! `attention.core` for SM120 in decode and verify: the keys of a row are split among blocks, entries become bf16 once for 16
//! heads, and their bytes are on the way while the tile before is worked on. On SM120 the scores of fp8 entries come from
//! block-scaled products of the codes themselves. Prefill and the other ops stay with the base.
//!
//! It serves bf16 entries of 64 or 512 values, and fp8 entries of 64 values with 16 roped or 512 with 64 roped, for any number
//! of heads. Differences of about 2^-9 to the stock variant are rounding.

use hotseam_cuda_kernels::attention::sm120::{MOST_SPLITS, Sm120 as Kernels};
use hotseam_sdk::abi::{Batch, CoreArgs, layout, phase};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Ctx, Error, Host, Info, Plugin, Result, cuda, export_plugin};

/// How entries are kept.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kv {
    /// Rounded to bf16.
    Bf16,
    /// e4m3 with a power of two for every 64 values, roped values in bf16: `fp8_ds_mla`.
    Fp8,
}

/// Options of the variant.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    kv: Kv,
    splits: u32,
}

/// The variant `attention/cuda-sm120`.
#[derive(Debug)]
pub struct Sm120 {
    kernels: Kernels,
    layout: u32,
}

impl Plugin for Sm120 {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        if !(1..=MOST_SPLITS).contains(&options.splits) {
            return Err(Error::argument(format!(
                "option splits is {}, expected 1 to {MOST_SPLITS} parts of a row",
                options.splits
            )));
        }
        let layout = match options.kv {
            Kv::Bf16 => layout::KV_BF16,
            Kv::Fp8 => layout::KV_FP8_DS_MLA,
        };
        Ok(Self { kernels: Kernels::load(options.splits)?, layout })
    }

    fn info(&self, shape: Shape) -> Info {
        let phases = 1 << phase::DECODE | 1 << phase::VERIFY;
        Info { phases, ..Info::of_layout(self.layout, shape) }
    }
}

impl cuda::Attention for Sm120 {
    fn core(&self, ctx: &Ctx, a: &CoreArgs, batch: &Batch) -> Result<()> {
        if a.swa.layout != self.layout {
            return Err(Error::argument(format!(
                "swa has layout {}, this instance was made for layout {}. Set option kv to the layout of the pool.",
                a.swa.layout, self.layout
            )));
        }
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.kernels.core(ctx, a, batch) }
    }
}

export_plugin! {
    seam: attention, plugin: Sm120, ops: [core],
    name: "attention/cuda-sm120",
    description: "Decode for SM120 with split keys and block-scaled scores; heads of 64 or 512",
    base: "attention/cuda-stock",
    options: r#"{"kv": {"type": "string", "default": "fp8", "values": ["bf16", "fp8"], "help": "how entries are kept: bf16, or fp8 with scales as the serving engines have it (fp8_ds_mla)"},
        "splits": {"type": "integer", "default": 32, "help": "most parts that the keys of a row are cut into, 1 to 64"}}"#,
    driver: "13.0", sm: "[90, 120]"
}
