//! The numerics of the SM120 indexer kernel on the CPU: scores are computed page by page, and with `early_exit` the
//! loop ends at the last page of each sequence instead of the end of the page table. That is exact: pages past a
//! sequence's last entry hold nothing that could be selected. Bounds that skip pages inside a sequence are another
//! matter, and not here.
//!
//! `keys` is the key layout. With `bf16` the query is rounded to bf16 too, with `fp8` it is rotated and quantised as the
//! keys are.

mod page;
mod query;
mod select;
mod top;

use hotseam_cpu_kernels::compress;
use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::views::{Compress, Select};
use hotseam_sdk::{Ctx, Error, Host, Indexer, Info, Plugin, Result};

#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Keys {
    Bf16,
    Fp8,
    F32,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    keys: Keys,
    early_exit: bool,
}

struct Sm120 {
    layout: u32,
    early_exit: bool,
}

impl Sm120 {
    /// Refuses a pool that is not of this instance's layout.
    fn check(&self, layout: u32) -> Result<()> {
        match layout == self.layout {
            true => Ok(()),
            false => Err(Error::argument(format!("key pool has layout {layout}, expected {}", self.layout))),
        }
    }
}

impl Plugin for Sm120 {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let layout = match options.keys {
            Keys::Bf16 => layout::KEY_BF16,
            Keys::Fp8 => layout::KEY_FP8_HADAMARD,
            Keys::F32 => layout::KEY_F32,
        };
        Ok(Self { layout, early_exit: options.early_exit })
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(self.layout, shape)
    }
}

impl Indexer for Sm120 {
    fn compress(&self, ctx: &Ctx, mut a: Compress<'_>) -> Result<()> {
        self.check(a.pool.form.layout)?;
        compress(ctx.host(), &mut a)
    }

    fn select(&self, ctx: &Ctx, mut a: Select<'_>) -> Result<()> {
        self.check(a.keys.form.layout)?;
        select::select(ctx.host(), &mut a, self.early_exit)
    }
}

hotseam_sdk::export_plugin! {
    seam: indexer, plugin: Sm120, ops: [compress, select],
    name: "indexer/cpu-sm120", description: "paged index scores that stop at the last page of each sequence",
    options: r#"{"keys": {"type": "string", "default": "bf16", "values": ["bf16", "fp8", "f32"],
            "help": "layout of the index keys"},
        "early_exit": {"type": "boolean", "default": true, "help": "stop at the last page of each sequence"}}"#,
    cpu: "[]"
}
