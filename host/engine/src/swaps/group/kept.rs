//! A swap of the group that was kept, and may still fail late on one of its workers.

use super::drive::no_code;
use crate::swaps::run::Runner;
use crate::swaps::trial::Failure;
use hotseam_pd::{GroupMessage, Order};
use hotseam_slots::Snapshot;
use std::sync::Arc;

/// A swap of the group that was kept, so that it can be taken back everywhere if it fails late.
#[derive(Debug, Clone)]
pub(in crate::swaps) struct Kept {
    swap: String,
    /// `None` where this worker was so already: then it only passes on what others say.
    table: Option<Arc<Snapshot>>,
    /// Names of the workers that this one has met in it.
    members: Vec<String>,
}

impl Runner {
    /// Notes that the swap which runs is kept, with this table.
    pub(super) fn note_kept(&self, table: Option<&Arc<Snapshot>>) {
        let of = |node: &mut super::Node| (node.swap().to_owned(), node.took_part());
        let Some((swap, members)) = self.with_node(of) else { return };
        *self.kept.borrow_mut() = Some(Kept { swap, table: table.cloned(), members });
    }

    /// The swap that runs is not kept after all.
    pub(super) fn forget_kept(&self) {
        let swap = self.with_node(|node| node.swap().to_owned());
        self.kept.borrow_mut().take_if(|kept| Some(&kept.swap) == swap.as_ref());
    }

    /// Whether a swap of the group was kept here; then `worker`, which asks for it, has a part in it as well.
    pub(super) fn has_kept_with(&self, swap: &str, worker: String) -> bool {
        let mut kept = self.kept.borrow_mut();
        let Some(kept) = kept.as_mut().filter(|kept| kept.swap == swap) else { return false };
        if !kept.members.contains(&worker) {
            kept.members.push(worker);
        }
        true
    }

    /// Takes a swap of the group back that was kept here and failed elsewhere; `peer` says so. False if that worker had no part in
    /// it, as far as this one knows: then it is not for it to say.
    pub(super) fn take_back_kept(&self, peer: u64, swap: &str) -> bool {
        let worker = self.mates.as_ref().map_or_else(String::new, |mates| mates.book.name(peer));
        let kept = self.kept.borrow().as_ref().filter(|kept| kept.swap == swap).cloned();
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
        match table {
            Some(table) => self.take_back_table(table, failure, Some(peer)),
            None => {
                *self.kept.borrow_mut() = None;
                self.say_taken_back(swap, &failure, Some(peer));
            }
        }
        true
    }

    /// Tells the group, without `except`, that a swap of it which was kept has been taken back here.
    pub(in crate::swaps) fn tell_taken_back(
        &self,
        table: &Arc<Snapshot>,
        failure: &Failure,
        except: Option<u64>,
    ) {
        let is_of = |kept: &mut Kept| kept.table.as_ref().is_some_and(|of| Arc::ptr_eq(of, table));
        let kept = self.kept.borrow_mut().take_if(is_of);
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
