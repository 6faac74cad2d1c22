//! What became of the puts.

use hotseam_sdk::Ctx;
use hotseam_sdk::abi::transfer;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What became of the puts.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<HashMap<u64, Ticket>>);

#[derive(Debug, Default)]
struct Ticket {
    pieces: usize,
    bytes: u64,
    failed: Option<String>,
}

/// State of a ticket.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// Under way, with so many bytes moved.
    Pending(u64),
    /// In place, with all its bytes.
    Done(u64),
    /// Given up, and why.
    Failed(String),
}

impl Progress {
    /// As `poll` gives it to the host, which is told why a ticket failed.
    pub fn report(self, ctx: &Ctx) -> (u32, u64) {
        match self {
            Self::Pending(bytes) => (transfer::PENDING, bytes),
            Self::Done(bytes) => (transfer::DONE, bytes),
            Self::Failed(why) => {
                ctx.host().report(&why);
                (transfer::FAILED, 0)
            }
        }
    }
}

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ticket of so many pieces.
    pub(crate) fn open(&self, ticket: u64, pieces: usize) {
        self.lock().insert(ticket, Ticket { pieces, ..Ticket::default() });
    }

    /// The state, which is forgotten if it is final; `None` if there is no such ticket.
    pub(crate) fn poll(&self, ticket: u64) -> Option<Progress> {
        let mut tickets = self.lock();
        let known = tickets.get_mut(&ticket)?;
        let state = match (known.failed.take(), known.pieces) {
            (Some(why), _) => Progress::Failed(why),
            (None, 0) => Progress::Done(known.bytes),
            (None, _) => return Some(Progress::Pending(known.bytes)),
        };
        tickets.remove(&ticket);
        Some(state)
    }

    pub(crate) fn forget(&self, ticket: u64) {
        self.lock().remove(&ticket);
    }

    pub(crate) fn done(&self, ticket: u64, bytes: u64) {
        if let Some(known) = self.lock().get_mut(&ticket) {
            known.pieces -= 1;
            known.bytes += bytes;
        }
    }

    pub(crate) fn fail(&self, ticket: u64, why: &str) {
        if let Some(known) = self.lock().get_mut(&ticket) {
            known.failed.get_or_insert_with(|| why.to_owned());
        }
    }
}
