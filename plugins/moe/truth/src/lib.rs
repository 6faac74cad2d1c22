//! Truth of the moe seam as a plugin.

use hotseam_conformance::truth;
use hotseam_sdk::{Ctx, Host, Moe, NoOptions, Plugin, Result, views};

struct Truth;

impl Plugin for Truth {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }
}

impl Moe for Truth {
    fn route(&self, ctx: &Ctx, a: views::Route<'_>) -> Result<()> {
        truth::route(ctx.host(), a)
    }

    fn experts(&self, ctx: &Ctx, a: views::Experts<'_>) -> Result<()> {
        truth::experts(ctx.host(), a)
    }
}

hotseam_sdk::export_plugin! {
    seam: moe, plugin: Truth, ops: [route, experts],
    name: "moe/truth", description: "plain f32 with f64 sums, the arbiter of the seam",
    options: "{}", cpu: "[]"
}
