//! The hand-off between two stores: what was received must be what was sent, byte for byte.

use hotseam_abi::component;
use hotseam_engine::observe::{Handed, Observer};
use hotseam_slots::{CellId, Op, Seam, Snapshot};

use super::tally::{Alarm, CellTally, Place};

/// The cell of the transport.
pub(super) const CELL: CellId =
    CellId { seam: Seam::KvTransport, op: Op::Transport, phase: None, layer: None, rank: None };

/// Watches the hand-offs of one request.
#[derive(Debug, Default)]
pub(super) struct Handoff {
    parts: u64,
    items: u64,
    differing: u64,
    first: Option<String>,
}

impl Observer for Handoff {
    fn handed(&mut self, moved: &mut [Handed<'_>]) {
        for part in moved {
            self.parts += 1;
            let mut wrong = Vec::new();
            for item in 0..part.len() {
                if part.received(item) != part.sent(item) {
                    wrong.push(item);
                }
            }
            self.items += part.len() as u64;
            if let Some(item) = wrong.first() {
                self.differing += 1;
                let name = component::NAMES.get(part.component as usize).copied().unwrap_or("unknown");
                self.first.get_or_insert_with(|| {
                    let (n, of, layer) = (wrong.len(), part.len(), part.layer);
                    format!("{n} of {of} items of {name} of layer {layer} were received otherwise than sent, item {item} first")
                });
            }
        }
    }
}

impl Handoff {
    /// The tally of the transport of `bad`, which was watched; `None` if both ends have the same.
    pub(super) fn tally(&self, good: &Snapshot, bad: &Snapshot, call: u64) -> Option<CellTally> {
        let (good, bad) = (good.transport()?.view(), bad.transport()?.view());
        let mut tally = CellTally::new(CELL, good.generation, bad.generation);
        (tally.calls, tally.rows) = (self.parts, self.items);
        if let Some(what) = &self.first {
            let place = Place { call, cell: CELL, chunk: 0, first_position: -1 };
            tally.patched_alarms = self.differing;
            tally.first_patched = Some(Alarm { place, what: what.clone() });
        }
        Some(tally)
    }
}

/// Whether two snapshots have transports of different code.
pub(super) fn differs(good: &Snapshot, bad: &Snapshot) -> bool {
    match (good.transport(), bad.transport()) {
        (Some(a), Some(b)) => a.put.generation.hash != b.put.generation.hash,
        _ => false,
    }
}
