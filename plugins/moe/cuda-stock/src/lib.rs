//! Stock mixture of experts on a CUDA device, with f32 sums. `experts` applies the routed scale, `route` does not.

use hotseam_cuda_kernels::moe::Moe as Kernels;
use hotseam_sdk::abi::{Batch, ExpertsArgs, RouteArgs};
use hotseam_sdk::{Ctx, Host, NoOptions, Plugin, Result, cuda, export_plugin};

/// The variant `moe/cuda-stock`.
#[derive(Debug)]
pub struct Stock(Kernels);

impl Plugin for Stock {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Kernels::load().map(Self)
    }
}

impl cuda::Moe for Stock {
    fn route(&self, ctx: &Ctx, a: &RouteArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.0.route(ctx, a, batch) }
    }

    fn experts(&self, ctx: &Ctx, a: &ExpertsArgs, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.0.experts(ctx, a, batch) }
    }
}

export_plugin! {
    seam: moe, plugin: Stock, ops: [route, experts],
    name: "moe/cuda-stock", description: "Stock mixture of experts on a CUDA device, f32 sums",
    options: "{}",
    driver: "13.0", sm: "[90, 120]"
}
