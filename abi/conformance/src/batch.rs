//! Ragged batches and rope tables of the cases.

use crate::buffer::Buffer;
use hotseam_abi::{Batch, RopeTables, SeqSpan, phase};
use std::rc::Rc;

/// Positions that the rope tables of the cases hold.
pub(crate) const MAX_POSITIONS: usize = 2112;

/// The rows of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) position: usize,
    pub(crate) rows: usize,
    pub(crate) chunk: u32,
}

impl Span {
    pub(crate) fn new(position: usize, rows: usize, chunk: u32) -> Self {
        Self { position, rows, chunk }
    }

    /// Positions after the last row.
    pub(crate) fn end(&self) -> usize {
        self.position + self.rows
    }
}

/// A batch and its memory.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    pub(crate) phase: u32,
    pub(crate) spans: Vec<Span>,
    pub(crate) positions: Buffer,
    pub(crate) row_seq: Buffer,
    /// First row of each sequence.
    pub(crate) begins: Vec<usize>,
    seqs: Buffer,
    batch: Batch,
}

impl Rows {
    /// Sequences in order; of `padding` rows one lies after the first sequence and the rest at the end.
    pub(crate) fn new(phase: u32, spans: &[Span], padding: usize) -> Self {
        let (mut positions, mut row_seq, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
        let pad = |positions: &mut Vec<i32>, row_seq: &mut Vec<i32>, n: usize| {
            positions.extend((0..n).map(|_| -1));
            row_seq.extend((0..n).map(|_| -1));
        };
        for (s, span) in spans.iter().enumerate() {
            seqs.push(SeqSpan {
                row_begin: positions.len() as u32,
                row_count: span.rows as u32,
                position: span.position as u32,
                chunk: span.chunk,
            });
            positions.extend((span.position..span.end()).map(|p| p as i32));
            row_seq.extend((0..span.rows).map(|_| s as i32));
            if s == 0 {
                pad(&mut positions, &mut row_seq, padding.min(1));
            }
        }
        pad(&mut positions, &mut row_seq, padding.saturating_sub(1));
        let words = |s: &SeqSpan| [s.row_begin, s.row_count, s.position, s.chunk].map(|number| number as i32);
        let batch = Batch {
            size: size_of::<Batch>() as u32,
            n_rows: positions.len() as u32,
            n_seqs: seqs.len() as u32,
            positions: std::ptr::null(),
            row_seq: std::ptr::null(),
            seqs: std::ptr::null(),
        };
        Self {
            phase,
            spans: spans.to_vec(),
            positions: Buffer::i32s("positions", positions),
            row_seq: Buffer::i32s("row_seq", row_seq),
            begins: seqs.iter().map(|s| s.row_begin as usize).collect(),
            seqs: Buffer::i32s("seqs", seqs.iter().flat_map(words).collect()),
            batch,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.positions.words().len()
    }

    /// Position of a row, `None` for padding.
    pub(crate) fn position(&self, row: usize) -> Option<usize> {
        usize::try_from(self.positions.i32()[row]).ok()
    }

    /// Rows that are not padding.
    pub(crate) fn live(&self) -> Vec<usize> {
        (0..self.len()).filter(|row| self.position(*row).is_some()).collect()
    }

    /// Sequence of a row that is not padding.
    pub(crate) fn seq(&self, row: usize) -> usize {
        self.row_seq.i32()[row] as usize
    }

    /// One row as a batch of its own.
    pub(crate) fn only(&self, row: usize) -> Self {
        let position = self.position(row).expect("a row that is not padding");
        Self::new(self.phase, &[Span::new(position, 1, self.spans[self.seq(row)].chunk)], 0)
    }

    /// The batch as an argument; valid until `self` moves or changes.
    pub(crate) fn arg(&mut self) -> *const Batch {
        self.batch.positions = self.positions.ptr();
        self.batch.row_seq = self.row_seq.ptr();
        self.batch.seqs = self.seqs.ptr();
        &raw const self.batch
    }

    /// Memory of the batch.
    pub(crate) fn buffers(&self) -> [&Buffer; 3] {
        [&self.positions, &self.row_seq, &self.seqs]
    }

    /// Phase and positions, for titles.
    pub(crate) fn title(&self) -> String {
        let phase = match self.phase {
            phase::PREFILL => "prefill",
            phase::DECODE => "decode",
            _ => "verify",
        };
        let positions: Vec<String> =
            (self.spans.iter())
                .map(|s| {
                    if s.rows == 1 {
                        s.position.to_string()
                    } else {
                        format!("{}-{}", s.position, s.end() - 1)
                    }
                })
                .collect();
        match positions.len() {
            0 => format!("{phase} without rows"),
            1 => format!("{phase} 1 seq, positions {}", positions[0]),
            n => format!("{phase} {n} seqs, positions {}", positions.join(" ")),
        }
    }
}

/// Rope tables, shared by the cases of a thread.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) half: usize,
    cos: Rc<Buffer>,
    sin: Rc<Buffer>,
}

impl Tables {
    /// Tables for `2 * half` channels with a theta of 160000.
    pub(crate) fn new(half: usize) -> Self {
        let frequencies: Vec<f64> = (0..half).map(|i| 160_000f64.powf(-(i as f64) / half as f64)).collect();
        let angle = |i: usize| (i / half) as f64 * frequencies[i % half];
        let table = |name, f: fn(f64) -> f64| {
            Rc::new(Buffer::f32s(name, (0..MAX_POSITIONS * half).map(|i| f(angle(i)) as f32).collect()))
        };
        Self { half, cos: table("rope.cos", f64::cos), sin: table("rope.sin", f64::sin) }
    }

    /// The tables as an argument; read only.
    pub(crate) fn arg(&self) -> RopeTables {
        let tensor = |b: &Buffer| b.view(hotseam_abi::dtype::F32, &[MAX_POSITIONS, self.half]);
        RopeTables { cos: tensor(&self.cos), sin: tensor(&self.sin) }
    }

    /// Memory of the tables, shared by the cases.
    pub(crate) fn buffers(&self) -> [&Buffer; 2] {
        [&self.cos, &self.sin]
    }

    /// The tables as truth reads them.
    pub(crate) fn view(&self) -> hotseam_sdk::views::Rope<'_> {
        hotseam_sdk::views::Rope { cos: self.cos.f32(), sin: self.sin.f32(), half: self.half }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_lies_inside_and_at_the_end() {
        let rows = Rows::new(phase::PREFILL, &[Span::new(3, 2, 0), Span::new(0, 1, 0)], 2);
        assert_eq!(rows.positions.i32(), [3, 4, -1, 0, -1]);
        assert_eq!(rows.row_seq.i32(), [0, 0, -1, 1, -1]);
        assert_eq!((rows.begins.clone(), rows.live()), (vec![0, 3], vec![0, 1, 3]));
        assert_eq!(rows.title(), "prefill 2 seqs, positions 3-4 0");
        assert_eq!(rows.only(1).positions.i32(), [4]);
    }
}
