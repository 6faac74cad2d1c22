//! Planted faults of the mixture-of-experts seam on a CUDA device: the stock kernels with other arguments.

use hotseam_cuda_kernels::moe::Moe as Kernels;
use hotseam_sdk::abi::{Batch, ExpertsArgs, RouteArgs};
use hotseam_sdk::{Ctx, Host, Plugin, Result, cuda, export_plugin};

#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    DecodeOnly,
}

#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    fault: Fault,
}

struct Faulty {
    kernels: Kernels,
    fault: Fault,
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Ok(Self { kernels: Kernels::load()?, fault: options.fault })
    }
}

impl cuda::Moe for Faulty {
    fn route(&self, ctx: &Ctx, a: &RouteArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.kernels.route(ctx, a, batch) }
    }

    fn experts(&self, ctx: &Ctx, a: &ExpertsArgs, batch: &Batch) -> Result<()> {
        let mut a = *a;
        match self.fault {
            Fault::DecodeOnly if ctx.is_decode() => a.routed_scale *= 0.5,
            Fault::DecodeOnly => {}
        }
        // SAFETY: as above.
        unsafe { self.kernels.experts(ctx, &a, batch) }
    }
}

export_plugin! {
    seam: moe, plugin: Faulty, ops: [route, experts],
    name: "faulty/cuda-moe", description: "Planted faults of the mixture-of-experts seam on a CUDA device",
    options: r#"{"fault": {"type": "string", "default": "decode-only", "values": ["decode-only"], "help": "decode-only: the routed scaling factor is halved in decode steps"}}"#,
    driver: "13.0", sm: "[90, 120]"
}
