//! Other workers that have a part in requests: what the two roles have in common.

use super::receiving::DecodeEnd;
use super::sending::PrefillEnd;
use super::{Scheduler, layouts};
use crate::engine::{Incoming, Published};
use crate::sequence::{Sequence, Stage, Ticket};
use crate::transfer::context;
use crate::{KvMap, Role};
use crossbeam_channel::{Receiver, never, select};
use hotseam_abi::{Region, RegisterArgs};
use hotseam_kv::LayerLayout;
use hotseam_ops::Checksum;
use hotseam_pd::{DecodeEvent, DecodeSide, PrefillEvent};
use hotseam_slots::{CallError, RemoteCell, Snapshot, TransportCell};
use std::sync::Arc;
use std::time::Duration;

/// How long the engine waits for news while transfers are under way, and while nothing is.
const BUSY: Duration = Duration::from_micros(200);
const QUIET: Duration = Duration::from_millis(20);

/// The other workers, as this one's role has them.
pub(crate) enum Pair {
    /// Role `single`.
    None,
    /// Decode workers.
    Prefill(Box<PrefillEnd>),
    /// Prefill workers.
    Decode(Box<DecodeEnd>),
}

/// Regions that transport instances were given.
#[derive(Debug, Default)]
pub(super) struct Registered(Vec<(u64, Vec<LayerLayout>)>);

/// Instances whose regions are remembered.
const INSTANCES: usize = 16;

impl Registered {
    /// Whether the instance has the regions of these layouts.
    pub(super) fn has(&self, cell: &TransportCell, mut layouts: impl Iterator<Item = LayerLayout>) -> bool {
        let known = self.0.iter().find(|(id, _)| *id == cell.put.generation.id);
        known.is_some_and(|(_, known)| layouts.by_ref().eq(known.iter().copied()))
    }

    /// Whether regions may be given to the instance: it has none, so nothing of them is under way.
    pub(super) fn is_new(&self, cell: &TransportCell) -> bool {
        self.0.iter().all(|(id, _)| *id != cell.put.generation.id)
    }

    /// Gives the instance these regions. Nothing of others that it has may be under way.
    pub(super) fn register(
        &mut self,
        cell: &TransportCell,
        layouts: &[LayerLayout],
        regions: &[Region],
    ) -> Result<(), CallError> {
        let args = RegisterArgs {
            size: size_of::<RegisterArgs>() as u32,
            n_regions: regions.len() as u32,
            regions: regions.as_ptr(),
        };
        self.0.retain(|(id, _)| *id != cell.put.generation.id);
        cell.register.call(&context(), &args, 0)?;
        if self.0.len() == INSTANCES {
            self.0.remove(0);
        }
        self.0.push((cell.put.generation.id, layouts.to_vec()));
        Ok(())
    }
}

