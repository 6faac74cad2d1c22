//! Stock indexer on the CPU: exact scores of all complete entries, keys in f32, bf16, fp8 or fp4.

use hotseam_cpu_kernels::{compress, indexer};
use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::ops::{Amx, WithAmx};
use hotseam_sdk::{Ctx, Error, Host, Indexer, Info, Plugin, Result, export_plugin, views};

/// How index keys are kept.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keys {
    /// As they are computed.
    F32,
    /// Rounded to bf16.
    Bf16,
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
    amx: bool,
}

/// The variant `indexer/cpu-stock`.
#[derive(Debug)]
pub struct Stock {
    layout: u32,
    tiles: Option<Amx>,
}

impl Plugin for Stock {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let layout = match options.keys {
            Keys::F32 => layout::KEY_F32,
            Keys::Bf16 => layout::KEY_BF16,
            Keys::Fp8 => layout::KEY_FP8_HADAMARD,
            Keys::Fp4 => layout::KEY_FP4_HADAMARD,
        };
        let tiles = options.amx.then(Amx::detect).transpose();
        let tiles = tiles.map_err(|missing| Error::argument(format!("amx: {missing}")))?;
        Ok(Self { layout, tiles })
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(self.layout, shape)
    }
}

impl Indexer for Stock {
    fn compress(&self, ctx: &Ctx, mut a: views::Compress<'_>) -> Result<()> {
        compress(ctx.host(), &mut a)
    }

    fn select(&self, ctx: &Ctx, mut a: views::Select<'_>) -> Result<()> {
        indexer::select(&WithAmx::new(ctx.host(), self.tiles), &mut a)
    }
}

export_plugin! {
    seam: indexer, plugin: Stock, ops: [compress, select],
    name: "indexer/cpu-stock", description: "Stock indexer on the CPU, exact scores of all complete entries",
    options: r#"{"keys": {"type": "string", "default": "f32", "values": ["f32", "bf16", "fp8", "fp4"], "help": "how index keys are kept: f32, bf16, or fp8 or fp4 with a Hadamard rotation"},
        "amx": {"type": "boolean", "default": false, "help": "use the processor's matrix tiles: faster, as exact, other bits"}}"#,
    cpu: "[]"
}
