//! Stock mixture of experts on the CPU. `experts` applies the routed scale, `route` does not.

use hotseam_cpu_kernels::moe;
use hotseam_sdk::{Ctx, Host, Moe, NoOptions, Plugin, Result, export_plugin, views};

/// The variant `moe/cpu-stock`.
#[derive(Debug)]
pub struct Stock;

impl Plugin for Stock {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }
}

impl Moe for Stock {
    fn route(&self, ctx: &Ctx, mut a: views::Route<'_>) -> Result<()> {
        moe::route(ctx.host(), &mut a)
    }

    fn experts(&self, ctx: &Ctx, mut a: views::Experts<'_>) -> Result<()> {
        moe::experts(ctx.host(), &mut a)
    }
}

export_plugin! {
    seam: moe, plugin: Stock, ops: [route, experts],
    name: "moe/cpu-stock", description: "Stock mixture of experts on the CPU",
    options: "{}",
    cpu: "[]"
}
