//! Tables that the ranks of a tensor-parallel group hold together.
//!
//! The first rank leads: every table that it builds is built by the others from the same rules, each binding its own cells, and kept
//! under a number until the leader's is gone. A step names the number, so that all ranks change at the same step.

use crate::cell::CellId;
use crate::digest::Digest;
use crate::error::SlotsError;
use crate::rule::Rule;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A cell, the calls made of it, and the rows in them.
pub type Counted = (CellId, u64, u64);

/// The other ranks, as the leader reaches them.
pub trait Peers: Any + Send + Sync + fmt::Debug {
    /// Has all ranks build a table and keep it under `number`.
    ///
    /// # Errors
    /// [`SlotsError::Rank`] with the rank and its reason, if one cannot, or has loaded other code than `digest` says.
    fn build(&self, number: u64, name: &str, rules: &[Rule], digest: Digest) -> Result<(), SlotsError>;

    /// No step will name the table any more.
    fn forget(&self, number: u64);

    /// What each rank has counted in its own cells of a table.
    ///
    /// # Errors
    /// [`SlotsError::Rank`] if a rank is gone.
    fn counts(&self, number: u64) -> Result<Vec<Counted>, SlotsError>;
}

/// A table as the other ranks hold it; forgotten with this.
pub(crate) struct Shared {
    number: u64,
    peers: Arc<dyn Peers>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Shared {
    /// Has the other ranks build it.
    pub(crate) fn tell(
        peers: Arc<dyn Peers>,
        name: &str,
        rules: &[Rule],
        digest: Digest,
    ) -> Result<Self, SlotsError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        // Made first, so that ranks that have built it forget it if another one cannot.
        let shared = Self { number: NUMBERS.fetch_add(1, Ordering::Relaxed), peers };
        shared.peers.build(shared.number, name, rules, digest)?;
        Ok(shared)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn counts(&self) -> Result<Vec<Counted>, SlotsError> {
        self.peers.counts(self.number)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.peers.forget(self.number);
    }
}
