//! Stock mixture of experts on the CPU. `experts` applies the routed scale, `route` does not.

use hotseam_cpu_kernels::moe;
use hotseam_sdk::ops::{Amx, WithAmx};
use hotseam_sdk::{Ctx, Error, Host, Moe, Plugin, Result, export_plugin, views};

/// Options of the variant.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    amx: bool,
}

/// The variant `moe/cpu-stock`.
#[derive(Debug)]
pub struct Stock {
    tiles: Option<Amx>,
}

impl Plugin for Stock {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let tiles = options.amx.then(Amx::detect).transpose();
        Ok(Self { tiles: tiles.map_err(|missing| Error::argument(format!("amx: {missing}")))? })
    }
}

impl Moe for Stock {
    fn route(&self, ctx: &Ctx, mut a: views::Route<'_>) -> Result<()> {
        moe::route(ctx.host(), &mut a)
    }

    fn experts(&self, ctx: &Ctx, mut a: views::Experts<'_>) -> Result<()> {
        moe::experts(&WithAmx::new(ctx.host(), self.tiles), &mut a)
    }
}

export_plugin! {
    seam: moe, plugin: Stock, ops: [route, experts],
    name: "moe/cpu-stock", description: "Stock mixture of experts on the CPU",
    options: r#"{"amx": {"type": "boolean", "default": false, "help": "use the processor's matrix tiles: faster, as exact, other bits"}}"#,
    cpu: "[]"
}
