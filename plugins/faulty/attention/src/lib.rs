//! Planted faults of the attention seam: stock attention with one thing wrong, chosen by the option `fault`.

mod fault;
mod writes;

use fault::Fault;
use hotseam_cpu_kernels::{attention, compress};
use hotseam_faulty_common::{LostUpdates, Panics, is_marked, mark, misplace};
use hotseam_sdk::abi::{capability, layout};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::views::{Compress, Core, PoolMut, Rope, Store};
use hotseam_sdk::{Attention, Ctx, Error, Host, Info, Plugin, Result};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Rows of a tile of queries.
const TILE: usize = 64;

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
    slots: Mutex<Vec<i32>>,
    queries: Mutex<Vec<f32>>,
}

/// Sink logits whose exponential is 0; as many as heads are expected at most.
static NO_SINKS: [f32; 512] = [-1e30; 512];

/// Rope over no channels.
const NO_ROPE: Rope<'static> = Rope { cos: &[], sin: &[], half: 0 };

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Ok(Self {
            fault: options.fault,
            panics: Panics::new(options.fault == Fault::Panic, options.call),
            race: LostUpdates::default(),
            slots: Mutex::default(),
            queries: Mutex::default(),
        })
    }

    fn info(&self, shape: Shape) -> Info {
        self.panics.at("info");
        let capabilities = match self.fault {
            Fault::InverseRopeClaimed => capability::FUSES_INVERSE_ROPE,
            _ => 0,
        };
        Info { capabilities, ..Info::of_layout(layout::KV_F32, shape) }
    }
}

impl Attention for Faulty {
    fn store(&self, ctx: &Ctx, mut a: Store<'_>) -> Result<()> {
        self.panics.at("store");
        attention::store(ctx.host(), &mut a)?;
        match self.fault {
            Fault::MarksEntries => mark_all(&mut a.pool, a.out_slots),
            Fault::NeighbourSlot => writes::neighbours(ctx, &mut a),
            _ => {}
        }
        Ok(())
    }

    fn compress(&self, ctx: &Ctx, a: Compress<'_>) -> Result<()> {
        self.panics.at("compress");
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
        compress(ctx.host(), &mut a)?;
        if self.fault == Fault::MarksEntries {
            mark_all(&mut a.pool, a.out_slots);
        }
        Ok(())
    }

    fn core(&self, ctx: &Ctx, a: Core<'_>) -> Result<()> {
        self.panics.at("core");
        let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut a = a;
        let mut kept = Vec::new();
        match self.fault {
            Fault::HalfScale if !ctx.is_prefill() => a.scale *= 0.5,
            Fault::SinksDropped => {
                let heads = a.heads;
                let none = || {
                    Error::unsupported(format!("sinks-dropped serves {} heads, not {heads}", NO_SINKS.len()))
                };
                a.sinks = NO_SINKS.get(..heads).ok_or_else(none)?;
            }
            Fault::DroppedTail => a.window = a.window.div_ceil(2),
            Fault::HcaMasked if !a.rows.is_empty() && a.ids_of(0).is_none() => {
                (a.entries, a.ratio) = (None, 0)
            }
            Fault::SplitScale => {
                queries.clear();
                queries.extend(a.q.iter().map(|q| q * (a.scale * 3.0)));
                (a.q, a.scale) = (&queries, 1.0 / 3.0);
            }
            Fault::ReadsMarks if sees_mark(&a) => a.scale *= 0.125,
            Fault::RisingIds if !ids_rise(&a) => (a.entries, a.ratio) = (None, 0),
            Fault::UnwrittenTail => kept.extend_from_slice(&a.out[writes::tail(&a)]),
            Fault::Slow => std::thread::sleep(Duration::from_millis(20)),
            Fault::Hang => loop {
                std::thread::park();
            },
            Fault::Error => return Err(Error::internal(format!("planted error of layer {}", ctx.layer()))),
            _ => {}
        }
        attention::core(ctx.host(), &mut a)?;
        let width = a.heads * a.dim;
        match self.fault {
            Fault::RowsPast64 => {
                for row in (TILE..a.rows.len()).rev() {
                    a.out.copy_within((row - TILE) * width..(row - TILE + 1) * width, row * width);
                }
            }
            Fault::Race => {
                let heads = a.out.chunks_exact_mut(a.dim).enumerate();
                let lost = heads.filter(|(number, _)| self.race.lost(*number));
                lost.for_each(|(_, head)| head.iter_mut().for_each(|v| *v *= 0.5));
            }
            Fault::UnwrittenTail => {
                let tail = writes::tail(&a);
                a.out[tail].copy_from_slice(&kept);
            }
            Fault::PastEnd => writes::past_end(ctx, &mut a),
            Fault::Nan => a.out.iter_mut().take(width).for_each(|v| *v = f32::NAN),
            _ => {}
        }
        Ok(())
    }
}

fn mark_all(pool: &mut PoolMut<'_>, slots: &[i32]) {
    for slot in slots.iter().filter(|slot| **slot >= 0) {
        mark(pool.entry_mut(*slot as usize).data);
    }
}

/// Whether the first far entry of any sequence is marked, or in a layer without far entries the row's oldest of the window.
fn sees_mark(a: &Core<'_>) -> bool {
    (0..a.rows.len()).filter(|row| a.rows.positions[*row] >= 0).any(|row| {
        let seq = a.rows.seq(row);
        match &a.entries {
            Some(entries) => a.complete(row) > 0 && is_marked(entries.entry(entries.slot(seq, 0)).data),
            None => is_marked(a.swa.entry(a.swa.slot(seq, a.window_of(row).start)).data),
        }
    })
}

/// Whether the ids of every row rise; true without ids.
fn ids_rise(a: &Core<'_>) -> bool {
    let rows = (0..a.rows.len()).filter(|row| a.rows.positions[*row] >= 0);
    rows.filter_map(|row| a.ids_of(row)).all(|ids| ids.iter().filter(|id| **id >= 0).is_sorted())
}

hotseam_sdk::export_plugin! {
    seam: attention, plugin: Faulty, ops: [store, compress, core],
    name: "faulty/attention", description: "stock attention with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "half-scale",
        "values": ["half-scale", "sinks-dropped", "wrong-slot", "far-no-rope", "dropped-tail", "hca-masked", "rows-past-64",
            "race", "split-scale", "inverse-rope-claimed", "marks-entries", "reads-marks", "rising-ids", "neighbour-slot",
            "unwritten-tail", "past-end", "panic", "nan", "error", "slow", "hang"],
        "help": "what is wrong"},
        "call": {"type": "string", "default": "core",
        "values": ["create", "info", "destroy", "store", "compress", "core"],
        "help": "the call that panics, with the fault `panic`"}}"#,
    cpu: "[]"
}
