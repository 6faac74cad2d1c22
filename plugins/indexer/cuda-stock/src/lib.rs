//! Stock indexer on a CUDA device: exact scores of all complete entries, keys in f32, bf16, fp8 or fp4.

use hotseam_cuda_kernels::indexer::{Indexer as Kernels, Keys};
use hotseam_sdk::abi::{Batch, CompressArgs, SelectArgs};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Ctx, Host, Info, Plugin, Result, cuda, export_plugin};

/// Options of the variant.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    keys: Keys,
}

/// The variant `indexer/cuda-stock`.
#[derive(Debug)]
pub struct Stock {
    kernels: Kernels,
    layout: u32,
}

impl Plugin for Stock {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Ok(Self { kernels: Kernels::load()?, layout: options.keys.layout() })
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(self.layout, shape)
    }
}

impl cuda::Indexer for Stock {
    fn compress(&self, ctx: &Ctx, a: &CompressArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.kernels.compress(ctx, a, batch) }
    }

    fn select(&self, ctx: &Ctx, a: &SelectArgs, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.kernels.select(ctx, a, batch) }
    }
}

export_plugin! {
    seam: indexer, plugin: Stock, ops: [compress, select],
    name: "indexer/cuda-stock", description: "Stock indexer on a CUDA device, exact scores of all complete entries",
    options: r#"{"keys": {"type": "string", "default": "bf16", "values": ["f32", "bf16", "fp8", "fp4"], "help": "how index keys are kept: f32, bf16, or fp8 or fp4 with a Hadamard rotation"}}"#,
    driver: "13.0", sm: "[90, 120]"
}
