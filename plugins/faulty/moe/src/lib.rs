//! Planted faults of the mixture-of-experts seam: stock routing with one thing wrong, chosen by the option `fault`.

use hotseam_cpu_kernels::moe;
use hotseam_sdk::views::{Experts, Route};
use hotseam_sdk::{Ctx, Host, Moe, Plugin, Result};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// `route` takes the weights of the right experts, then names their neighbours. Index errors of this kind come with
    /// expert parallelism, where global ids become local ones (<https://github.com/vllm-project/vllm-gaudi/pull/1796>).
    IdOffByOne,
    /// `route` multiplies by the routed scaling factor and does not say so, so the host has it applied again. A backend
    /// that routed a second time wrote fluent text and scored 3.6 % on GSM8K
    /// (<https://github.com/lightseekorg/tokenspeed/pull/1231>).
    ScaleTwice,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    fault: Fault,
}

struct Faulty {
    fault: Fault,
}

impl Fault {
    /// Spoils what `route` wrote.
    fn apply(self, ids: &mut [i32], weights: &mut [f32], n_experts: usize, routed_scale: f32) {
        match self {
            Self::IdOffByOne => {
                ids.iter_mut().filter(|id| **id >= 0).for_each(|id| *id = (*id + 1) % n_experts as i32);
            }
            Self::ScaleTwice => weights.iter_mut().for_each(|w| *w *= routed_scale),
        }
    }
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Ok(Self { fault: options.fault })
    }
}

impl Moe for Faulty {
    fn route(&self, ctx: &Ctx, mut a: Route<'_>) -> Result<()> {
        moe::route(ctx.host(), &mut a)?;
        self.fault.apply(a.ids, a.weights, a.gate.n, a.routed_scale);
        Ok(())
    }

    fn experts(&self, ctx: &Ctx, mut a: Experts<'_>) -> Result<()> {
        moe::experts(ctx.host(), &mut a)
    }
}

hotseam_sdk::export_plugin! {
    seam: moe, plugin: Faulty, ops: [route, experts],
    name: "faulty/moe", description: "stock mixture of experts with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "id-off-by-one", "values": ["id-off-by-one", "scale-twice"],
        "help": "what is wrong"}}"#,
    cpu: "[]"
}

#[cfg(test)]
mod tests {
    use super::Fault;

    #[test]
    fn neighbours_wrap_and_padding_stays() {
        let (mut ids, mut weights) = ([0, 7, -1], [0.25, 0.75, 0.0]);
        Fault::IdOffByOne.apply(&mut ids, &mut weights, 8, 1.5);
        assert_eq!((ids, weights), ([1, 0, -1], [0.25, 0.75, 0.0]));
        Fault::ScaleTwice.apply(&mut ids, &mut weights, 8, 2.0);
        assert_eq!((ids, weights), ([1, 0, -1], [0.5, 1.5, 0.0]));
    }
}
