//! What differs between two assignments.

use crate::cell::CellId;
use crate::digest::Digest;
use crate::generation::Generation;
use crate::snapshot::Snapshot;
use crate::variant::VariantSpec;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What serves a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellVariant {
    /// The variant, with the options that differ from their defaults.
    pub variant: VariantSpec,
    /// Hash of code and options.
    pub hash: String,
}

/// A cell that runs other code or other options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellChange {
    /// The cell.
    pub cell: CellId,
    /// What served it.
    pub from: CellVariant,
    /// What serves it.
    pub to: CellVariant,
}

/// What a change of an assignment did. Without changes it was already so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapReport {
    /// The assignment.
    pub assignment: String,
    /// The cells that changed.
    pub changes: Vec<CellChange>,
    /// Digest of the snapshot before.
    pub digest_before: Digest,
    /// Digest of the snapshot after.
    pub digest_after: Digest,
}

impl CellVariant {
    pub(crate) fn of(generation: &Generation) -> Self {
        Self { variant: generation.spec.clone(), hash: generation.hash.clone() }
    }
}

/// The cells in which two snapshots of one model differ, in the order of the cells. Equal hashes are no difference,
/// whatever the variants are called, unless the old instance panicked.
pub fn changes(from: &Snapshot, to: &Snapshot) -> Vec<CellChange> {
    let old: HashMap<CellId, &Generation> = from.cells().map(|c| (c.cell, &**c.generation)).collect();
    to.cells()
        .filter_map(|c| {
            let before = *old.get(&c.cell)?;
            (before.hash != c.generation.hash || (before.is_poisoned() && before.id != c.generation.id)).then(
                || CellChange {
                    cell: c.cell,
                    from: CellVariant::of(before),
                    to: CellVariant::of(c.generation),
                },
            )
        })
        .collect()
}
