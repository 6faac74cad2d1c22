//! Rope tables and KV pools.

use crate::tensor::{dim, f32s, pool_shape, raw, raw_mut};
use crate::{Error, Result};
use hotseam_abi::{PoolRef, RopeTables};

/// Rope tables of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// `[max_positions, half]`.
    pub cos: &'a [f32],
    /// `[max_positions, half]`.
    pub sin: &'a [f32],
    /// Half the rotated channels.
    pub half: usize,
}

impl<'a> Rope<'a> {
    /// Cosines and sines of a position.
    pub fn row(&self, position: usize) -> (&'a [f32], &'a [f32]) {
        let range = position * self.half..(position + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }

    /// Number of positions.
    pub fn positions(&self) -> usize {
        self.cos.len().checked_div(self.half).unwrap_or(0)
    }

    /// # Safety
    /// The tables are valid for `'a`.
    pub(crate) unsafe fn from_raw(t: &RopeTables, head_dim: usize) -> Result<Rope<'a>> {
        let (n, half) = (dim(&t.cos, 0, "rope.cos")?, dim(&t.cos, 1, "rope.cos")?);
        if half * 2 > head_dim {
            return Err(Error::argument(format!("rope rotates {} channels of {head_dim}", half * 2)));
        }
        // SAFETY: the caller's contract.
        unsafe {
            Ok(Rope {
                cos: f32s(&t.cos, "rope.cos", &[n, half])?,
                sin: f32s(&t.sin, "rope.sin", &[n, half])?,
                half,
            })
        }
    }
}

/// A pool that is read.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// `[slots, entry_bytes]`, aligned to 4 bytes.
    pub bytes: &'a [u8],
    /// Bytes of an entry.
    pub entry_bytes: usize,
    /// One of [`hotseam_abi::layout`].
    pub layout: u32,
    /// Entries of a page.
    pub entries_per_page: usize,
    table: &'a [i32],
    table_width: usize,
}

impl<'a> Pool<'a> {
    /// The page table of a sequence: page of each run of `entries_per_page` entries, -1 where none is mapped.
    pub fn pages(&self, seq: usize) -> &'a [i32] {
        &self.table[seq * self.table_width..(seq + 1) * self.table_width]
    }

    /// Slot of an entry of a sequence.
    ///
    /// # Panics
    /// If the entry's page is not mapped.
    pub fn slot(&self, seq: usize, entry: usize) -> usize {
        let page = self.table[seq * self.table_width + entry / self.entries_per_page];
        assert!(page >= 0, "entry {entry} of sequence {seq} has no page");
        page as usize * self.entries_per_page + entry % self.entries_per_page
    }

    /// Bytes of a slot.
    pub fn entry(&self, slot: usize) -> &'a [u8] {
        &self.bytes[slot * self.entry_bytes..(slot + 1) * self.entry_bytes]
    }

    /// The pool as f32, for layouts that are.
    pub fn f32(&self) -> &'a [f32] {
        // SAFETY: aligned to 4 bytes (checked when the view was made); any bits are an f32.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.bytes.len() / 4) }
    }

    /// # Safety
    /// Pool and table are valid for `'a` and not written meanwhile.
    pub(crate) unsafe fn from_raw(p: &PoolRef, n_seqs: usize, what: &str) -> Result<Pool<'a>> {
        let (slots, entry_bytes) = pool_shape(&p.bytes, what)?;
        if p.entries_per_page == 0 {
            return Err(Error::argument(format!("{what} has no entries in a page")));
        }
        let table_width = p.table_width as usize;
        // SAFETY: the caller's contract.
        let (bytes, table) = unsafe {
            (
                raw(p.bytes.data.cast::<u8>(), slots * entry_bytes, what)?,
                raw(p.table, n_seqs * table_width, what)?,
            )
        };
        let entries_per_page = p.entries_per_page as usize;
        let pages = slots / entries_per_page;
        if let Some(bad) = table.iter().find(|page| **page >= pages as i32) {
            return Err(Error::argument(format!("{what}: page {bad} of {pages}")));
        }
        Ok(Pool { bytes, entry_bytes, layout: p.layout, entries_per_page, table, table_width })
    }
}

/// A pool that is written by slot.
#[derive(Debug)]
pub struct PoolMut<'a> {
    /// `[slots, entry_bytes]`, aligned to 4 bytes.
    pub bytes: &'a mut [u8],
    /// Bytes of an entry.
    pub entry_bytes: usize,
    /// One of [`hotseam_abi::layout`].
    pub layout: u32,
}

impl<'a> PoolMut<'a> {
    /// Bytes of a slot.
    pub fn entry_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.bytes[slot * self.entry_bytes..(slot + 1) * self.entry_bytes]
    }

    /// # Safety
    /// The pool is valid for `'a` and touched by nobody else meanwhile.
    pub(crate) unsafe fn from_raw(p: &PoolRef, out_slots: &[i32], what: &str) -> Result<PoolMut<'a>> {
        let (slots, entry_bytes) = pool_shape(&p.bytes, what)?;
        if let Some(bad) = out_slots.iter().find(|slot| **slot >= slots as i32) {
            return Err(Error::argument(format!("{what}: slot {bad} of {slots}")));
        }
        // SAFETY: the caller's contract.
        let bytes = unsafe { raw_mut(p.bytes.data.cast::<u8>(), slots * entry_bytes, what)? };
        Ok(PoolMut { bytes, entry_bytes, layout: p.layout })
    }
}
