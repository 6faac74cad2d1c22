//! KV pools of the cases: pages in random order, NaN wherever nothing is to be read.

use crate::buffer::{Buffer, Role};
use crate::random::Random;
use crate::truth::layout;
use hotseam_abi::{PoolRef, dtype};
use hotseam_sdk::Result;
use std::ops::Range;

/// A pool that an op reads through a page table.
#[derive(Debug, Clone)]
pub(crate) struct ReadPool {
    pub(crate) bytes: Buffer,
    pub(crate) table: Buffer,
    layout: u32,
    dim: usize,
    entry_bytes: usize,
    entries_per_page: usize,
    table_width: usize,
}

impl ReadPool {
    /// A pool in which sequence `s` has entries `live[s]`, with values from `value(sequence, entry)`. Other pages are
    /// not mapped, and every byte that is not a live entry is poison.
    pub(crate) fn new(
        rng: &mut Random,
        layout: u32,
        dim: usize,
        entries_per_page: usize,
        live: &[Range<usize>],
        mut value: impl FnMut(&mut Random, usize, usize) -> Vec<f32>,
    ) -> Result<Self> {
        let entry_bytes = layout::entry_bytes(layout, dim)?;
        let pages_of = |r: &Range<usize>| r.start / entries_per_page..r.end.div_ceil(entries_per_page);
        // One more column than is ever used, never mapped.
        let table_width = live.iter().map(|r| pages_of(r).end).max().unwrap_or(0) + 1;
        let used: usize = live.iter().filter(|r| !r.is_empty()).map(|r| pages_of(r).len()).sum();
        let mut free = rng.permutation(used + 3);
        let mut table = vec![-1i32; live.len() * table_width];
        let words = (used + 3) * entries_per_page * entry_bytes / 4;
        let mut bytes = Buffer::poisoned("pool", Role::Input, words);
        for (s, range) in live.iter().enumerate().filter(|(_, r)| !r.is_empty()) {
            for page in pages_of(range) {
                table[s * table_width + page] = free.pop().expect("enough pages") as i32;
            }
            for entry in range.clone() {
                let page = table[s * table_width + entry / entries_per_page] as usize;
                let slot = page * entries_per_page + entry % entries_per_page;
                let at = &mut bytes.bytes_mut()[slot * entry_bytes..(slot + 1) * entry_bytes];
                layout::encode(layout, &value(rng, s, entry), at)?;
            }
        }
        let table = Buffer::i32s("page table", table);
        Ok(Self { bytes, table, layout, dim, entry_bytes, entries_per_page, table_width })
    }

    /// The pool as sequence `seq` alone sees it.
    pub(crate) fn only(&self, seq: usize) -> Self {
        let row = self.table.i32()[seq * self.table_width..(seq + 1) * self.table_width].to_vec();
        Self { table: Buffer::i32s("page table", row), ..self.clone() }
    }

    /// Overwrites the values of an entry.
    pub(crate) fn set(&mut self, seq: usize, entry: usize, value: f32) {
        let page = self.table.i32()[seq * self.table_width + entry / self.entries_per_page] as usize;
        let slot = page * self.entries_per_page + entry % self.entries_per_page;
        let at = &mut self.bytes.bytes_mut()[slot * self.entry_bytes..(slot + 1) * self.entry_bytes];
        layout::encode(self.layout, &vec![value; self.dim], at).expect("layout was checked");
    }

    pub(crate) fn arg(&mut self) -> PoolRef {
        let slots = self.bytes.bytes().len() / self.entry_bytes;
        PoolRef {
            bytes: self.bytes.tensor(dtype::U8, &[slots, self.entry_bytes]),
            layout: self.layout,
            entries_per_page: self.entries_per_page as u32,
            table: self.table.ptr(),
            table_width: self.table_width as u32,
        }
    }
}

/// A pool that an op writes by slot.
#[derive(Debug, Clone)]
pub(crate) struct WritePool {
    pub(crate) bytes: Buffer,
    pub(crate) layout: u32,
    pub(crate) dim: usize,
    pub(crate) entry_bytes: usize,
}

impl WritePool {
    /// A poisoned pool.
    pub(crate) fn new(layout: u32, dim: usize, slots: usize) -> Result<Self> {
        let entry_bytes = layout::entry_bytes(layout, dim)?;
        let bytes = Buffer::poisoned("pool", Role::Output, slots * entry_bytes / 4);
        Ok(Self { bytes, layout, dim, entry_bytes })
    }

    pub(crate) fn slots(&self) -> usize {
        self.bytes.bytes().len() / self.entry_bytes
    }

    pub(crate) fn entry(&self, slot: usize) -> &[u8] {
        &self.bytes.bytes()[slot * self.entry_bytes..(slot + 1) * self.entry_bytes]
    }

    /// The values at `slots`, decoded.
    pub(crate) fn decoded(&self, slots: &[usize]) -> Vec<f32> {
        let mut values = vec![0f32; slots.len() * self.dim];
        for (v, slot) in values.chunks_exact_mut(self.dim).zip(slots) {
            layout::decode(self.layout, self.entry(*slot), v).expect("layout was checked");
        }
        values
    }

    pub(crate) fn arg(&mut self) -> PoolRef {
        let slots = self.slots();
        PoolRef {
            bytes: self.bytes.tensor(dtype::U8, &[slots, self.entry_bytes]),
            layout: self.layout,
            entries_per_page: 8,
            table: std::ptr::null(),
            table_width: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotseam_abi::layout::KV_F32;

    #[test]
    fn live_entries_are_reachable_and_the_rest_is_poison() {
        let live = [3..6, 0..0, 10..11];
        let mut pool =
            ReadPool::new(&mut Random::new(3), KV_F32, 2, 4, &live, |_, s, e| vec![s as f32, e as f32])
                .unwrap();
        assert_eq!(pool.table_width, 4);
        let mapped: Vec<bool> = pool.table.i32().iter().map(|p| *p >= 0).collect();
        let expected = [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1].map(|unmapped| unmapped == 0);
        assert_eq!(mapped, expected);
        assert_eq!(pool.bytes.f32().iter().filter(|v| !v.is_nan()).count(), 2 * 4);
        let page = pool.table.i32()[10] as usize;
        assert_eq!(pool.bytes.f32()[(page * 4 + 2) * 2..][..2], [2.0, 10.0]);
        pool.set(2, 10, 7.0);
        assert_eq!(pool.bytes.f32()[(page * 4 + 2) * 2..][..2], [7.0, 7.0]);
    }
}
