//! Planted faults of the KV hand-off: a transport, inside one process or between two, that gets one thing wrong.

mod regions;
mod wire;

use hotseam_faulty_common::{LostUpdates, Panics};
use hotseam_sdk::abi::{Region, component, transfer};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::views::{Accept, Put};
use hotseam_sdk::{Ctx, Error, Host, Info, KvTransport, Plugin, Result};
use regions::Regions;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::Shadowed;

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
    /// The receiving side counts in pages of 64 positions where they have 256, so each item lands at a quarter of its offset. One
    /// side's indices were made with the page size of another pool (<https://github.com/sgl-project/sglang/pull/28879>).
    PageSize,
    /// One component, that of the option, is reported as sent and is not. A transport that lists the kinds of state that it
    /// knows forgets the one that came later.
    ComponentDropped,
    /// Ratio-128 entries come from the buffers that stand as many places before them as there are ratio-4 layers, in a list of
    /// all ratio-4, all key and all ratio-128 buffers: index keys
    /// (<https://github.com/sgl-project/sglang/issues/25765>).
    LayerOffset,
    /// State rows go where they would be in a ring of another size: half the list further
    /// (<https://github.com/sgl-project/sglang/pull/38922>).
    RingSize,
    /// The second half of the last item of the component of the option is not sent.
    TruncatedPage,
    /// The first item of the component of the option arrives with the bytes that it had in the put before, of another request.
    StalePage,
    /// One bit in the middle of the first item of the component of the option is flipped.
    BitFlip,
    /// The first two items of the component of the option change places.
    Reorder,
    /// An item that nobody named is written beside those of the component of the option.
    StrayPage,
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
    component: String,
}

struct Faulty {
    fault: Fault,
    /// The component that faults of one are about.
    component: u32,
    panics: Panics,
    race: LostUpdates,
    state: Mutex<State>,
}

struct State {
    /// Between processes.
    shadowed: Shadowed,
    regions: Regions,
    last_ticket: u64,
    open: HashMap<u64, Ticket>,
    /// First item of the last put, by component and layer.
    before: HashMap<(u32, u32), Vec<u8>>,
}

/// A put that was not reported yet.
struct Ticket {
    bytes: u64,
    /// Its ticket of the wire, if it goes to another process.
    sent: Option<u64>,
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
        let component = component::NAMES.iter().position(|name| *name == options.component);
        let component = component.ok_or_else(|| Error::argument("component: no such component"))? as u32;
        Ok(Self {
            fault: options.fault,
            component,
            panics,
            race: LostUpdates::default(),
            state: Mutex::new(State {
                shadowed: Shadowed::new(),
                regions: Regions::default(),
                last_ticket: 0,
                open: HashMap::new(),
                before: HashMap::new(),
            }),
        })
    }

    fn info(&self, _shape: Shape) -> Info {
        self.panics.at("info");
        Info::PLAIN
    }
}

impl KvTransport for Faulty {
    fn register(&self, _ctx: &Ctx, regions: &[Region]) -> Result<()> {
        self.panics.at("register");
        let state = &mut *self.state();
        state.regions = Regions::new(&state.shadowed.register(regions)?);
        Ok(())
    }

