//! The fused hash top-k on the CPU: in hash-routed layers one pass reads the expert table, gathers the scores, divides
//! by their sum and multiplies by the routed scaling factor, which the variant therefore declares as applied. Top-k
//! layers are routed as in the stock variant, and leave the factor to `experts`.
//!
//! One model so has the factor in two places. Which place, per kind of layer, is a capability and not a convention: a
//! host that guesses applies it twice or never.

mod hash;

use hotseam_cpu_kernels::moe;
use hotseam_sdk::abi::capability;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::views::Route;
use hotseam_sdk::{Ctx, Host, Info, Moe, NoOptions, Plugin, Result};

struct FusedScale;

impl Plugin for FusedScale {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }

    fn info(&self, _shape: Shape) -> Info {
        Info { capabilities: capability::ROUTE_SCALES_HASH, ..Info::PLAIN }
    }
}

impl Moe for FusedScale {
    fn route(&self, ctx: &Ctx, mut a: Route<'_>) -> Result<()> {
        match a.tid2eid {
            Some(table) => hash::route(ctx.host(), &mut a, table),
            None => moe::route(ctx.host(), &mut a),
        }
    }
}

hotseam_sdk::export_plugin! {
    seam: moe, plugin: FusedScale, ops: [route],
    name: "moe/cpu-fused-scale", description: "hash routing with the routed scaling factor fused",
    base: "moe/cpu-stock",
    options: "{}",
    cpu: "[]"
}
