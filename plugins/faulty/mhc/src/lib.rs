//! Planted faults of the hyper-connection seam: stock mHC with one thing wrong, chosen by the option `fault`.
//!
//! Where `comb` is spoilt, its rows and columns sum to 1 before and after, so norms and activations look healthy.

use hotseam_cpu_kernels::mhc;
use hotseam_faulty_common::{LostUpdates, Panics};
use hotseam_sdk::abi::capability;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::views::{MhcHead, MhcPost, MhcPre};
use hotseam_sdk::{Ctx, Host, Info, Mhc, Plugin, Result};
use std::sync::{Mutex, PoisonError};

/// Rows of a tile.
const TILE: usize = 64;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// Columns rolled by one: each stream continues as its neighbour, as after a wrong lane shuffle. A TileLang mHC
    /// kernel was wrong on one architecture, from the first layer on (<https://github.com/vllm-project/vllm/issues/45698>).
    CombRoll,
    /// Transposed: the wrong index is summed in `post` (<https://github.com/NVIDIA/Megatron-LM/issues/4957>).
    CombTransposed,
    /// `pre` leaves out the factor 2 of the `post` gates, so that every block counts half.
    PostHalved,
    /// `post` leaves the last quarter of the channels as they were, as a loop over channel tiles does that rounds down.
    DroppedTail,
    /// `post` gives rows from the 65th of a call on the streams of the row 64 before them: right up to one tile of rows. In
    /// the wild another path is taken from 1,024 rows on.
    #[serde(rename = "rows-past-64")]
    RowsPast64,
    /// `post` loses the update of some streams: see [`LostUpdates`].
    Race,
    /// No fault: `post` adds its terms in the reverse order. It must be cleared.
    ReverseSum,
    /// Says that `pre` applies the norm that follows, and does not: its output equals the stock one bit for bit, and nobody
    /// applies the norm. In the wild a flag of the same kind came with another prenorm path for many rows.
    NormClaimed,
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
    before: Mutex<Vec<f32>>,
}

impl Fault {
    /// Spoils one `[hc, hc]` matrix.
    fn apply(self, comb: &mut [f32], hc: usize) {
        match self {
            Self::CombRoll => comb.chunks_exact_mut(hc).for_each(|row| row.rotate_right(1)),
            Self::CombTransposed => {
                for i in 0..hc {
                    for k in 0..i {
                        comb.swap(i * hc + k, k * hc + i);
                    }
                }
            }
            _ => {}
        }
    }
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let panics = Panics::new(options.fault == Fault::Panic, options.call);
        Ok(Self { fault: options.fault, panics, race: LostUpdates::default(), before: Mutex::default() })
    }

    fn info(&self, _shape: Shape) -> Info {
        self.panics.at("info");
        let capabilities = if self.fault == Fault::NormClaimed { capability::NORM_FUSED } else { 0 };
        Info { capabilities, ..Info::PLAIN }
    }
}

impl Mhc for Faulty {
    fn pre(&self, ctx: &Ctx, mut a: MhcPre<'_>) -> Result<()> {
        self.panics.at("pre");
        mhc::pre(ctx.host(), &mut a)?;
        a.comb.chunks_exact_mut(a.hc * a.hc).for_each(|comb| self.fault.apply(comb, a.hc));
        if self.fault == Fault::PostHalved {
            a.post.iter_mut().for_each(|gate| *gate *= 0.5);
        }
        Ok(())
    }

    fn post(&self, ctx: &Ctx, mut a: MhcPost<'_>) -> Result<()> {
        self.panics.at("post");
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        before.clear();
        before.extend_from_slice(a.streams);
        if self.fault == Fault::ReverseSum {
            add_in_reverse(&mut a, &before);
            return Ok(());
        }
        mhc::post(ctx.host(), &mut a)?;
        let (hidden, width) = (a.hidden, a.hc * a.hidden);
        let streams = a.streams.chunks_exact_mut(hidden).zip(before.chunks_exact(hidden));
        match self.fault {
            Fault::DroppedTail => {
                let tail = hidden - hidden / 4..hidden;
                streams.for_each(|(new, old)| new[tail.clone()].copy_from_slice(&old[tail.clone()]));
            }
            Fault::Race => {
                let lost = streams.enumerate().filter(|(number, _)| self.race.lost(*number));
                lost.for_each(|(_, (new, old))| new.copy_from_slice(old));
            }
            Fault::RowsPast64 => {
                for row in (TILE..a.rows.len()).rev() {
                    a.streams.copy_within((row - TILE) * width..(row - TILE + 1) * width, row * width);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn head(&self, ctx: &Ctx, mut a: MhcHead<'_>) -> Result<()> {
        self.panics.at("head");
        mhc::head(ctx.host(), &mut a)
    }
}

/// `post` with the block's output added last and the streams from the last to the first.
fn add_in_reverse(a: &mut MhcPost<'_>, before: &[f32]) {
    let (hc, hidden) = (a.hc, a.hidden);
    for (number, out) in a.streams.chunks_exact_mut(hidden).enumerate() {
        let (row, k) = (number / hc, number % hc);
        let streams = &before[row * hc * hidden..][..hc * hidden];
        let (f, post) = (&a.f[row * hidden..][..hidden], a.post[row * hc + k]);
        for (channel, out) in out.iter_mut().enumerate() {
            let terms =
                (0..hc).rev().map(|i| a.comb[(row * hc + i) * hc + k] * streams[i * hidden + channel]);
            *out = terms.sum::<f32>() + post * f[channel];
        }
    }
}

hotseam_sdk::export_plugin! {
    seam: mhc, plugin: Faulty, ops: [pre, post, head],
    name: "faulty/mhc", description: "stock hyper-connections with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "comb-roll",
        "values": ["comb-roll", "comb-transposed", "post-halved", "dropped-tail", "rows-past-64", "race", "reverse-sum",
            "norm-claimed", "panic"],
        "help": "what is wrong"},
        "call": {"type": "string", "default": "post", "values": ["create", "info", "destroy", "pre", "post", "head"],
        "help": "the call that panics, with the fault `panic`"}}"#,
    cpu: "[]"
}

#[cfg(test)]
mod tests {
    use super::Fault;

    #[test]
    fn roll_and_transpose() {
        let mut comb = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        Fault::CombRoll.apply(&mut comb, 3);
        assert_eq!(comb, [3.0, 1.0, 2.0, 6.0, 4.0, 5.0, 9.0, 7.0, 8.0]);
        let mut comb = [1.0, 2.0, 3.0, 4.0];
        Fault::CombTransposed.apply(&mut comb, 2);
        assert_eq!(comb, [1.0, 3.0, 2.0, 4.0]);
    }
}
