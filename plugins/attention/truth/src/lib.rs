//! Truth of the attention seam as a plugin.

use hotseam_conformance::truth;
use hotseam_sdk::abi::layout;
use hotseam_sdk::{Attention, Ctx, Host, Info, NoOptions, Plugin, Result, views};

struct Truth;

impl Plugin for Truth {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }

    fn info(&self, dim: usize) -> Info {
        let entry_bytes = truth::layout::entry_bytes(layout::KV_F32, dim).map_or(0, |n| n as u32);
        Info { layout: layout::KV_F32, entry_bytes, ..Info::PLAIN }
    }
}

impl Attention for Truth {
    fn store(&self, _ctx: &Ctx, a: views::Store<'_>) -> Result<()> {
        truth::store(a)
    }

    fn compress(&self, _ctx: &Ctx, a: views::Compress<'_>) -> Result<()> {
        truth::compress(a)
    }

    fn core(&self, ctx: &Ctx, a: views::Core<'_>) -> Result<()> {
        truth::core(ctx.host(), a)
    }
}

hotseam_sdk::export_plugin! {
    seam: attention, plugin: Truth, ops: [store, compress, core],
    name: "attention/truth", description: "plain f32 with f64 sums, the arbiter of the seam",
    options: "{}", cpu: "[]"
}
