//! Planted faults of the mixture-of-experts seam: the stock one with one thing wrong, chosen by the option `fault`.

use hotseam_cpu_kernels::moe;
use hotseam_faulty_common::{LostUpdates, Panics};
use hotseam_sdk::abi::capability;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::views::{Experts, Route};
use hotseam_sdk::{Ctx, Host, Info, Moe, Plugin, Result};
use std::sync::{Mutex, PoisonError};

/// Rows of a tile of the grouped products.
const TILE: usize = 16;
/// Rows up to which `rows-past-64` is right.
const FEW_ROWS: usize = 64;

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
    /// `experts` leaves the routed scaling factor out. Wrong alone; beside `scale-twice`, each of the two heals the other. A
    /// factor was skipped where the weights were not normalised (<https://github.com/sgl-project/sglang-jax/pull/1282>).
    ScaleSkipped,
    /// `experts` gives zeros to the rows behind the last full tile of 16: right for whole chunks of a prompt, wrong in their
    /// rest and in decode. A path for masked layouts took rows for padding and reported no error
    /// (<https://github.com/sgl-project/sglang/pull/29927>).
    DroppedTail,
    /// `experts` gives rows from the 65th of a call on the output of the row 64 before them: right up to one tile of
    /// rows. In the wild another path is taken from 1,024 tokens on, with another layout.
    #[serde(rename = "rows-past-64")]
    RowsPast64,
    /// `experts` loses the sum of some experts: see [`LostUpdates`].
    Race,
    /// No fault: `experts` multiplies each weight by the routed scaling factor, instead of the sum. It must be cleared.
    FoldedScale,
    /// Says that `route` applies the routed scaling factor, and does not: its output equals the stock one bit for bit, and
    /// nobody applies the factor. A patch dropped the scaling-on-output switch with two others, three silent errors in one
    /// diff (<https://github.com/sgl-project/sglang/pull/27197>).
    ScaleClaimed,
    /// `experts` halves its input in place when it is done, which harms the shared expert that reads it next. Temporaries
    /// in a shared pool aliased another kernel's buffers (<https://github.com/sgl-project/sglang/issues/33800>).
    ClobberedInput,
    /// The call of the option `call` panics.
    Panic,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    fault: Fault,
    call: String,
}

struct Faulty {
    fault: Fault,
    panics: Panics,
    race: LostUpdates,
    weights: Mutex<Vec<f32>>,
}

impl Fault {
    /// Spoils what `route` wrote.
    fn apply(self, ids: &mut [i32], weights: &mut [f32], n_experts: usize, routed_scale: f32) {
        match self {
            Self::IdOffByOne => {
                ids.iter_mut().filter(|id| **id >= 0).for_each(|id| *id = (*id + 1) % n_experts as i32);
            }
            Self::ScaleTwice => weights.iter_mut().for_each(|w| *w *= routed_scale),
            _ => {}
        }
    }
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let panics = Panics::new(options.fault == Fault::Panic, options.call);
        Ok(Self { fault: options.fault, panics, race: LostUpdates::default(), weights: Mutex::default() })
    }

    fn info(&self, _shape: Shape) -> Info {
        self.panics.at("info");
        let capabilities = match self.fault {
            Fault::ScaleClaimed => capability::ROUTE_SCALES_HASH | capability::ROUTE_SCALES_TOPK,
            _ => 0,
        };
        Info { capabilities, ..Info::PLAIN }
    }
}

impl Moe for Faulty {
    fn route(&self, ctx: &Ctx, mut a: Route<'_>) -> Result<()> {
        self.panics.at("route");
        moe::route(ctx.host(), &mut a)?;
        self.fault.apply(a.ids, a.weights, a.gate.n, a.routed_scale);
        Ok(())
    }

    fn experts(&self, ctx: &Ctx, a: Experts<'_>) -> Result<()> {
        self.panics.at("experts");
        let mut weights = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        let mut a = a;
        match self.fault {
            Fault::ScaleSkipped => a.routed_scale = 1.0,
            Fault::Race => {
                weights.clear();
                let kept = |(i, w): (usize, &f32)| if self.race.lost(i) { 0.0 } else { *w };
                weights.extend(a.weights.iter().enumerate().map(kept));
                a.weights = &weights;
            }
            Fault::FoldedScale => {
                weights.clear();
                weights.extend(a.weights.iter().map(|w| w * a.routed_scale));
                (a.weights, a.routed_scale) = (&weights, 1.0);
            }
            _ => {}
        }
        moe::experts(ctx.host(), &mut a)?;
        let (rows, hidden) = (a.rows.len(), a.hidden);
        match self.fault {
            Fault::DroppedTail => a.out[rows / TILE * TILE * hidden..].fill(0.0),
            Fault::RowsPast64 => {
                for row in (FEW_ROWS..rows).rev() {
                    a.out.copy_within((row - FEW_ROWS) * hidden..(row - FEW_ROWS + 1) * hidden, row * hidden);
                }
            }
            Fault::ClobberedInput => halve_in_place(a.x),
            _ => {}
        }
        Ok(())
    }
}

/// Halves an input where it lies.
fn halve_in_place(x: &[f32]) {
    let (at, n) = (x.as_ptr().cast_mut(), x.len());
    for i in 0..n {
        // SAFETY: not sound, which is the fault. The memory is a buffer of the host that nobody reads during the call.
        unsafe { at.add(i).write_volatile(at.add(i).read_volatile() * 0.5) };
    }
}

hotseam_sdk::export_plugin! {
    seam: moe, plugin: Faulty, ops: [route, experts],
    name: "faulty/moe", description: "stock mixture of experts with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "id-off-by-one",
        "values": ["id-off-by-one", "scale-twice", "scale-skipped", "dropped-tail", "rows-past-64", "race",
            "folded-scale", "scale-claimed", "clobbered-input", "panic"],
        "help": "what is wrong"},
        "call": {"type": "string", "default": "experts", "values": ["create", "info", "destroy", "route", "experts"],
        "help": "the call that panics, with the fault `panic`"}}"#,
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
