//! Scores of rows of different lengths, as somebody else's choice of the best entries takes them.

use hotseam_sdk::{Ctx, Result};

/// Bytes of workspace, and parts of it, that a row takes beside its scores.
pub(super) const ROW_BYTES: u64 = 8;
pub(super) const ROW_PARTS: u64 = 2;

/// Scores of some rows on the device, and where the choice goes. Addresses are of device memory.
#[derive(Debug, Clone, Copy)]
pub struct Scored {
    /// `[rows, width]` f32. Of a row only the first `lengths[row]` are scores, without NaN: there the worst of all stands for it.
    pub scores: u64,
    /// `[rows]` i32: entries of a row, 0 for padding. The scores of a row that has `topk` or fewer may be anything.
    pub lengths: u64,
    /// `[rows]` i32 zeros: what is added to ids.
    pub offsets: u64,
    /// `[rows, topk]` i32, to be written: numbers of entries, -1 padded.
    pub ids: u64,
    /// Rows.
    pub rows: u32,
    /// Length of a row of `scores`, a multiple of 4. The first row is aligned to 256 bytes.
    pub width: u32,
    /// Entries to choose a row.
    pub topk: u32,
    /// Ordinal of the device.
    pub device: u32,
}

/// Chooses the best entries of rows.
pub trait Choose {
    /// Enqueues the choice on the stream of `ctx` and does not wait.
    ///
    /// # Errors
    /// If it cannot be made.
    fn choose(&self, ctx: &Ctx, scored: &Scored) -> Result<()>;
}
