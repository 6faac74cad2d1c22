//! Stock hyper-connections on a CUDA device, all in f32.

use hotseam_cuda_kernels::mhc::Mhc as Kernels;
use hotseam_sdk::abi::{Batch, MhcHeadArgs, MhcPostArgs, MhcPreArgs};
use hotseam_sdk::{Ctx, Host, NoOptions, Plugin, Result, cuda, export_plugin};

/// The variant `mhc/cuda-stock`.
#[derive(Debug)]
pub struct Stock(Kernels);

impl Plugin for Stock {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Kernels::load().map(Self)
    }
}

impl cuda::Mhc for Stock {
    fn pre(&self, ctx: &Ctx, a: &MhcPreArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.0.pre(ctx, a, batch) }
    }

    fn post(&self, ctx: &Ctx, a: &MhcPostArgs, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.0.post(ctx, a, batch) }
    }

    fn head(&self, ctx: &Ctx, a: &MhcHeadArgs, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.0.head(ctx, a, batch) }
    }
}

export_plugin! {
    seam: mhc, plugin: Stock, ops: [pre, post, head],
    name: "mhc/cuda-stock", description: "Stock hyper-connections on a CUDA device, f32",
    options: "{}",
    driver: "13.0", sm: "[90, 120]"
}
