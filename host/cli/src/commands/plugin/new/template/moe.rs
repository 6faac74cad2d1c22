//! {{description}}.
//!
//! `experts` is a plain working kernel to start from; `route` comes from `moe/cpu-stock`.

use hotseam_sdk::ops::{axpy, linear, swiglu};
use hotseam_sdk::views::Experts;
use hotseam_sdk::{Ctx, Host, Moe, NoOptions, Plugin, Result, export_plugin};
use std::sync::{Mutex, PoisonError};

/// The variant `moe/{{name}}`.
#[derive(Debug, Default)]
pub struct Variant {
    scratch: Mutex<Scratch>,
}

/// Memory that is kept between calls, so that a warm call allocates nothing.
#[derive(Debug, Default)]
struct Scratch {
    /// `[inter]` output of `w1`.
    gate: Vec<f32>,
    /// `[inter]` output of `w3`.
    up: Vec<f32>,
    /// `[inter]` what goes into `w2`.
    inner: Vec<f32>,
    /// `[hidden]` output of one expert.
    result: Vec<f32>,
}

impl Plugin for Variant {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self::default())
    }
}

impl Moe for Variant {
    fn experts(&self, ctx: &Ctx, a: Experts<'_>) -> Result<()> {
        // Calls on one instance never overlap, so nobody waits here.
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let Scratch { gate, up, inner, result } = &mut *scratch;
        [&mut *gate, up, inner].into_iter().for_each(|v| v.resize(a.inter, 0.0));
        result.resize(a.hidden, 0.0);
        a.out.fill(0.0);
        for (pair, id) in a.ids.iter().enumerate().filter(|(_, id)| **id >= 0) {
            let row = pair / a.topk * a.hidden..(pair / a.topk + 1) * a.hidden;
            let (x, expert) = (&a.x[row.clone()], a.expert(*id as usize)?);
            linear(ctx.host(), x, 1, expert.w1, gate);
            linear(ctx.host(), x, 1, expert.w3, up);
            swiglu(gate, up, a.swiglu_limit, inner);
            linear(ctx.host(), inner, 1, expert.w2, result);
            axpy(a.weights[pair] * a.routed_scale, result, &mut a.out[row]);
        }
        Ok(())
    }
}

export_plugin! {
    seam: moe, plugin: Variant, ops: [experts],
    name: "moe/{{name}}", description: "{{description}}", base: "moe/cpu-stock",
    options: "{}",
    cpu: "[]"
}
