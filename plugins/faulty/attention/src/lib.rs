//! Planted faults of the attention seam: stock attention with one thing wrong, chosen by the option `fault`.
//!
//! The first four stand for faults that were shipped elsewhere, and test the search; the last three misbehave as code,
//! and test the host.

use hotseam_cpu_kernels::{attention, compress};
use hotseam_faulty_common::misplace;
use hotseam_sdk::abi::layout;
use hotseam_sdk::views::{Compress, Core, Rope, Store};
use hotseam_sdk::{Attention, Ctx, Error, Host, Info, Plugin, Result};
use std::sync::{Mutex, PoisonError};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// `core` halves the softmax scale, in decode and verify only: distant matches drown in the average. In the wild a
    /// decode kernel forgot log2(e) in the scale (<https://github.com/flashinfer-ai/flashinfer/pull/787>).
    HalfScale,
    /// `core` leaves the sinks out of the denominator. A generic kernel without sinks served sm_120 while the
    /// specialised kernels of other architectures had them (<https://github.com/modular/modular/pull/6591>).
    SinksDropped,
    /// `compress` exchanges the slots of later prefill chunks: see [`misplace`].
    WrongSlot,
    /// `compress` stores entries without rope. A port did so and began to repeat itself from about 210 tokens
    /// (<https://github.com/ml-explore/mlx-lm/pull/1189>).
    FarNoRope,
    /// `core` panics.
    Panic,
    /// `core` fills its first row with NaN. On SM120 masked entries were read from slot 0 of uninitialised scratch, and
    /// NaN times a weight of 0 is NaN (<https://github.com/sgl-project/sglang/issues/39288>).
    Nan,
    /// `core` returns an error.
    Error,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    fault: Fault,
}

struct Faulty {
    fault: Fault,
    slots: Mutex<Vec<i32>>,
}

/// Sink logits whose exponential is 0; as many as heads are expected at most.
static NO_SINKS: [f32; 512] = [-1e30; 512];

/// Rope over no channels.
const NO_ROPE: Rope<'static> = Rope { cos: &[], sin: &[], half: 0 };

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Ok(Self { fault: options.fault, slots: Mutex::new(Vec::new()) })
    }

    fn info(&self, dim: usize) -> Info {
        Info { layout: layout::KV_F32, entry_bytes: dim as u32 * 4, ..Info::PLAIN }
    }
}

impl Attention for Faulty {
    fn store(&self, ctx: &Ctx, mut a: Store<'_>) -> Result<()> {
        attention::store(ctx.host(), &mut a)
    }

    fn compress(&self, ctx: &Ctx, a: Compress<'_>) -> Result<()> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut a = a;
        match self.fault {
            Fault::WrongSlot => {
                misplace(ctx, &a, &mut slots);
                a.out_slots = &slots;
            }
            Fault::FarNoRope => a.rope = NO_ROPE,
            _ => {}
        }
        compress(ctx.host(), &mut a)
    }

    fn core(&self, ctx: &Ctx, mut a: Core<'_>) -> Result<()> {
        match self.fault {
            Fault::HalfScale if !ctx.is_prefill() => a.scale *= 0.5,
            Fault::SinksDropped => {
                let heads = a.heads;
                let none = || {
                    Error::unsupported(format!("sinks-dropped serves {} heads, not {heads}", NO_SINKS.len()))
                };
                a.sinks = NO_SINKS.get(..heads).ok_or_else(none)?;
            }
            Fault::Panic => panic!("planted panic of layer {}", ctx.layer()),
            Fault::Error => return Err(Error::internal(format!("planted error of layer {}", ctx.layer()))),
            _ => {}
        }
        attention::core(ctx.host(), &mut a)?;
        if self.fault == Fault::Nan {
            a.out.iter_mut().take(a.heads * a.dim).for_each(|v| *v = f32::NAN);
        }
        Ok(())
    }
}

hotseam_sdk::export_plugin! {
    seam: attention, plugin: Faulty, ops: [store, compress, core],
    name: "faulty/attention", description: "stock attention with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "half-scale",
        "values": ["half-scale", "sinks-dropped", "wrong-slot", "far-no-rope", "panic", "nan", "error"],
        "help": "what is wrong"}}"#,
    cpu: "[]"
}
