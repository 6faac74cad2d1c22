//! Hand-off between two pools of one process: `put` copies at once, `poll` reports it.

use hotseam_kv_wire::Regions;
use hotseam_sdk::abi::{Region, transfer};
use hotseam_sdk::{Ctx, Error, Host, KvTransport, NoOptions, Plugin, Result, export_plugin, views};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The variant `kv_transport/local`.
#[derive(Debug, Default)]
pub struct Local {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    regions: Regions,
    /// Bytes moved by each ticket that was not polled yet.
    moved: HashMap<u64, u64>,
    last_ticket: u64,
}

impl Local {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before the lock is released, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plugin for Local {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self::default())
    }
}

impl KvTransport for Local {
    fn register(&self, _ctx: &Ctx, regions: &[Region]) -> Result<()> {
        // SAFETY: the regions stay valid until the next register (contract).
        self.state().regions = unsafe { Regions::new(regions)? };
        Ok(())
    }

    fn put(&self, _ctx: &Ctx, a: views::Put<'_>) -> Result<u64> {
        let mut state = self.state();
        let bytes = state.regions.copy(&a)?;
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        state.moved.insert(ticket, bytes);
        Ok(ticket)
    }

    fn poll(&self, _ctx: &Ctx, ticket: u64) -> Result<(u32, u64)> {
        match self.state().moved.remove(&ticket) {
            Some(bytes) => Ok((transfer::DONE, bytes)),
            None => Err(Error::argument(format!(
                "ticket {ticket} is not known: it was never given, was cancelled, or was reported already"
            ))),
        }
    }

    fn cancel(&self, _ctx: &Ctx, ticket: u64) -> Result<()> {
        self.state().moved.remove(&ticket);
        Ok(())
    }
}

export_plugin! {
    seam: kv_transport, plugin: Local, ops: [register, put, poll, cancel],
    name: "kv_transport/local", description: "Hand-off between two pools of one process, by copy",
    options: "{}",
    cpu: "[]"
}
