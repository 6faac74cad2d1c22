//! {{description}}.
//!
//! A plain working transport to start from: `put` copies at once, `poll` reports it. The four functions share their
//! tickets, so a transport serves all of them and has no base.

use hotseam_sdk::abi::{Region, transfer};
use hotseam_sdk::views::Put;
use hotseam_sdk::{Ctx, Error, Host, KvTransport, NoOptions, Plugin, Result, export_plugin};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The variant `kv_transport/{{name}}`.
#[derive(Debug, Default)]
pub struct Variant {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Regions by component and layer.
    regions: HashMap<(u32, u32), Region>,
    /// Bytes moved by each ticket that was not polled yet.
    moved: HashMap<u64, u64>,
    last_ticket: u64,
}

// SAFETY: the pointers of the regions belong to the host, which lets the transport's thread use them (contract).
unsafe impl Send for State {}

impl Variant {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plugin for Variant {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self::default())
    }
}

impl KvTransport for Variant {
    fn register(&self, _ctx: &Ctx, regions: &[Region]) -> Result<()> {
        self.state().regions = regions.iter().map(|r| ((r.component, r.layer), *r)).collect();
        Ok(())
    }

    fn put(&self, _ctx: &Ctx, a: Put<'_>) -> Result<u64> {
        let mut state = self.state();
        let bytes = {
            let region = state.regions.get(&(a.component, a.layer)).ok_or_else(|| {
                Error::argument(format!("component {} of layer {} is not registered", a.component, a.layer))
            })?;
            copy(region, a.src_items, a.dst_items)?
        };
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.moved.insert(ticket, bytes);
        Ok(ticket)
    }

    fn poll(&self, _ctx: &Ctx, ticket: u64) -> Result<(u32, u64)> {
        let moved = self.state().moved.remove(&ticket);
        let bytes = moved.ok_or_else(|| Error::argument(format!("ticket {ticket} is not known")))?;
        Ok((transfer::DONE, bytes))
    }

    fn cancel(&self, _ctx: &Ctx, ticket: u64) -> Result<()> {
        self.state().moved.remove(&ticket);
        Ok(())
    }
}

/// Copies item `from[i]` to item `to[i]`; returns the bytes moved. Writes nothing if an item is outside its side.
fn copy(region: &Region, from: &[i32], to: &[i32]) -> Result<u64> {
    for (items, limit) in [(from, region.src_items), (to, region.dst_items)] {
        if let Some(bad) = items.iter().find(|item| u64::try_from(**item).map_or(true, |item| item >= limit)) {
            return Err(Error::argument(format!("item {bad} of {limit}")));
        }
    }
    let bytes = region.item_bytes as usize;
    for (from, to) in from.iter().zip(to) {
        // SAFETY: both items are inside their sides, which the host keeps valid until the next register (contract).
        unsafe {
            region.src.add(*from as usize * bytes).copy_to(region.dst.add(*to as usize * bytes), bytes);
        }
    }
    Ok(region.item_bytes * from.len() as u64)
}

export_plugin! {
    seam: kv_transport, plugin: Variant, ops: [register, put, poll, cancel],
    name: "kv_transport/{{name}}", description: "{{description}}",
    options: "{}",
    cpu: "[]"
}
