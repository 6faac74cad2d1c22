//! Stock attention on a CUDA device: one joint softmax, the same bits for any batch. Entries are kept in f32, in bf16, or in the
//! fp8 of the serving engines. Products of bf16 and fp8 entries run on tensor cores with f32 sums.

use hotseam_cuda_kernels::attention::Attention as Kernels;
use hotseam_sdk::abi::{Batch, CompressArgs, CoreArgs, StoreArgs, layout};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Ctx, Host, Info, Plugin, Result, cuda, export_plugin};

/// How entries are kept.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kv {
    /// As they are computed.
    F32,
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
}

/// The variant `attention/cuda-stock`.
#[derive(Debug)]
pub struct Stock {
    kernels: Kernels,
    layout: u32,
}

impl Plugin for Stock {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let layout = match options.kv {
            Kv::F32 => layout::KV_F32,
            Kv::Bf16 => layout::KV_BF16,
            Kv::Fp8 => layout::KV_FP8_DS_MLA,
        };
        Ok(Self { kernels: Kernels::load()?, layout })
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(self.layout, shape)
    }
}

impl cuda::Attention for Stock {
    fn store(&self, ctx: &Ctx, a: &StoreArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.kernels.store(ctx, a, batch) }
    }

    fn compress(&self, ctx: &Ctx, a: &CompressArgs, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.kernels.compress(ctx, a, batch) }
    }

    fn core(&self, ctx: &Ctx, a: &CoreArgs, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.kernels.core(ctx, a, batch) }
    }
}

export_plugin! {
    seam: attention, plugin: Stock, ops: [store, compress, core],
    name: "attention/cuda-stock", description: "Stock attention on a CUDA device",
    options: r#"{"kv": {"type": "string", "default": "bf16", "values": ["f32", "bf16", "fp8"], "help": "how entries are kept: f32, bf16, or fp8 with scales as the serving engines have it (fp8_ds_mla)"}}"#,
    driver: "13.0", sm: "[90, 120]"
}
