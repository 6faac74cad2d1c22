//! Stock attention on the CPU: one joint softmax, the same bits for any batch. Entries are kept in f32, in bf16, or in the
//! fp8 of the serving engines; arithmetic is f32.

use hotseam_cpu_kernels::{attention, compress};
use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Attention, Ctx, Host, Info, Plugin, Result, export_plugin, views};

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

/// The variant `attention/cpu-stock`.
#[derive(Debug)]
pub struct Stock {
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
        Ok(Self { layout })
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(self.layout, shape)
    }
}

impl Attention for Stock {
    fn store(&self, ctx: &Ctx, mut a: views::Store<'_>) -> Result<()> {
        attention::store(ctx.host(), &mut a)
    }

    fn compress(&self, ctx: &Ctx, mut a: views::Compress<'_>) -> Result<()> {
        compress(ctx.host(), &mut a)
    }

    fn core(&self, ctx: &Ctx, mut a: views::Core<'_>) -> Result<()> {
        attention::core(ctx.host(), &mut a)
    }
}

export_plugin! {
    seam: attention, plugin: Stock, ops: [store, compress, core],
    name: "attention/cpu-stock", description: "Stock attention on the CPU",
    options: r#"{"kv": {"type": "string", "default": "f32", "values": ["f32", "bf16", "fp8"], "help": "how entries are kept: f32, bf16, or fp8 with scales as the serving engines have it (fp8_ds_mla)"}}"#,
    cpu: "[]"
}
