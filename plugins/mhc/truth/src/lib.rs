//! Truth of the mhc seam as a plugin.

use hotseam_conformance::truth;
use hotseam_sdk::{Ctx, Host, Mhc, NoOptions, Plugin, Result, views};

struct Truth;

impl Plugin for Truth {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }
}

impl Mhc for Truth {
    fn pre(&self, ctx: &Ctx, a: views::MhcPre<'_>) -> Result<()> {
        truth::mhc_pre(ctx.host(), a)
    }

    fn post(&self, ctx: &Ctx, a: views::MhcPost<'_>) -> Result<()> {
        truth::mhc_post(ctx.host(), a)
    }

    fn head(&self, ctx: &Ctx, a: views::MhcHead<'_>) -> Result<()> {
        truth::mhc_head(ctx.host(), a)
    }
}

hotseam_sdk::export_plugin! {
    seam: mhc, plugin: Truth, ops: [pre, post, head],
    name: "mhc/truth", description: "plain f32 with f64 sums, the arbiter of the seam",
    options: "{}", cpu: "[]"
}
