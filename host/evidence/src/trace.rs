//! What ran: receipts of an assignment, equal layers together.

mod written;

use std::collections::BTreeSet;
use std::fmt;

use hotseam_engine::Origin;
use hotseam_slots::{CellId, Class, NumberSet, Op, Phase, Seam, Snapshot};
use serde::{Deserialize, Serialize};

pub use written::{Party, WrittenRow};

/// One cell, what serves it, and how often it ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The cell.
    pub cell: CellId,
    /// Variant that serves it; a base, where the variant of the rule leaves the op out.
    pub variant: String,
    /// Hash of its code and options.
    pub hash: String,
    /// Calls and the rows (for the transport, items) in them; `None` where only the assignment is of interest.
    pub ran: Option<(u64, u64)>,
}

/// The cells of one assignment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Name of the assignment.
    pub assignment: String,
    /// Digest of all its cells.
    pub digest: String,
    /// One row for each set of layers that are alike.
    pub rows: Vec<TraceRow>,
    /// Who wrote the KV that it read; empty where only the assignment is of interest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<WrittenRow>,
}

/// Cells of one op in one phase that run the same code and ran equally often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRow {
    /// Seam.
    pub seam: Seam,
    /// Op.
    pub op: Op,
    /// Phase; absent for the transport.
    pub phase: Option<Phase>,
    /// Attention class of the layers; absent outside the layers.
    pub class: Option<Class>,
    /// Layers, rising; empty outside the layers.
    pub layers: Vec<u32>,
    /// Tensor-parallel ranks, rising; empty where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// Variant that serves the cells.
    pub variant: String,
    /// Hash of its code and options.
    pub hash: String,
    /// Calls of each layer, and the rows in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran: Option<(u64, u64)>,
}

impl Trace {
    /// The receipts of `snapshot` since it was built.
    pub fn of(snapshot: &Snapshot) -> Self {
        snapshot.count_elsewhere();
        let receipts = snapshot.cells().map(|view| Receipt {
            cell: view.cell,
            variant: view.generation.spec.to_string(),
            hash: view.generation.hash.clone(),
            ran: Some((view.calls, view.rows)),
        });
        Self::new(snapshot.name(), &snapshot.digest().to_string(), receipts.collect())
    }

    /// Groups the receipts of all cells of an assignment.
    pub fn new(assignment: &str, digest: &str, receipts: Vec<Receipt>) -> Self {
        let layers_with = |seam: Seam, op: Op| -> BTreeSet<u32> {
            let own = receipts.iter().filter(|r| (r.cell.seam, r.cell.op) == (seam, op));
            own.filter_map(|r| r.cell.layer).collect()
        };
        // The ops of a layer tell its class: only csa layers have an indexer, only csa and hca layers compress.
        let indexed = layers_with(Seam::Indexer, Op::Select);
        let compressed = layers_with(Seam::Attention, Op::Compress);
        let class = |layer: u32| match (indexed.contains(&layer), compressed.contains(&layer)) {
            (true, _) => Class::Csa,
            (false, true) => Class::Hca,
            (false, false) => Class::Window,
        };
        let mut rows: Vec<TraceRow> = Vec::new();
        for receipt in &receipts {
            let row = TraceRow {
                seam: receipt.cell.seam,
                op: receipt.cell.op,
                phase: receipt.cell.phase,
                class: receipt.cell.layer.map(class),
                layers: receipt.cell.layer.into_iter().collect(),
                ranks: receipt.cell.rank.into_iter().collect(),
                variant: receipt.variant.clone(),
                hash: receipt.hash.clone(),
                ran: receipt.ran,
            };
            match rows.iter_mut().find(|other| row.like(other) && row.ranks == other.ranks) {
                Some(other) => other.layers.extend(row.layers),
                None => rows.push(row),
            }
        }
        let mut rows = over_ranks(rows);
        rows.sort_by_key(|row| {
            (row.seam, row.hash.clone(), row.op, row.phase, row.class, row.layers.clone())
        });
        let written = Vec::new();
        Self { assignment: assignment.to_owned(), digest: digest.to_owned(), rows, written }
    }

    /// The trace with the writers of what was read, as [`hotseam_engine::Engine::origins`] has them.
    #[must_use]
    pub fn with_origins(self, origins: &[Origin]) -> Self {
        Self { written: written::rows(origins), ..self }
    }
}