/// A failure as clients hear of it: code and text.
pub(super) type Failure = (&'static str, String);

/// A call that failed, as clients hear of it.
pub(super) fn call_failure(error: &CallError) -> Failure {
    ("E-PLUG-501", error.to_string().trim_start_matches("E-PLUG-501 ").to_owned())
}

/// The functions that reach other processes.
pub(super) fn remote(cell: &TransportCell) -> Result<&RemoteCell, Failure> {
    cell.remote.as_ref().ok_or_else(|| {
        let variant = &cell.put.generation.spec;
        let message = format!(
            "{variant} has both sides in one process; give kv_transport to kv_transport/tcp or kv_transport/shm"
        );
        ("E-PD-TRANSPORT", message)
    })
}

/// Checksum of a prompt, by which both workers know that they read the same.
pub(super) fn prompt_sum(prompt: &[u32]) -> u64 {
    let mut sum = Checksum::default();
    prompt.iter().for_each(|token| sum.update(&token.to_le_bytes()));
    sum.finish()
}

/// Lets anyone see what an audited hand-off brought.
pub(super) fn publish_map(published: &Published, map: Option<KvMap>) {
    if let Some(map) = map {
        published.show_map(map);
    }
}

impl Pair {
    pub(crate) fn prefill(events: Receiver<PrefillEvent>) -> Self {
        Self::Prefill(Box::new(PrefillEnd::new(events)))
    }

    pub(crate) fn decode(side: DecodeSide, events: Receiver<DecodeEvent>) -> Self {
        Self::Decode(Box::new(DecodeEnd::new(side, events)))
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Rooms that are open or asked for.
    pub(super) fn rooms(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Prefill(end) => end.rooms(),
            Self::Decode(end) => end.rooms(),
        }
    }
}

impl Scheduler {
    /// As `listen`, for a worker of a pair: wakes for other workers too, and looks at transfers now and then.
    pub(super) fn listen_to_pair(&mut self, incoming: &Receiver<Incoming>, open: bool) -> bool {
        let runs = |s: &Sequence| matches!(s.stage, Stage::Prefill { .. } | Stage::Decode { .. });
        let idle = !self.running.iter().any(runs);
        let patience = match &self.pair {
            Pair::Prefill(end) if end.is_sending() => BUSY,
            _ => QUIET,
        };
        let (mut open, closed) = (open, never());
        if idle {
            let requests = if open { incoming } else { &closed };
            let mut first = None;
            match &mut self.pair {
                Pair::None => {}
                Pair::Prefill(end) => select! {
                    recv(requests) -> request => first = Some(request),
                    recv(end.events) -> event => end.early = event.ok(),
                    default(patience) => {}
                },
                Pair::Decode(end) => select! {
                    recv(requests) -> request => first = Some(request),
                    recv(end.events) -> event => end.early = event.ok(),
                    default(patience) => {}
                },
            }
            match first {
                Some(Ok(news)) => self.take(news),
                Some(Err(_)) => open = false,
                None => {}
            }
        }
        match self.config.role {
            Role::Single => {}
            Role::Prefill => self.hear_decode_workers(),
            Role::Decode => self.hear_prefill_workers(),
        }
        self.drain(incoming, open)
    }

    /// Whether a waiting request may be started as far as other workers are concerned.
    pub(super) fn may_start(&self, ticket: &Ticket) -> bool {
        let Some(room) = ticket.room() else { return true };
        let table = || self.slots.snapshot(&ticket.request.assignment);
        let of = |table: &Snapshot, registered: &Registered, busy: bool| {
            let has = |cell: &TransportCell| {
                registered.is_new(cell) || registered.has(cell, layouts(&self.model.config, table))
            };
            !busy || table.transport().is_none_or(has)
        };
        match &self.pair {
            Pair::None => true,
            Pair::Prefill(end) => {
                let wanted =
                    end.is_met(room) || ticket.request.disaggregation.as_ref().is_some_and(|b| b.hold);
                let table = || end.table(room).or_else(table);
                wanted && table().is_none_or(|table| of(&table, &end.registered, end.is_sending()))
            }
            Pair::Decode(end) => {
                !end.pauses() && table().is_none_or(|table| of(&table, &end.registered, end.rooms() > 0))
            }
        }
    }

    /// Takes a waiting request into its room. `None`: it was refused, or has been started otherwise.
    pub(super) fn enter_room(
        &mut self,
        ticket: Ticket,
        table: &Arc<Snapshot>,
        layouts: &Arc<[LayerLayout]>,
    ) -> Option<Ticket> {
        match self.config.role {
            Role::Prefill => self.open_room(ticket, table, layouts),
            // A swap that spoiled its KV: this worker computes it again itself.
            Role::Decode if ticket.resume.is_some() => Some(ticket),
            Role::Decode => {
                self.receive(ticket, table, layouts);
                None
            }
            Role::Single => Some(ticket),
        }
    }

    /// Refuses a request that was not started, and tells the worker that waits for it.
    pub(super) fn refuse(&mut self, ticket: &Ticket, code: &str, message: &str) {
        ticket.fail(code, message);
        let room = ticket.room().filter(|room| self.member(*room).is_none());
        if let (Pair::Prefill(end), Some(room)) = (&mut self.pair, room) {
            end.forget(room, code, message);
        }
    }

    /// Fails a running request, and tells the other worker why.
    pub(super) fn fail_running(&mut self, index: usize, code: &str, message: &str) {
        let ticket = &self.running[index].ticket;
        let room = ticket.room();
        tracing::warn!(code, room, "request failed: {message}");
        // Whoever asked for a held prompt has had the last event.
        if !self.is_held(index) {
            ticket.fail(code, message);
        }
        if let (Pair::Prefill(end), Some(room)) = (&mut self.pair, room) {
            end.turn_away(room, code, message);
        }
        self.remove(index);
    }

    /// Ends what a removed request has with another worker. `None` if its KV may not be given back yet.
    pub(super) fn leave_room(&mut self, sequence: Sequence) -> Option<Sequence> {
        match self.config.role {
            Role::Single => Some(sequence),
            Role::Prefill => self.end_sending(sequence),
            Role::Decode => self.end_receiving(sequence),
        }
    }

    /// What is due at the end of a turn. `open` says whether requests can still come.
    pub(super) fn pair_turn(&mut self, open: bool) {
        match self.config.role {
            Role::Single => {}
            Role::Prefill => self.send_turn(open),
            Role::Decode => self.receive_turn(),
        }
    }

    /// The running request of a room.
    pub(super) fn member(&self, room: u64) -> Option<usize> {
        self.running.iter().position(|s| s.ticket.room() == Some(room))
    }
}