    fn put(&self, _ctx: &Ctx, a: Put<'_>) -> Result<u64> {
        self.panics.at("put");
        let mut state = self.state();
        let from = &state.regions.get(a.component, a.layer)?.to_owned();
        // To another process it goes by way of memory of the same shape as the sending side.
        let remote = a.peer != 0;
        let bytes = regions::check(from, from, a.src_items, if remote { a.src_items } else { a.dst_items })?;
        if remote {
            wire::clear(from, a.src_items);
        }
        let kv = matches!(a.component, component::SWA | component::C4 | component::C128);
        let stateful =
            matches!(a.component, component::C4_STATE | component::C128_STATE | component::INDEX_STATE);
        let (src, dst) = (a.src_items, if remote { a.src_items } else { a.dst_items });
        let chosen = a.component == self.component && !src.is_empty();
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
            Fault::LateReversed if !remote => {
                let reversed = |items: &[i32]| items.iter().rev().copied().collect::<Vec<_>>();
                let (src, dst) = (reversed(src), reversed(dst));
                late = Some(Late { component: a.component, layer: a.layer, src, dst, polled: false });
            }
            Fault::PageSize => regions::copy_with_quarter_stride(from, src, dst)?,
            Fault::StateDropped if stateful => {}
            Fault::ComponentDropped if chosen => {}
            Fault::LayerOffset if a.component == component::C128 => {
                regions::copy_from_before(&state.regions, from, src, dst)?;
            }
            Fault::RingSize if stateful => {
                let at = dst.len() / 2;
                regions::copy(from, from, src, &[&dst[at..], &dst[..at]].concat())?;
            }
            Fault::Reorder if chosen && dst.len() > 1 => {
                let mut dst = dst.to_vec();
                dst.swap(0, 1);
                regions::copy(from, from, src, &dst)?;
            }
            Fault::TruncatedPage if chosen => {
                let last = src.len() - 1;
                regions::copy(from, from, &src[..last], &dst[..last])?;
                regions::write(
                    from,
                    dst[last],
                    &regions::read(from, src[last])[..from.item_bytes as usize / 2],
                );
            }
            Fault::BitFlip if chosen => {
                regions::copy(from, from, src, dst)?;
                let mut bytes = regions::read(from, src[0]);
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                regions::write(from, dst[0], &bytes);
            }
            Fault::StrayPage if chosen => {
                regions::copy(from, from, src, dst)?;
                let stray = (0..from.dst_items as i32).rev().find(|item| !dst.contains(item));
                if let Some(stray) = stray {
                    regions::write(from, stray, &regions::read(from, src[0]));
                }
            }
            Fault::StalePage if chosen => {
                regions::copy(from, from, src, dst)?;
                let (key, now) = ((a.component, a.layer), regions::read(from, src[0]));
                let before = state.before.get(&key).filter(|bytes| bytes.len() == now.len());
                before.iter().for_each(|bytes| regions::write(from, dst[0], bytes));
                state.before.insert(key, now);
            }
            _ => regions::copy(from, from, src, dst)?,
        }
        let sent = if remote { Some(state.shadowed.wire().put(&a)?) } else { None };
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.open.insert(ticket, Ticket { bytes, sent, late });
        Ok(ticket)
    }

    fn poll(&self, ctx: &Ctx, ticket: u64) -> Result<(u32, u64)> {
        self.panics.at("poll");
        if self.panics.is("cancel") {
            return Err(Error::internal(format!("planted error of ticket {ticket}")));
        }
        let state = &mut *self.state();
        let unknown = || Error::argument(format!("ticket {ticket} is unknown or was reported"));
        let open = state.open.get_mut(&ticket).ok_or_else(unknown)?;
        if let Some(sent) = open.sent {
            let (now, bytes) = state.shadowed.wire().poll(sent)?.report(ctx);
            if now != transfer::DONE {
                return Ok((now, bytes));
            }
        }
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
        let state = &mut *self.state();
        if let Some(sent) = state.open.remove(&ticket).and_then(|open| open.sent) {
            state.shadowed.wire().cancel(sent);
        }
        Ok(())
    }

    fn endpoint(&self, _ctx: &Ctx) -> Result<String> {
        self.state().shadowed.wire().endpoint()
    }

    fn connect(&self, _ctx: &Ctx, endpoint: &str) -> Result<u64> {
        self.state().shadowed.wire().connect(endpoint)
    }

    fn accept(&self, _ctx: &Ctx, a: Accept<'_>) -> Result<()> {
        self.state().shadowed.wire().accept(&a)
    }

    fn close(&self, _ctx: &Ctx, room: u64) -> Result<u64> {
        Ok(self.state().shadowed.wire().close(room))
    }
}

hotseam_sdk::export_plugin! {
    seam: kv_transport, plugin: Faulty,
    ops: [register, put, poll, cancel, endpoint, connect, accept, close],
    name: "faulty/kv_transport", description: "hand-off, inside one process or between two, with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "next-layer",
        "values": ["next-layer", "half-values", "dropped-tail", "race", "late-reversed", "page-size", "state-dropped",
            "short-count", "panic", "component-dropped", "layer-offset", "ring-size", "truncated-page", "stale-page",
            "bit-flip", "reorder", "stray-page"],
        "help": "what is wrong"},
        "component": {"type": "string", "default": "c4",
        "values": ["swa", "c4", "c128", "index_keys", "c4_state", "c128_state", "index_state"],
        "help": "the component that a fault of one is about"},
        "call": {"type": "string", "default": "put",
        "values": ["create", "info", "destroy", "register", "put", "poll", "cancel"],
        "help": "the call that panics, with the fault `panic`"}}"#,
    cpu: "[]"
}