impl TraceRow {
    fn like(&self, other: &Self) -> bool {
        self.seam == other.seam
            && self.op == other.op
            && self.phase == other.phase
            && self.class == other.class
            && self.hash == other.hash
            && self.ran == other.ran
    }
}

impl fmt::Display for Trace {
    /// A table of at most 80 columns, unless a variant or a list of layers is longer.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "assignment {}  digest {}", self.assignment, short(&self.digest))?;
        let mut heading = None;
        for row in &self.rows {
            if heading != Some((row.seam, &row.hash)) {
                heading = Some((row.seam, &row.hash));
                writeln!(out, "\n{}  {}", row.variant, short(&row.hash))?;
            }
            let phase = row.phase.map_or("handoff", Phase::name);
            let class = row.class.map_or("-", Class::name);
            let layers = match row.layers.as_slice() {
                [] => "-".to_owned(),
                layers => NumberSet::of(layers.iter().copied()).to_string(),
            };
            write!(out, "  {:<10} {phase:<8} {class:<7} layers ", row.op.name())?;
            match row.ran {
                Some((calls, rows)) => write!(out, "{layers:<12} {calls:>8} calls {rows:>10} rows")?,
                None => write!(out, "{layers}")?,
            }
            match row.ranks.as_slice() {
                [] => writeln!(out)?,
                [rank] => writeln!(out, " on rank {rank}")?,
                ranks => writeln!(out, " on ranks {}", NumberSet::of(ranks.iter().copied()))?,
            }
        }
        if !self.written.is_empty() {
            writeln!(out, "\nKV that was read, and who wrote it")?;
        }
        self.written.iter().try_for_each(|row| write!(out, "{row}"))
    }
}

/// What is alike on several ranks is one row.
fn over_ranks(rows: Vec<TraceRow>) -> Vec<TraceRow> {
    let mut merged: Vec<TraceRow> = Vec::new();
    for row in rows {
        match merged.iter_mut().find(|other| row.like(other) && row.layers == other.layers) {
            Some(other) => other.ranks.extend(row.ranks),
            None => merged.push(row),
        }
    }
    merged
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(seam: Seam, op: Op, layer: u32, hash: &str, calls: u64) -> Receipt {
        let cell = CellId { seam, op, phase: Some(Phase::Decode), layer: Some(layer), rank: None };
        Receipt { cell, variant: format!("{seam}/x"), hash: hash.repeat(16), ran: Some((calls, calls * 8)) }
    }

    #[test]
    fn layers_that_are_alike_share_a_row() {
        let mut receipts = Vec::new();
        for layer in 0..5 {
            receipts.push(receipt(Seam::Attention, Op::Core, layer, if layer == 4 { "b" } else { "a" }, 3));
            if layer >= 2 {
                receipts.push(receipt(Seam::Attention, Op::Compress, layer, "a", 3));
            }
        }
        receipts.push(receipt(Seam::Indexer, Op::Select, 2, "c", 3));
        let trace = Trace::new("live", "d", receipts);
        let found: Vec<_> = trace
            .rows
            .iter()
            .map(|row| (row.op, row.class.map(Class::name), row.layers.clone(), row.hash.get(..1)))
            .collect();
        assert_eq!(
            found,
            [
                (Op::Compress, Some("csa"), vec![2], Some("a")),
                (Op::Compress, Some("hca"), vec![3, 4], Some("a")),
                (Op::Core, Some("window"), vec![0, 1], Some("a")),
                (Op::Core, Some("csa"), vec![2], Some("a")),
                (Op::Core, Some("hca"), vec![3], Some("a")),
                (Op::Core, Some("hca"), vec![4], Some("b")),
                (Op::Select, Some("csa"), vec![2], Some("c")),
            ]
        );
        let text = trace.to_string();
        assert!(text.contains("  core       decode   window  layers 0-1"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let json = serde_json::to_string(&trace).unwrap();
        assert_eq!(serde_json::from_str::<Trace>(&json).unwrap(), trace);
    }

    #[test]
    fn unequal_counts_are_not_merged() {
        let receipts =
            vec![receipt(Seam::Moe, Op::Route, 0, "a", 1), receipt(Seam::Moe, Op::Route, 1, "a", 2)];
        assert_eq!(Trace::new("live", "d", receipts).rows.len(), 2);
    }
}
