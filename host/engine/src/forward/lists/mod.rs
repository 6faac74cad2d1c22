//! The index lists of a step, as calls are given them.

#[cfg(feature = "cuda")]
pub(crate) mod device;

use hotseam_abi::{Batch, SeqSpan};
use hotseam_kv::{CompressPlan, Plan};

/// Lists of one compressor ratio, in the memory that calls read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompressLists {
    /// Entries, padded ones included.
    pub(crate) n_entries: usize,
    /// As [`hotseam_abi::CompressArgs`] has them, here and below.
    pub(crate) sources: *const i32,
    pub(crate) entry_positions: *const i32,
    pub(crate) out_slots: *const i32,
    pub(crate) state_dst: *const i32,
}

/// Pointers to every list of a step. They are valid until the next step begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lists {
    /// The rows, padded ones included.
    pub(crate) batch: Batch,
    /// Rows that are not padded: the first ones.
    pub(crate) live: usize,
    /// `[rows]` input tokens.
    pub(crate) tokens: *const i32,
    /// `[rows]` window slots.
    pub(crate) window_slots: *const i32,
    /// Ratio 4.
    pub(crate) c4: CompressLists,
    /// Ratio 128.
    pub(crate) c128: CompressLists,
    /// `[n_seqs, table_width]` full pages.
    pub(crate) table: *const i32,
    /// `[n_seqs, table_width]` window pages.
    pub(crate) window_table: *const i32,
    /// Row length of both tables.
    pub(crate) table_width: usize,
    /// The rows whose logits are wanted, each a sequence of its own.
    pub(crate) head: Batch,
    /// `[head.n_rows]` their numbers in the step.
    pub(crate) head_rows: *const i32,
}

/// The rows whose logits are wanted, as a batch: each stands for itself, since rows of one sequence need not be neighbours.
#[derive(Debug, Default)]
pub(crate) struct HeadRows {
    /// Their numbers in the step.
    pub(crate) rows: Vec<i32>,
    /// Their positions.
    pub(crate) positions: Vec<i32>,
    /// Their sequences: 0, 1, ...
    pub(crate) seqs: Vec<i32>,
    /// Spans of one row.
    pub(crate) spans: Vec<SeqSpan>,
}

impl HeadRows {
    /// Room for `rows` rows.
    pub(crate) fn with_capacity(rows: usize) -> Self {
        Self {
            rows: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            seqs: Vec::with_capacity(rows),
            spans: Vec::with_capacity(rows),
        }
    }

    /// Those of a step.
    pub(crate) fn set(&mut self, plan: &Plan, wanted: &[usize]) {
        self.rows.clear();
        self.positions.clear();
        self.seqs.clear();
        self.spans.clear();
        for (i, row) in wanted.iter().enumerate() {
            let (position, seq) = (plan.positions[*row], plan.seqs[plan.row_seq[*row] as usize]);
            self.rows.push(*row as i32);
            self.positions.push(position);
            self.seqs.push(i as i32);
            let position = position as u32;
            self.spans.push(SeqSpan { row_begin: i as u32, row_count: 1, position, chunk: seq.chunk });
        }
    }

    fn batch(&self) -> Batch {
        let n = self.rows.len() as u32;
        Batch {
            size: size_of::<Batch>() as u32,
            n_rows: n,
            n_seqs: n,
            positions: self.positions.as_ptr(),
            row_seq: self.seqs.as_ptr(),
            seqs: self.spans.as_ptr(),
        }
    }
}

impl CompressLists {
    fn of(plan: &CompressPlan) -> Self {
        Self {
            n_entries: plan.out_slots.len(),
            sources: plan.sources.as_ptr(),
            entry_positions: plan.entry_positions.as_ptr(),
            out_slots: plan.out_slots.as_ptr(),
            state_dst: plan.state_dst.as_ptr(),
        }
    }
}

impl Lists {
    /// The lists where the host has them.
    pub(crate) fn in_host_memory(plan: &Plan, tokens: &[i32], head: &HeadRows) -> Self {
        Self {
            batch: plan.batch(),
            live: plan.rows(),
            tokens: tokens.as_ptr(),
            window_slots: plan.window_slots.as_ptr(),
            c4: CompressLists::of(&plan.c4),
            c128: CompressLists::of(&plan.c128),
            table: plan.table.as_ptr(),
            window_table: plan.window_table.as_ptr(),
            table_width: plan.table_width,
            head: head.batch(),
            head_rows: head.rows.as_ptr(),
        }
    }

    /// Rows of the step, padded ones included.
    pub(crate) fn rows(&self) -> usize {
        self.batch.n_rows as usize
    }
}
