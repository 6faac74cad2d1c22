//! Planted faults of the KV hand-off: a transport inside one process that gets a destination wrong.

mod regions;

use hotseam_sdk::abi::{Region, transfer};
use hotseam_sdk::views::Put;
use hotseam_sdk::{Ctx, Error, Host, KvTransport, Plugin, Result};
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
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    fault: Fault,
}

struct Faulty {
    fault: Fault,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    regions: Regions,
    last_ticket: u64,
    /// Bytes moved by each ticket that was not reported yet; copies are complete when `put` returns.
    done: HashMap<u64, u64>,
}

impl Faulty {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Ok(Self { fault: options.fault, state: Mutex::default() })
    }
}

impl KvTransport for Faulty {
    fn register(&self, _ctx: &Ctx, regions: &[Region]) -> Result<()> {
        self.state().regions = Regions::new(regions);
        Ok(())
    }

    fn put(&self, _ctx: &Ctx, a: Put<'_>) -> Result<u64> {
        let mut state = self.state();
        let from = state.regions.get(a.component, a.layer)?;
        let to = match self.fault {
            Fault::NextLayer => state.regions.after(from),
        };
        let bytes = regions::copy(from, to, a.src_items, a.dst_items)?;
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.done.insert(ticket, bytes);
        Ok(ticket)
    }

    fn poll(&self, _ctx: &Ctx, ticket: u64) -> Result<(u32, u64)> {
        let bytes = self.state().done.remove(&ticket);
        let bytes =
            bytes.ok_or_else(|| Error::argument(format!("ticket {ticket} is unknown or was reported")))?;
        Ok((transfer::DONE, bytes))
    }

    fn cancel(&self, _ctx: &Ctx, ticket: u64) -> Result<()> {
        self.state().done.remove(&ticket);
        Ok(())
    }
}

hotseam_sdk::export_plugin! {
    seam: kv_transport, plugin: Faulty, ops: [register, put, poll, cancel],
    name: "faulty/kv_transport", description: "hand-off inside one process with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "next-layer", "values": ["next-layer"],
        "help": "what is wrong"}}"#,
    cpu: "[]"
}
