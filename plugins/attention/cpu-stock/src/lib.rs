//! Stock attention on the CPU: f32 entries, one joint softmax, the same bits for any batch.

use hotseam_cpu_kernels::{attention, compress};
use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::entry_bytes;
use hotseam_sdk::{Attention, Ctx, Host, Info, NoOptions, Plugin, Result, export_plugin, views};

/// The variant `attention/cpu-stock`.
#[derive(Debug)]
pub struct Stock;

impl Plugin for Stock {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }

    fn info(&self, dim: usize) -> Info {
        let bytes = entry_bytes(layout::KV_F32, dim).unwrap_or(0);
        Info { layout: layout::KV_F32, entry_bytes: bytes as u32, ..Info::PLAIN }
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
    name: "attention/cpu-stock", description: "Stock attention on the CPU, f32 entries",
    options: "{}",
    cpu: "[]"
}
