//! Planted faults of the KV hand-off: a transport inside one process that gets one thing wrong.

mod regions;

use hotseam_faulty_common::{LostUpdates, Panics};
use hotseam_sdk::abi::{Region, component, transfer};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::views::Put;
use hotseam_sdk::{Ctx, Error, Host, Info, KvTransport, Plugin, Result};
use regions::Regions;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// Ratio-4 attention entries go to the next ratio-4 layer, the last layer's to the first. In the wild a list of
    /// buffers grouped by type was sliced as if it were grouped by layer
    /// (<https://github.com/sgl-project/sglang/pull/24704>).
    NextLayer,
    /// Attention entries arrive with half their value, as when a scale is not sent with what it scales.
    HalfValues,
    /// The last item of each put is not sent.
    DroppedTail,
    /// Some items are not sent: see [`LostUpdates`]. Failed transfers that did not fail their request gave garbled
    /// or empty text now and then (<https://github.com/vllm-project/vllm-ascend/issues/9220>).
    Race,
    /// No fault: items are copied when they are polled for, the last one first, and the first poll says that they are
    /// pending. It must be cleared.
    LateReversed,
    /// The receiving side counts in items of half the size, so each item lands at half its offset and is half written. One
    /// side's indices were made with the page size of another pool (<https://github.com/sgl-project/sglang/pull/28879>).
    PageSize,
    /// Compressor states are reported as sent and are not. One transport had no branch for a state type, and only some
    /// ends of prompts looked wrong (<https://github.com/sgl-project/sglang/pull/24878>).
    StateDropped,
    /// Everything is sent; `poll` reports half the bytes of a put as moved when it says that the put is done.
    ShortCount,
    /// The call of the option `call` panics. Nobody cancels unless something failed, so with `cancel` each `poll` fails.
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
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    regions: Regions,
    last_ticket: u64,
    open: HashMap<u64, Ticket>,
}

/// A put that was not reported yet.
struct Ticket {
    bytes: u64,
    late: Option<Late>,
}

/// What is still to be copied.
struct Late {
    component: u32,
    layer: u32,
    src: Vec<i32>,
    dst: Vec<i32>,
    polled: bool,
}

impl Faulty {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let panics = Panics::new(options.fault == Fault::Panic, options.call);
        Ok(Self { fault: options.fault, panics, race: LostUpdates::default(), state: Mutex::default() })
    }

    fn info(&self, _shape: Shape) -> Info {
        self.panics.at("info");
        Info::PLAIN
    }
}

impl KvTransport for Faulty {
    fn register(&self, _ctx: &Ctx, regions: &[Region]) -> Result<()> {
        self.panics.at("register");
        self.state().regions = Regions::new(regions);
        Ok(())
    }

    fn put(&self, _ctx: &Ctx, a: Put<'_>) -> Result<u64> {
        self.panics.at("put");
        let mut state = self.state();
        let from = state.regions.get(a.component, a.layer)?;
        let bytes = regions::check(from, from, a.src_items, a.dst_items)?;
        let kv = matches!(a.component, component::SWA | component::C4 | component::C128);
        let stateful =
            matches!(a.component, component::C4_STATE | component::C128_STATE | component::INDEX_STATE);
        let (src, dst) = (a.src_items, a.dst_items);
        let mut late = None;
        match self.fault {
            Fault::NextLayer => regions::copy(from, state.regions.after(from), src, dst)?,
            Fault::HalfValues if kv => regions::copy_halved(from, src, dst)?,
            Fault::DroppedTail => {
                let sent = src.len().saturating_sub(1);
                regions::copy(from, from, &src[..sent], &dst[..sent])?;
            }
            Fault::Race => {
                for i in (0..src.len()).filter(|i| !self.race.lost(*i)) {
                    regions::copy(from, from, &src[i..=i], &dst[i..=i])?;
                }
            }
            Fault::LateReversed => {
                let reversed = |items: &[i32]| items.iter().rev().copied().collect::<Vec<_>>();
                let (src, dst) = (reversed(src), reversed(dst));
                late = Some(Late { component: a.component, layer: a.layer, src, dst, polled: false });
            }
            Fault::PageSize => regions::copy_with_half_stride(from, src, dst)?,
            Fault::StateDropped if stateful => {}
            Fault::HalfValues | Fault::StateDropped | Fault::ShortCount | Fault::Panic => {
                regions::copy(from, from, src, dst)?
            }
        }
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.open.insert(ticket, Ticket { bytes, late });
        Ok(ticket)
    }

    fn poll(&self, _ctx: &Ctx, ticket: u64) -> Result<(u32, u64)> {
        self.panics.at("poll");
        if self.panics.is("cancel") {
            return Err(Error::internal(format!("planted error of ticket {ticket}")));
        }
        let state = &mut *self.state();
        let unknown = || Error::argument(format!("ticket {ticket} is unknown or was reported"));
        let open = state.open.get_mut(&ticket).ok_or_else(unknown)?;
        if let Some(late) = &mut open.late {
            if !std::mem::replace(&mut late.polled, true) {
                return Ok((transfer::PENDING, 0));
            }
            let region = state.regions.get(late.component, late.layer)?;
            regions::copy(region, region, &late.src, &late.dst)?;
        }
        let bytes = if self.fault == Fault::ShortCount { open.bytes / 2 } else { open.bytes };
        state.open.remove(&ticket);
        Ok((transfer::DONE, bytes))
    }

    fn cancel(&self, _ctx: &Ctx, ticket: u64) -> Result<()> {
        self.panics.at("cancel");
        self.state().open.remove(&ticket);
        Ok(())
    }
}

hotseam_sdk::export_plugin! {
    seam: kv_transport, plugin: Faulty, ops: [register, put, poll, cancel],
    name: "faulty/kv_transport", description: "hand-off inside one process with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "next-layer",
        "values": ["next-layer", "half-values", "dropped-tail", "race", "late-reversed", "page-size", "state-dropped",
            "short-count", "panic"],
        "help": "what is wrong"},
        "call": {"type": "string", "default": "put",
        "values": ["create", "info", "destroy", "register", "put", "poll", "cancel"],
        "help": "the call that panics, with the fault `panic`"}}"#,
    cpu: "[]"
}
