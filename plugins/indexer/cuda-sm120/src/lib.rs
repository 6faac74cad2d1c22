//! `indexer.select` for SM120: scores are not written to memory. Each block keeps the best entries of its part of a row and
//! passes over what scores below the worst of them, which is exact; on SM120 keys enter block-scaled products as they lie in the
//! pool. For keys in fp8 and fp4 and up to 1024 entries a row; `compress` stays with the base.
//!
//! The stock way is taken where the tap wants all scores, where there are few entries, and for index heads of other than 128
//! values or more than 64 of them.

use hotseam_cuda_kernels::indexer::sm120::Sm120 as Kernels;
use hotseam_sdk::abi::{Batch, SelectArgs, layout};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Ctx, Error, Host, Info, Plugin, Result, cuda, export_plugin};

/// How index keys are kept.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keys {
    /// Rotated and rounded to e4m3 with one scale a key.
    Fp8,
    /// Rotated and rounded to e2m1 with a power of two for every 32 values.
    Fp4,
}

/// Options of the variant.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    keys: Keys,
    early_exit: bool,
}

/// The variant `indexer/cuda-sm120`.
#[derive(Debug)]
pub struct Sm120 {
    kernels: Kernels,
    layout: u32,
}

impl Plugin for Sm120 {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let layout = match options.keys {
            Keys::Fp8 => layout::KEY_FP8_HADAMARD,
            Keys::Fp4 => layout::KEY_FP4_HADAMARD,
        };
        Ok(Self { kernels: Kernels::load(options.early_exit)?, layout })
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(self.layout, shape)
    }
}

impl cuda::Indexer for Sm120 {
    fn select(&self, ctx: &Ctx, a: &SelectArgs, batch: &Batch) -> Result<()> {
        if a.keys.layout != self.layout {
            return Err(Error::argument(format!(
                "keys have layout {}, this instance was made for layout {}. Set option keys to the layout of the pool.",
                a.keys.layout, self.layout
            )));
        }
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.kernels.select(ctx, a, batch) }
    }
}

export_plugin! {
    seam: indexer, plugin: Sm120, ops: [select],
    name: "indexer/cuda-sm120",
    description: "Selection for SM120 with a running threshold instead of all scores; up to 1024 entries a row",
    base: "indexer/cuda-stock",
    options: r#"{"keys": {"type": "string", "default": "fp8", "values": ["fp8", "fp4"], "help": "how index keys are kept: fp8 or fp4, with a Hadamard rotation"},
        "early_exit": {"type": "boolean", "default": true, "help": "stop at the last page of each sequence instead of the end of its table"}}"#,
    driver: "13.0", sm: "[90, 120]"
}
