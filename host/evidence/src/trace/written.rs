//! Who wrote what a phase reads: origins of KV, equal layers together.

use std::fmt;

use hotseam_engine::Origin;
use hotseam_slots::{NumberSet, Op, Phase, Seam};
use serde::{Deserialize, Serialize};

use super::short;

/// KV of one component that cells of one op read and cells of one op wrote, with the same code in all layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenRow {
    /// Component, as the hand-off names it: `swa`, `c4`, `index_keys` and so on.
    pub component: String,
    /// Layers, rising.
    pub layers: Vec<u32>,
    /// Who read.
    pub reader: Party,
    /// Who wrote.
    pub writer: Party,
    /// Assignment that the writer served.
    pub writer_assignment: String,
    /// Transport variant that moved it in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// Steps, counted once for each sequence, that read it.
    pub steps: u64,
    /// Entries or state rows within the reader's reach, summed over those steps, of one layer.
    pub items: u64,
}

/// One side of the reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// Seam.
    pub seam: Seam,
    /// Op.
    pub op: Op,
    /// Phase.
    pub phase: Option<Phase>,
    /// Variant that served the cells.
    pub variant: String,
    /// Hash of its code and options.
    pub hash: String,
}

impl WrittenRow {
    /// Whether one phase read what the other wrote.
    pub fn crosses(&self) -> bool {
        self.reader.phase != self.writer.phase
    }
}

/// Groups origins that differ in the layer only.
pub(super) fn rows(origins: &[Origin]) -> Vec<WrittenRow> {
    let mut rows: Vec<WrittenRow> = Vec::new();
    for origin in origins {
        let party = |cell: &hotseam_slots::CellId, variant: &str, hash: &str| Party {
            seam: cell.seam,
            op: cell.op,
            phase: cell.phase,
            variant: variant.to_owned(),
            hash: hash.to_owned(),
        };
        let row = WrittenRow {
            component: origin.component.clone(),
            layers: origin.reader.layer.into_iter().collect(),
            reader: party(&origin.reader, &origin.reader_variant, &origin.reader_hash),
            writer: party(&origin.writer, &origin.writer_variant, &origin.writer_hash),
            writer_assignment: origin.writer_assignment.clone(),
            carrier: origin.carrier.clone(),
            steps: origin.steps,
            items: origin.items,
        };
        let like = |other: &&mut WrittenRow| {
            WrittenRow { layers: Vec::new(), ..row.clone() }
                == WrittenRow { layers: Vec::new(), ..(**other).clone() }
        };
        match rows.iter_mut().find(like) {
            Some(other) => other.layers.extend(row.layers),
            None => rows.push(row),
        }
    }
    rows
}

impl fmt::Display for Party {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self.phase.map_or("-", Phase::name);
        write!(out, "{phase:<8} {} {}", short(&self.hash), self.variant)
    }
}

impl fmt::Display for WrittenRow {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = NumberSet::of(self.layers.iter().copied()).to_string();
        let (steps, items) = (self.steps, self.items);
        writeln!(out, "  {:<11} layers {layers:<12} {steps:>8} steps {items:>12} items", self.component)?;
        writeln!(out, "    written {}", self.writer)?;
        if let Some(carrier) = &self.carrier {
            writeln!(out, "    moved   {:<8} {carrier}", "handoff")?;
        }
        writeln!(out, "    read    {}", self.reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotseam_slots::CellId;

    fn origin(layer: u32, hash: &str) -> Origin {
        let cell = |op, phase| CellId {
            seam: Seam::Indexer,
            op,
            phase: Some(phase),
            layer: Some(layer),
            rank: None,
        };
        Origin {
            component: "index_keys".into(),
            reader: cell(Op::Select, Phase::Decode),
            reader_variant: "indexer/b".into(),
            reader_hash: "b".repeat(64),
            writer: cell(Op::Compress, Phase::Prefill),
            writer_variant: "indexer/a".into(),
            writer_hash: hash.repeat(64),
            writer_assignment: "live".into(),
            carrier: Some("kv_transport/local".into()),
            steps: 3,
            items: 192,
        }
    }

    #[test]
    fn layers_with_one_writer_share_a_row_and_others_do_not() {
        let rows = rows(&[origin(2, "a"), origin(4, "a"), origin(6, "c")]);
        let layers: Vec<_> = rows.iter().map(|row| row.layers.clone()).collect();
        assert_eq!(layers, [vec![2, 4], vec![6]]);
        assert!(rows[0].crosses());
        let text = rows[0].to_string();
        let want = "  index_keys  layers 2,4                 3 steps          192 items\n\
                    \x20   written prefill  aaaaaaaaaaaa indexer/a\n\
                    \x20   moved   handoff  kv_transport/local\n\
                    \x20   read    decode   bbbbbbbbbbbb indexer/b\n";
        assert_eq!(text, want);
    }
}
