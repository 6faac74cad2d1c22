//! Rooms: who asks for which, and how far those are whose requests run here.

use super::puts::Sent;
use crate::disagg::fingerprint::Fingerprints;
use crate::scheduler::pair::{Registered, prompt_sum};
use crate::sequence::{Picked, Ticket};
use crate::transfer::Lost;
use crossbeam_channel::{Receiver, Sender};
use hotseam_pd::{Fingerprint, PrefillEvent, Reserve, ToDecode};
use hotseam_slots::Snapshot;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Rooms that decode workers may ask for before their requests are here.
const MOST_ASKED: usize = 1024;

/// A decode worker that asks for a room.
pub(super) struct Target {
    pub(super) peer: u64,
    pub(super) fingerprint: Arc<Fingerprint>,
    pub(super) reserve: Box<Reserve>,
    pub(super) reply: Sender<ToDecode>,
    /// The table that it is served with, where that is known to fit; otherwise that in force, if it fits.
    pub(super) table: Option<Arc<Snapshot>>,
    pub(super) since: Instant,
}

impl Target {
    /// Tells the worker that there will be no KV.
    pub(super) fn refuse(&self, code: &str, message: &str) {
        let (room, code, message) = (self.reserve.room, code.to_owned(), message.to_owned());
        // A worker that is gone needs no answer.
        let _ = self.reply.send(ToDecode::Failed { room, code, message });
    }

    /// Asks the worker to ask once more.
    pub(super) fn again(&self) {
        let _ = self.reply.send(ToDecode::Again { room: self.reserve.room });
    }
}

/// What a request asks for, as far as the decode worker must ask for the same.
pub(super) struct Asked {
    pub(super) assignment: String,
    pub(super) tokens: usize,
    pub(super) sum: u64,
}

impl Asked {
    pub(super) fn of(ticket: &Ticket) -> Self {
        let request = &ticket.request;
        let (tokens, sum) = (request.prompt.len(), prompt_sum(&request.prompt));
        Self { assignment: request.assignment.clone(), tokens, sum }
    }
}

/// A room whose request runs here.
pub(super) struct Room {
    /// `None` while a held prompt waits for somebody to ask.
    pub(super) target: Option<Target>,
    pub(super) table: Arc<Snapshot>,
    /// The transport's number of the target.
    pub(super) peer: u64,
    pub(super) sent: Sent,
    /// The first token, once the prompt is computed, and the chunks that took.
    pub(super) first: Option<(Picked, u32)>,
    /// Whether the client has its answer.
    pub(super) answered: bool,
    /// When something last went on.
    pub(super) since: Instant,
}

/// All rooms.
pub(crate) struct PrefillEnd {
    pub(in crate::scheduler) events: Receiver<PrefillEvent>,
    /// An event that was taken while waiting.
    pub(in crate::scheduler) early: Option<PrefillEvent>,
    pub(super) asked: HashMap<u64, Target>,
    pub(super) rooms: HashMap<u64, Room>,
    pub(in crate::scheduler) registered: Registered,
    pub(super) fingerprints: Fingerprints,
    pub(super) lost: Lost,
}

impl PrefillEnd {
    pub(in crate::scheduler) fn new(events: Receiver<PrefillEvent>) -> Self {
        Self {
            events,
            early: None,
            asked: HashMap::new(),
            rooms: HashMap::new(),
            registered: Registered::default(),
            fingerprints: Fingerprints::default(),
            lost: Lost::default(),
        }
    }

    pub(in crate::scheduler) fn rooms(&self) -> usize {
        self.asked.len() + self.rooms.len()
    }

    /// Whether any room has somebody to send to.
    pub(in crate::scheduler) fn is_sending(&self) -> bool {
        self.rooms.values().any(|room| room.target.is_some())
    }

    /// Prompts of an assignment that are kept for workers which have not come for them.
    pub(in crate::scheduler) fn kept(&self, assignment: &str) -> usize {
        self.rooms.values().filter(|room| room.target.is_none() && room.table.name() == assignment).count()
    }

    /// The table that a room is served with, where that is known.
    pub(in crate::scheduler) fn table(&self, room: u64) -> Option<Arc<Snapshot>> {
        let open = || self.rooms.get(&room).and_then(|room| room.target.as_ref());
        self.asked.get(&room).or_else(open)?.table.clone()
    }

    /// Whether both workers of a room are here.
    pub(in crate::scheduler) fn is_met(&self, room: u64) -> bool {
        self.asked.contains_key(&room) || self.rooms.contains_key(&room)
    }

    /// Tells whoever asks for a room that there will be no KV.
    pub(in crate::scheduler) fn turn_away(&mut self, room: u64, code: &str, message: &str) {
        let target = self.asked.remove(&room);
        let target = target.or_else(|| self.rooms.get_mut(&room).and_then(|room| room.target.take()));
        if let Some(target) = target {
            target.refuse(code, message);
        }
    }

    /// As [`Self::turn_away`], of a room whose request does not run.
    pub(in crate::scheduler) fn forget(&mut self, room: u64, code: &str, message: &str) {
        self.turn_away(room, code, message);
        self.rooms.remove(&room);
    }

    /// The client of a waiting request has left.
    pub(in crate::scheduler) fn left(&mut self, ticket: &Ticket) {
        // Where the room is open, it is that of another request, unless this one is to be computed anew.
        let own = |room: &u64| ticket.resume.is_some() || !self.rooms.contains_key(room);
        if let Some(room) = ticket.room().filter(own) {
            self.forget(room, "E-PD-PEER", "the client of the prefill worker left");
        }
    }

    /// A room is asked for.
    pub(super) fn ask(&mut self, target: Target) {
        let number = target.reserve.room;
        match self.rooms.get_mut(&number) {
            Some(room) if room.target.is_none() => room.target = Some(target),
            Some(_) => {
                target.refuse("E-PD-ROOM", &format!("room {number} is in use; a room serves one request"))
            }
            None if self.asked.contains_key(&number) => {
                target.refuse(
                    "E-PD-ROOM",
                    &format!("room {number} is asked for already; a room serves one request"),
                );
            }
            None if self.asked.len() >= MOST_ASKED => {
                target.refuse("E-PD-BUSY", &format!("{MOST_ASKED} rooms wait for their requests here"));
            }
            None => {
                self.asked.insert(number, target);
            }
        }
    }
}
