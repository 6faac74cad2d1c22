//! `moe.experts` for SM120: products of few rows with weights in MXFP4 or NVFP4 have the weights as bf16, which they are exactly,
//! as the rows of a tensor core product, and each input as the sum of three bf16. Other weights, and batches in which an expert
//! has many rows, go the stock way; `route` stays with the base.

use hotseam_cuda_kernels::moe::sm120::Sm120 as Kernels;
use hotseam_sdk::abi::{Batch, ExpertsArgs};
use hotseam_sdk::{Ctx, Host, NoOptions, Plugin, Result, cuda, export_plugin};

/// The variant `moe/cuda-sm120`.
#[derive(Debug)]
pub struct Sm120(Kernels);

impl Plugin for Sm120 {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Kernels::load().map(Self)
    }
}

impl cuda::Moe for Sm120 {
    fn experts(&self, ctx: &Ctx, a: &ExpertsArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.0.experts(ctx, a, batch) }
    }
}

export_plugin! {
    seam: moe, plugin: Sm120, ops: [experts],
    name: "moe/cuda-sm120",
    description: "Experts for SM120, FP4 weights with few rows on tensor cores",
    base: "moe/cuda-stock",
    options: "{}",
    driver: "13.0", sm: "[90, 120]"
}
