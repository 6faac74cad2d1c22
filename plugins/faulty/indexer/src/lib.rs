//! Planted faults of the indexer seam: the stock indexer with one thing wrong, chosen by the option `fault`.
//!
//! `keys` is the key layout, as in the stock variant, so that a fault can stand beside stock layers of any layout.

mod entries;
mod ranked;

use hotseam_cpu_kernels::{compress, indexer};
use hotseam_faulty_common::{LostUpdates, Panics, misplace};
use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::views::{Compress, Rows, Select};
use hotseam_sdk::{Ctx, Host, Indexer, Info, Plugin, Result};
use std::sync::{Mutex, PoisonError};

/// Rows of a tile of queries.
const TILE: usize = 64;

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
    /// `compress` stores the keys of every second slot four times too large, as when the scale of a neighbouring group is
    /// applied; one factor for all would change no ranking.
    WrongScale,
    /// `select` gives rows from the 65th of a call on the entries of the row 64 before them: right up to one tile of
    /// queries. The real one went wrong for prefills of more than 64 query tokens
    /// (<https://github.com/flashinfer-ai/flashinfer/issues/5095>).
    #[serde(rename = "rows-past-64")]
    RowsPast64,
    /// `compress` loses the sum of some keys, which are stored as zeros and then never selected: see [`LostUpdates`].
    Race,
    /// No fault: `select` returns the entries by falling score, and of equal scores the later entry. The contract allows
    /// both, so it must be cleared.
    TieOrder,
    /// `compress` stores keys negated and `select` negates queries: right in itself, bit for bit, but not in the layout that
    /// it declares, so it is wrong with another variant in the other phase. In the wild a reader expected another layout
    /// than the cache had (<https://github.com/vllm-project/vllm/pull/50455>).
    NegatedKeys,
    /// `select` returns an entry that does not exist yet. A top-k kernel wrote the bits of NaN scores as indices
    /// (<https://github.com/vllm-project/vllm/issues/49896>).
    OutOfRange,
    /// The call of the option `call` panics.
    Panic,
}

#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Keys {
    F32,
    Bf16,
    Fp8,
    Fp4,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    fault: Fault,
    call: String,
    keys: Keys,
}

struct Faulty {
    fault: Fault,
    panics: Panics,
    layout: u32,
    race: LostUpdates,
    slots: Mutex<Vec<i32>>,
    numbers: Mutex<Vec<f32>>,
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let layout = match options.keys {
            Keys::F32 => layout::KEY_F32,
            Keys::Bf16 => layout::KEY_BF16,
            Keys::Fp8 => layout::KEY_FP8_HADAMARD,
            Keys::Fp4 => layout::KEY_FP4_HADAMARD,
        };
        Ok(Self {
            fault: options.fault,
            panics: Panics::new(options.fault == Fault::Panic, options.call),
            layout,
            race: LostUpdates::default(),
            slots: Mutex::default(),
            numbers: Mutex::default(),
        })
    }

    fn info(&self, shape: Shape) -> Info {
        self.panics.at("info");
        Info::of_layout(self.layout, shape)
    }
}

impl Indexer for Faulty {
    fn compress(&self, ctx: &Ctx, a: Compress<'_>) -> Result<()> {
        self.panics.at("compress");
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut a = a;
        if self.fault == Fault::WrongSlot {
            misplace(ctx, &a, &mut slots);
            a.out_slots = &slots;
        }
        compress(ctx.host(), &mut a)?;
        let written = a.out_slots.iter().map(|slot| *slot as usize);
        match self.fault {
            Fault::WrongScale => {
                written.filter(|slot| slot % 2 == 1).for_each(|slot| entries::scale(&mut a.pool, slot, 4.0))
            }
            Fault::Race => written
                .filter(|slot| self.race.lost(*slot))
                .for_each(|slot| entries::scale(&mut a.pool, slot, 0.0)),
            Fault::NegatedKeys => written.for_each(|slot| entries::negate(&mut a.pool, slot)),
            _ => {}
        }
        Ok(())
    }

    fn select(&self, ctx: &Ctx, a: Select<'_>) -> Result<()> {
        self.panics.at("select");
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut a = a;
        match self.fault {
            Fault::OnePage if !ctx.is_prefill() => {
                let page = a.keys.form.entries_per_page;
                return ranked::select(ctx, a, page, &mut numbers);
            }
            Fault::TieOrder => return ranked::select(ctx, a, usize::MAX, &mut numbers),
            Fault::NegatedKeys => {
                numbers.clear();
                numbers.extend(a.q_lora.iter().map(|q| -q));
                a.q_lora = &numbers;
            }
            _ => {}
        }
        indexer::select(ctx.host(), &mut a)?;
        let (rows, topk) = (a.rows, a.topk);
        match self.fault {
            Fault::OutOfRange => {
                for row in 0..rows.len() {
                    let beyond = a.complete(row) as i32;
                    a.ids[row * topk..].iter_mut().take(1).for_each(|id| *id = beyond);
                }
            }
            Fault::RowsPast64 => {
                for row in (TILE..rows.len()).rev().filter(|row| same_sequence(&rows, *row)) {
                    a.ids.copy_within((row - TILE) * topk..(row - TILE + 1) * topk, row * topk);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether the row a tile before belongs to the sequence of `row`, whose entries it then may name.
fn same_sequence(rows: &Rows<'_>, row: usize) -> bool {
    let live = |row: usize| rows.positions[row] >= 0;
    live(row) && live(row - TILE) && rows.seq(row) == rows.seq(row - TILE)
}

hotseam_sdk::export_plugin! {
    seam: indexer, plugin: Faulty, ops: [compress, select],
    name: "faulty/indexer", description: "the stock indexer with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "one-page",
            "values": ["one-page", "wrong-slot", "wrong-scale", "rows-past-64", "race", "tie-order", "negated-keys",
                "out-of-range", "panic"], "help": "what is wrong"},
        "call": {"type": "string", "default": "select", "values": ["create", "info", "destroy", "compress", "select"],
            "help": "the call that panics, with the fault `panic`"},
        "keys": {"type": "string", "default": "f32", "values": ["f32", "bf16", "fp8", "fp4"], "help": "layout of the index keys"}}"#,
    cpu: "[]"
}
