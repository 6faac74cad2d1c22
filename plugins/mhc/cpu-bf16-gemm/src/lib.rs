//! The numerics of the bf16 mHC GEMM on the CPU: `mhc.pre` multiplies streams and weight rounded to bf16 and sums in
//! f32. The mean square for the norm comes from the unrounded streams, and gates and Sinkhorn iterations are f32, as in
//! the kernels that fuse only the product. Rounding moves the 24 mixes by about 2^-9 of their size; the gates damp it.

use hotseam_cpu_kernels::{mhc, scratch};
use hotseam_sdk::ops::{Mat, Weight, bf16, linear};
use hotseam_sdk::views::MhcPre;
use hotseam_sdk::{Ctx, Host, Mhc, NoOptions, Plugin, Result};

struct Bf16Gemm;

impl Plugin for Bf16Gemm {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }
}

impl Mhc for Bf16Gemm {
    fn pre(&self, ctx: &Ctx, mut a: MhcPre<'_>) -> Result<()> {
        let mut weight = scratch::lease::<f32>(a.fn_weight.len());
        round(a.fn_weight, &mut weight);
        let weight = Mat { data: Weight::F32(&weight), n: (2 + a.hc) * a.hc, k: a.hc * a.hidden };
        mhc::pre_with(ctx.host(), &mut a, &|par, streams, rows, mixes| {
            let mut x = scratch::lease::<f32>(streams.len());
            round(streams, &mut x);
            linear(par, &x, rows, weight, mixes);
        })
    }
}

/// Rounds to bf16 and back: products of such values are exact in f32, so an f32 sum of them is a bf16 GEMM's.
fn round(from: &[f32], to: &mut [f32]) {
    for (from, to) in from.iter().zip(to) {
        *to = bf16::to_f32(bf16::from_f32(*from));
    }
}

hotseam_sdk::export_plugin! {
    seam: mhc, plugin: Bf16Gemm, ops: [pre],
    name: "mhc/cpu-bf16-gemm", description: "mHC with the mixing product in bf16",
    base: "mhc/cpu-stock",
    options: "{}",
    cpu: "[]"
}
