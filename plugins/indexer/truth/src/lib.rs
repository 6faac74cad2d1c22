//! Truth of the indexer seam as a plugin.

use hotseam_conformance::truth;
use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Ctx, Host, Indexer, Info, Plugin, Result, views};
use serde::Deserialize;

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Keys {
    F32,
    Bf16,
    Fp8,
    Fp4,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    keys: Keys,
}

struct Truth {
    layout: u32,
}

impl Plugin for Truth {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let layout = match options.keys {
            Keys::F32 => layout::KEY_F32,
            Keys::Bf16 => layout::KEY_BF16,
            Keys::Fp8 => layout::KEY_FP8_HADAMARD,
            Keys::Fp4 => layout::KEY_FP4_HADAMARD,
        };
        Ok(Self { layout })
    }

    fn info(&self, shape: Shape) -> Info {
        // A shape that the layout cannot hold has no entries; the calls refuse it with the reason.
        let entry = truth::layout::parts(self.layout, shape).unwrap_or_default();
        Info { layout: self.layout, entry, ..Info::PLAIN }
    }
}

impl Indexer for Truth {
    fn compress(&self, _ctx: &Ctx, a: views::Compress<'_>) -> Result<()> {
        truth::compress(a)
    }

    fn select(&self, ctx: &Ctx, a: views::Select<'_>) -> Result<()> {
        truth::select(ctx.host(), a)
    }
}

hotseam_sdk::export_plugin! {
    seam: indexer, plugin: Truth, ops: [compress, select],
    name: "indexer/truth", description: "plain f32 with f64 sums, the arbiter of the seam",
    options: r#"{"keys": {"type": "string", "default": "f32", "values": ["f32", "bf16", "fp8", "fp4"], "help": "format of the index keys; fp8 and fp4 rotate keys and queries before they quantise them"}}"#,
    cpu: "[]"
}
