//! A swap of the group that was kept, and may still fail late on one of its workers.

use super::drive::no_code;
use crate::swaps::run::Runner;
use crate::swaps::trial::Failure;
use hotseam_pd::{GroupMessage, Order, Prepare};
use hotseam_slots::Snapshot;
use std::sync::{Arc, Weak};

/// Assignments whose last swap is remembered, at most.
const MOST_KEPT: usize = 64;

/// A swap of the group that was kept, so that it can be taken back everywhere if it fails late.
#[derive(Debug, Clone)]
pub(in crate::swaps) struct Kept {
    swap: String,
    assignment: String,
    /// `None` where this worker was so already: then it only passes on what others say. It keeps no table alive.
    table: Option<Weak<Snapshot>>,
    /// Names of the workers that this one has met in it.
    members: Vec<String>,
}

impl Runner {
    /// Notes that the swap which runs is kept, with this table.
    pub(super) fn note_kept(&self, table: Option<&Arc<Snapshot>>) {
        let of = |node: &mut super::Node| (node.prepare(), node.took_part());
        let Some((Prepare { swap, assignment, .. }, members)) = self.with_node(of) else { return };
        let mut all = self.kept.borrow_mut();
        // Of each assignment the last swap can be taken back.
        all.retain(|kept| kept.assignment != assignment);
        if all.len() >= MOST_KEPT {
            all.remove(0);
        }
        all.push(Kept { swap, assignment, table: table.map(Arc::downgrade), members });
    }

    /// The swap that runs is not kept after all.
    pub(super) fn forget_kept(&self) {
        let Some(swap) = self.with_node(|node| node.swap().to_owned()) else { return };
        self.kept.borrow_mut().retain(|kept| kept.swap != swap);
    }

    /// Whether a swap of the group was kept here; then `worker`, which asks for it, has a part in it as well.
    pub(super) fn has_kept_with(&self, swap: &str, worker: String) -> bool {
        let mut kept = self.kept.borrow_mut();
        let Some(kept) = kept.iter_mut().find(|kept| kept.swap == swap) else { return false };
        if !kept.members.contains(&worker) {
            kept.members.push(worker);
        }
        true
    }

    /// Takes a swap of the group back that was kept here and failed elsewhere; `peer` says so. False if it is not: that
    /// worker had no part in it as far as this one knows, or another swap came since, which it is told.
    pub(super) fn take_back_kept(&self, peer: u64, swap: &str) -> bool {
        let worker = self.mates.as_ref().map_or_else(String::new, |mates| mates.book.name(peer));
        let kept = self.kept.borrow().iter().find(|kept| kept.swap == swap).cloned();
        let Some(Kept { table, members, .. }) = kept else { return true };
        if !members.contains(&worker) {
            tracing::warn!(
                worker,
                swap,
                "a worker that had no part in a swap of the group wants it to be taken back"
            );
            return false;
        }
        let failure = no_code(format!("worker {worker} of the swap group has taken the swap back"));
        let back = table.map(|table| {
            table.upgrade().is_some_and(|table| self.take_back_table(table, failure.clone(), Some(peer)))
        });
        match back {
            Some(true) => true,
            Some(false) => {
                let message = "E-PLUG-405 this worker was swapped again since, so the swap is not taken back";
                let (swap, message) = (swap.to_owned(), message.to_owned());
                self.say(peer, GroupMessage::Failed { swap, code: 405, message });
                false
            }
            None => {
                self.kept.borrow_mut().retain(|kept| kept.swap != swap);
                self.say_taken_back(swap, &failure, Some(peer));
                true
            }
        }
    }

    /// Tells the group, without `except`, that a swap of it which was kept has been taken back here.
    pub(in crate::swaps) fn tell_taken_back(
        &self,
        table: &Arc<Snapshot>,
        failure: &Failure,
        except: Option<u64>,
    ) {
        let is_of = |kept: &mut Kept| kept.table.as_ref().is_some_and(|of| of.as_ptr() == Arc::as_ptr(table));
        let kept = self.kept.borrow_mut().extract_if(.., is_of).next();
        let Some(Kept { swap, .. }) = kept else { return };
        self.say_taken_back(&swap, failure, except);
    }

    fn say_taken_back(&self, swap: &str, failure: &Failure, except: Option<u64>) {
        let Some(mates) = &self.mates else { return };
        for (peer, _) in mates.book.group.here().into_iter().filter(|(peer, _)| Some(*peer) != except) {
            let (swap, Failure { code, message }) = (swap.to_owned(), failure.clone());
            self.say(peer, GroupMessage::Order { swap, order: Order::TakeBack, code, message });
        }
        mates.book.tell_state(None);
    }
}
