//! Planted faults of the indexer seam: the stock indexer with one thing wrong, chosen by the option `fault`.
//!
//! `keys` is the key layout, as in the stock variant, so that a fault can stand beside stock layers of any layout.

mod first_page;

use hotseam_cpu_kernels::{compress, indexer};
use hotseam_faulty_common::misplace;
use hotseam_sdk::abi::layout;
use hotseam_sdk::views::{Compress, Select};
use hotseam_sdk::{Ctx, Host, Indexer, Info, Plugin, Result, layouts};
use std::sync::{Mutex, PoisonError};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// `select` stops after the first page of each sequence, in decode and verify only: what lies further is never
    /// attended. A port scored as many entries as one chunk has, whatever the context
    /// (<https://github.com/hw-native-sys/pypto-lib/issues/592>); another lost every needle past 5k tokens
    /// (<https://github.com/vllm-project/vllm/issues/52109>).
    OnePage,
    /// `compress` exchanges the slots of later prefill chunks: see [`misplace`].
    WrongSlot,
    /// `select` returns an entry that does not exist yet. A top-k kernel wrote the bits of NaN scores as indices
    /// (<https://github.com/vllm-project/vllm/issues/49896>).
    OutOfRange,
}

#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Keys {
    F32,
    Bf16,
    Fp8,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    fault: Fault,
    keys: Keys,
}

struct Faulty {
    fault: Fault,
    layout: u32,
    slots: Mutex<Vec<i32>>,
    scores: Mutex<Vec<f32>>,
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let layout = match options.keys {
            Keys::F32 => layout::KEY_F32,
            Keys::Bf16 => layout::KEY_BF16,
            Keys::Fp8 => layout::KEY_FP8_HADAMARD,
        };
        Ok(Self { fault: options.fault, layout, slots: Mutex::default(), scores: Mutex::default() })
    }

    fn info(&self, dim: usize) -> Info {
        Info {
            layout: self.layout,
            entry_bytes: layouts::entry_bytes(self.layout, dim).unwrap_or(0) as u32,
            ..Info::PLAIN
        }
    }
}

impl Indexer for Faulty {
    fn compress(&self, ctx: &Ctx, a: Compress<'_>) -> Result<()> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut a = a;
        if self.fault == Fault::WrongSlot {
            misplace(ctx, &a, &mut slots);
            a.out_slots = &slots;
        }
        compress(ctx.host(), &mut a)
    }

    fn select(&self, ctx: &Ctx, mut a: Select<'_>) -> Result<()> {
        if self.fault == Fault::OnePage && !ctx.is_prefill() {
            return first_page::select(
                ctx,
                a,
                &mut self.scores.lock().unwrap_or_else(PoisonError::into_inner),
            );
        }
        indexer::select(ctx.host(), &mut a)?;
        if self.fault == Fault::OutOfRange {
            for row in 0..a.rows.len() {
                let beyond = a.complete(row) as i32;
                a.ids[row * a.topk..].iter_mut().take(1).for_each(|id| *id = beyond);
            }
        }
        Ok(())
    }
}

hotseam_sdk::export_plugin! {
    seam: indexer, plugin: Faulty, ops: [compress, select],
    name: "faulty/indexer", description: "the stock indexer with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "one-page",
            "values": ["one-page", "wrong-slot", "out-of-range"], "help": "what is wrong"},
        "keys": {"type": "string", "default": "f32", "values": ["f32", "bf16", "fp8"], "help": "layout of the index keys"}}"#,
    cpu: "[]"
}
