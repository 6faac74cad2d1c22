//! What one sequence holds in a store.

use crate::writer::{Code, History, PhaseCode};
use crate::{C4_RING, C128_RING};
use std::sync::Arc;

/// Pages and state rows of one sequence. Made by [`crate::KvStore::open`], given back by [`crate::KvStore::close`].
#[derive(Debug)]
pub struct SeqKv {
    /// Committed positions.
    pub(crate) len: usize,
    /// Full pages, in order of position; all that the sequence may ever need are reserved when it is opened.
    pub(crate) pages: Vec<i32>,
    /// Window pages by position / 256; -1 where not mapped.
    pub(crate) window_pages: Vec<i32>,
    /// State row of position p at `p % 8`, -1 where none.
    pub(crate) c4_ring: [i32; C4_RING],
    /// State row of position p at `p % 128`, -1 where none.
    pub(crate) c128_ring: [i32; C128_RING],
    /// Rows that the running step writes: (position, row).
    pub(crate) c4_fresh: Vec<(usize, i32)>,
    /// As `c4_fresh`.
    pub(crate) c128_fresh: Vec<(usize, i32)>,
    /// Who wrote the committed positions.
    pub(crate) history: History,
}

impl SeqKv {
    pub(crate) fn new(pages: Vec<i32>) -> Self {
        let n = pages.len();
        Self {
            len: 0,
            pages,
            window_pages: vec![-1; n],
            c4_ring: [-1; C4_RING],
            c128_ring: [-1; C128_RING],
            c4_fresh: Vec::with_capacity(C4_RING),
            c128_fresh: Vec::with_capacity(C128_RING),
            history: History::new(),
        }
    }

    /// Number of committed positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is committed yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Notes who wrote the positions before `end` that nobody is noted for yet, of a sequence that came from elsewhere.
    pub fn written_until(&mut self, end: usize, writer: &Arc<PhaseCode>) {
        self.history.record(end.min(self.len), writer);
    }

    /// Full pages whose positions are all committed, in order of position.
    pub fn complete_pages(&self) -> usize {
        self.len / crate::PAGE_TOKENS
    }

    /// Notes that `writer` wrote the positions committed since the last note.
    pub fn written_by(&mut self, writer: &Arc<PhaseCode>) {
        self.history.record(self.len, writer);
    }

    /// Notes that `carrier` moved everything here.
    pub fn carried_by(&mut self, carrier: &Arc<Code>) {
        self.history.carry(carrier);
    }

    /// Who wrote the committed positions.
    pub fn history(&self) -> &History {
        &self.history
    }
}

/// Positions whose state rows must be kept when `len` positions are committed: of the previous ratio-4 group and the
/// open one.
pub(crate) fn c4_kept(len: usize) -> std::ops::Range<usize> {
    (len / 4 * 4).saturating_sub(4)..len
}

/// As [`c4_kept`], of the open ratio-128 group.
pub(crate) fn c128_kept(len: usize) -> std::ops::Range<usize> {
    len / 128 * 128..len
}
