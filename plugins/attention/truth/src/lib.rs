//! Truth of the attention seam as a plugin.

use hotseam_conformance::truth;
use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Attention, Ctx, Host, Info, Plugin, Result, views};
use serde::Deserialize;

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kv {
    F32,
    Bf16,
    Fp8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    kv: Kv,
}

struct Truth {
    layout: u32,
}

impl Plugin for Truth {
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
        // A shape that the layout cannot hold has no entries; the calls refuse it with the reason.
        let entry = truth::layout::parts(self.layout, shape).unwrap_or_default();
        Info { layout: self.layout, entry, ..Info::PLAIN }
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
    options: r#"{"kv": {"type": "string", "default": "f32", "values": ["f32", "bf16", "fp8"], "help": "how entries are kept"}}"#,
    cpu: "[]"
}
