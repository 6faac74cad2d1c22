//! `mhc.pre` and `mhc.post` for SM120: the product that makes the gates has bf16 operands on tensor cores, its channels split
//! among blocks; Sinkhorn has a row of the square in one lane. For 1, 2 or 4 streams. `mhc.head` stays with the base.
//!
//! Rounding to bf16 moves the gates' sums by about 2^-9 of their size, as in `mhc/cpu-bf16-gemm`.

use hotseam_cuda_kernels::mhc::sm120::Sm120 as Kernels;
use hotseam_sdk::abi::{Batch, MhcPostArgs, MhcPreArgs};
use hotseam_sdk::{Ctx, Host, NoOptions, Plugin, Result, cuda, export_plugin};

/// The variant `mhc/cuda-sm120`.
#[derive(Debug)]
pub struct Sm120(Kernels);

impl Plugin for Sm120 {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Kernels::load().map(Self)
    }
}

impl cuda::Mhc for Sm120 {
    fn pre(&self, ctx: &Ctx, a: &MhcPreArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.0.pre(ctx, a, batch) }
    }

    fn post(&self, ctx: &Ctx, a: &MhcPostArgs, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.0.post(ctx, a, batch) }
    }
}

export_plugin! {
    seam: mhc, plugin: Sm120, ops: [pre, post],
    name: "mhc/cuda-sm120",
    description: "Hyper-connections for SM120, the mixing product in bf16; 1, 2 or 4 streams",
    base: "mhc/cuda-stock",
    options: "{}",
    driver: "13.0", sm: "[90, 120]"
}
