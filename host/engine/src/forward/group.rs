//! The ranks that a model is spread over: what they sum, and what a rank owes the others when its own work fails.

use super::Forward;
use super::ops::{Block, Done, StepError};
use hotseam_abi::device;
use hotseam_ranks::{Collective, RankError, Values};
use std::cell::Cell;
use std::ops::Range;

/// The group of a forward pass with several ranks.
pub(super) struct Group {
    sums: Box<dyn Collective>,
    /// Sums that the running step has made.
    made: Cell<usize>,
}

impl Group {
    /// `None` if the group has one rank only.
    pub(super) fn new(sums: Box<dyn Collective>) -> Option<Self> {
        (sums.world() > 1).then(|| Self { sums, made: Cell::new(0) })
    }

    /// Number of this rank, and of all ranks.
    pub(super) fn place(&self) -> (u32, u32) {
        (self.sums.rank(), self.sums.world())
    }

    /// A step begins.
    pub(super) fn begin(&self) {
        self.made.set(0);
    }

    /// Replaces the first `n` values of `block` by their sum over all ranks, in order with `stream` if they are on a device.
    fn sum(&self, block: &Block, n: usize, stream: u64) -> Result<(), RankError> {
        self.made.set(self.made.get() + 1);
        let values = match block.device {
            device::CPU => Values::Host(block.ptr()),
            _ => Values::Device { address: block.ptr::<u8>().addr() as u64, stream },
        };
        debug_assert!(n * 4 <= block.bytes, "{n} values of {} bytes", block.bytes);
        // SAFETY: the block holds `n` values, and whoever wrote them is done, or before this in the stream.
        unsafe { self.sums.all_reduce(values, n) }
    }
}

impl Forward {
    /// Waits until the device has done what is enqueued, if sums may be in it, or a rank is gone. Before anything else waits for the
    /// device.
    pub(super) fn settle(&self) -> Done {
        let Some(group) = &self.group else { return Ok(()) };
        Ok(group.sums.settle(self.ops.context().0)?)
    }

    /// The routed experts that this rank has, by their numbers among all.
    pub(super) fn own_experts(&self, group: &Group) -> Range<usize> {
        let (rank, world) = group.place();
        hotseam_model::part(self.model.config.n_routed_experts, rank, world)
    }

    /// Replaces the output of a block in `rows` rows by its sum over all ranks.
    pub(super) fn sum_ranks(&self, rows: usize) -> Done {
        let Some(group) = &self.group else { return Ok(()) };
        let (stream, _, _) = self.ops.context();
        Ok(group.sum(&self.ws.y, rows * self.model.config.hidden_size, stream)?)
    }

    /// What a step whose work failed here returns: `error`, once this rank has taken part in the sums that are still due, since the
    /// other ranks wait for them. Their values are of no use to anyone.
    pub(super) fn give_up(&self, error: StepError, rows: usize) -> StepError {
        let Some(group) = &self.group else { return error };
        if let StepError::Rank(_) = error {
            return error;
        }
        let all = 2 * self.model.config.num_hidden_layers;
        match (group.made.get()..all).try_for_each(|_| self.sum_ranks(rows)) {
            Ok(()) => error,
            Err(broken) => {
                tracing::error!(%error, "a step failed, and then its sums over ranks");
                broken
            }
        }
    }

    /// What a step that cannot begin here returns. Nothing can be summed without its rows, so the group ends.
    pub(super) fn not_begun(&self, error: StepError) -> StepError {
        let Some(group) = &self.group else { return error };
        let (rank, _) = group.place();
        RankError::Gone { rank, what: format!("cannot begin a step: {error}") }.into()
    }
}
