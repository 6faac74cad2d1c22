//! What really ran.

use crate::cell::CellId;
use crate::generation::Generation;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one bound function, from the moment its snapshot was built.
#[derive(Debug, Default)]
pub struct Receipt {
    calls: AtomicU64,
    rows: AtomicU64,
}

impl Receipt {
    /// Counts a call.
    pub(crate) fn count(&self, rows: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Takes over what another rank has counted.
    pub(crate) fn set(&self, calls: u64, rows: u64) {
        self.calls.store(calls, Ordering::Relaxed);
        self.rows.store(rows, Ordering::Relaxed);
    }

    /// Calls made, failed ones included.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Rows in those calls; for `kv_transport` the items.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }
}

/// One cell of a snapshot, what serves it, and its counts.
#[derive(Debug, Clone, Copy)]
pub struct CellView<'a> {
    /// The cell.
    pub cell: CellId,
    /// What serves it; a base, where the variant of the rule leaves the op out.
    pub generation: &'a Arc<Generation>,
    /// Calls since the snapshot was built.
    pub calls: u64,
    /// Rows in those calls; for `kv_transport` the items.
    pub rows: u64,
}
