//! Stock hyper-connections on the CPU, all in f32.

use hotseam_cpu_kernels::mhc;
use hotseam_sdk::{Ctx, Host, Mhc, NoOptions, Plugin, Result, export_plugin, views};

/// The variant `mhc/cpu-stock`.
#[derive(Debug)]
pub struct Stock;

impl Plugin for Stock {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }
}

impl Mhc for Stock {
    fn pre(&self, ctx: &Ctx, mut a: views::MhcPre<'_>) -> Result<()> {
        mhc::pre(ctx.host(), &mut a)
    }

    fn post(&self, ctx: &Ctx, mut a: views::MhcPost<'_>) -> Result<()> {
        mhc::post(ctx.host(), &mut a)
    }

    fn head(&self, ctx: &Ctx, mut a: views::MhcHead<'_>) -> Result<()> {
        mhc::head(ctx.host(), &mut a)
    }
}

export_plugin! {
    seam: mhc, plugin: Stock, ops: [pre, post, head],
    name: "mhc/cpu-stock", description: "Stock hyper-connections on the CPU, f32",
    options: "{}",
    cpu: "[]"
}
