//! The arguments as safe borrowed structs. Field meanings are those of the `*Args` of the same name in
//! [`hotseam_abi`]; shapes are checked when a view is made.

mod attention;
mod indexer;
mod kv;
mod mhc;
mod moe;
mod transport;

pub use attention::{Compress, Core, Source, Store};
pub use indexer::Select;
pub use kv::{Form, Pool, PoolMut, Rope, SharedPool};
pub use mhc::{MhcHead, MhcPost, MhcPre};
pub use moe::{Expert, Experts, Route};
pub use transport::{Accept, Put, Run};

use crate::tensor::raw;
use crate::{Error, Result};
use hotseam_abi::{Batch, SeqSpan};

/// The rows of a call.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Position of each row, -1 for padding.
    pub positions: &'a [i32],
    /// Sequence of each row.
    pub row_seq: &'a [i32],
    /// Sequences.
    pub seqs: &'a [SeqSpan],
}

impl Rows<'_> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Sequence of a row that is not padding.
    pub fn seq(&self, row: usize) -> usize {
        self.row_seq[row] as usize
    }

    /// # Safety
    /// `batch` points to a valid [`Batch`] for `'a`.
    pub(crate) unsafe fn from_raw<'a>(batch: *const Batch) -> Result<Rows<'a>> {
        if batch.is_null() {
            return Err(Error::argument("batch is missing"));
        }
        // SAFETY: the caller's contract.
        let rows = unsafe {
            let b = &*batch;
            Rows {
                positions: raw(b.positions, b.n_rows as usize, "batch.positions")?,
                row_seq: raw(b.row_seq, b.n_rows as usize, "batch.row_seq")?,
                seqs: raw(b.seqs, b.n_seqs as usize, "batch.seqs")?,
            }
        };
        let n = rows.seqs.len() as i32;
        let bad = rows.positions.iter().zip(rows.row_seq).position(|(p, s)| *p >= 0 && !(0..n).contains(s));
        match bad {
            Some(row) => Err(Error::argument(format!("batch.row_seq[{row}] is outside the {n} sequences"))),
            None => Ok(rows),
        }
    }
}
