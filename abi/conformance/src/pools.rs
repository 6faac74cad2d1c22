//! KV pools of the cases: pages in random order, NaN wherever nothing is to be read.

use crate::buffer::{Buffer, Role};
use crate::random::Random;
use crate::truth::layout;
use hotseam_abi::{PoolRef, dtype};
use hotseam_sdk::Result;
use hotseam_sdk::layouts::{Entry, EntryMut, Shape};
use hotseam_sdk::views::Form;
use std::ops::Range;

/// Least bytes after the entries of a page, which nobody reads or writes.
const PADDING: usize = 12;

/// The form of a pool with padded pages of whole words.
fn form(layout: u32, shape: Shape, entries_per_page: usize) -> Result<Form> {
    let parts = layout::parts(layout, shape)?;
    let page_bytes = (entries_per_page * (parts.data + parts.scale) + PADDING).next_multiple_of(4);
    Ok(Form { layout, shape, parts, entries_per_page, page_bytes })
}

/// Bytes of a slot.
fn entry(form: Form, bytes: &[u8], slot: usize) -> Entry<'_> {
    let (data, scale) = form.ranges(slot);
    Entry { data: &bytes[data], scale: &bytes[scale] }
}

/// Writes values to a slot.
fn store(form: Form, bytes: &mut [u8], slot: usize, values: &[f32]) -> Result<()> {
    let (data, scale) = form.ranges(slot);
    let (head, tail) = bytes.split_at_mut(scale.start);
    let entry = EntryMut { data: &mut head[data], scale: &mut tail[..scale.len()] };
    layout::encode(form.layout, form.shape.rope_dim, values, entry)
}

fn reference(form: Form, bytes: &mut Buffer, table: *const i32, table_width: usize) -> PoolRef {
    let pages = bytes.bytes().len() / form.page_bytes;
    PoolRef {
        bytes: bytes.tensor(dtype::U8, &[pages, form.page_bytes]),
        layout: form.layout,
        entries_per_page: form.entries_per_page as u32,
        dim: form.shape.dim as u32,
        rope_dim: form.shape.rope_dim as u32,
        data_bytes: form.parts.data as u32,
        scale_bytes: form.parts.scale as u32,
        table,
        table_width: table_width as u32,
    }
}

/// A pool that an op reads through a page table.
#[derive(Debug, Clone)]
pub(crate) struct ReadPool {
    pub(crate) bytes: Buffer,
    pub(crate) table: Buffer,
    form: Form,
    table_width: usize,
}

impl ReadPool {
    /// A pool in which sequence `s` has entries `live[s]`, with values from `value(sequence, entry)`. Other pages are
    /// not mapped, and every byte that is not a live entry is poison.
    pub(crate) fn new(
        rng: &mut Random,
        layout: u32,
        shape: Shape,
        entries_per_page: usize,
        live: &[Range<usize>],
        mut value: impl FnMut(&mut Random, usize, usize) -> Vec<f32>,
    ) -> Result<Self> {
        let form = form(layout, shape, entries_per_page)?;
        let pages_of = |r: &Range<usize>| r.start / entries_per_page..r.end.div_ceil(entries_per_page);
        // One more column than is ever used, never mapped.
        let table_width = live.iter().map(|r| pages_of(r).end).max().unwrap_or(0) + 1;
        let used: usize = live.iter().filter(|r| !r.is_empty()).map(|r| pages_of(r).len()).sum();
        let mut free = rng.permutation(used + 3);
        let mut table = vec![-1i32; live.len() * table_width];
        let mut bytes = Buffer::poisoned("pool", Role::Input, (used + 3) * form.page_bytes / 4);
        for (s, range) in live.iter().enumerate().filter(|(_, r)| !r.is_empty()) {
            for page in pages_of(range) {
                table[s * table_width + page] = free.pop().expect("enough pages") as i32;
            }
            for entry in range.clone() {
                let page = table[s * table_width + entry / entries_per_page] as usize;
                let slot = page * entries_per_page + entry % entries_per_page;
                store(form, bytes.bytes_mut(), slot, &value(rng, s, entry))?;
            }
        }
        let table = Buffer::i32s("page table", table);
        Ok(Self { bytes, table, form, table_width })
    }

    /// The pool as sequence `seq` alone sees it.
    pub(crate) fn only(&self, seq: usize) -> Self {
        let row = self.table.i32()[seq * self.table_width..(seq + 1) * self.table_width].to_vec();
        Self { table: Buffer::i32s("page table", row), ..self.clone() }
    }

    /// Overwrites the values of an entry.
    pub(crate) fn set(&mut self, seq: usize, entry: usize, value: f32) {
        let per_page = self.form.entries_per_page;
        let page = self.table.i32()[seq * self.table_width + entry / per_page] as usize;
        let slot = page * per_page + entry % per_page;
        let values = vec![value; self.form.shape.dim];
        store(self.form, self.bytes.bytes_mut(), slot, &values).expect("layout was checked");
    }

    pub(crate) fn arg(&mut self) -> PoolRef {
        let table = self.table.ptr();
        reference(self.form, &mut self.bytes, table, self.table_width)
    }
}

/// A pool that an op writes by slot.
#[derive(Debug, Clone)]
pub(crate) struct WritePool {
    pub(crate) bytes: Buffer,
    pub(crate) form: Form,
}

impl WritePool {
    /// A poisoned pool of at least two pages, with room for `slots` entries.
    pub(crate) fn new(layout: u32, shape: Shape, entries_per_page: usize, slots: usize) -> Result<Self> {
        let form = form(layout, shape, entries_per_page)?;
        let pages = slots.div_ceil(entries_per_page).max(2);
        Ok(Self { bytes: Buffer::poisoned("pool", Role::Output, pages * form.page_bytes / 4), form })
    }

    pub(crate) fn slots(&self) -> usize {
        self.bytes.bytes().len() / self.form.page_bytes * self.form.entries_per_page
    }

    /// Distinct slots in random order; the first four are those on either side of the border of the first two pages, and
    /// the first and the last of all.
    pub(crate) fn some_slots(&self, rng: &mut Random) -> Vec<i32> {
        let (per_page, all) = (self.form.entries_per_page, self.slots());
        let mut borders = vec![per_page - 1, per_page, 0, all - 1];
        borders.dedup();
        let rest = rng.permutation(all).into_iter().filter(|slot| !borders.contains(slot));
        let rest: Vec<usize> = rest.collect();
        borders.into_iter().chain(rest).map(|slot| slot as i32).collect()
    }

    pub(crate) fn entry(&self, slot: usize) -> Entry<'_> {
        entry(self.form, self.bytes.bytes(), slot)
    }

    /// The values at `slots`, decoded.
    pub(crate) fn decoded(&self, slots: &[usize]) -> Vec<f32> {
        let Shape { dim, rope_dim } = self.form.shape;
        let mut values = vec![0f32; slots.len() * dim];
        for (v, slot) in values.chunks_exact_mut(dim).zip(slots) {
            layout::decode(self.form.layout, rope_dim, self.entry(*slot), v).expect("layout was checked");
        }
        values
    }

    /// The first byte that differs from `before` and is not part of an entry at `slots`: in words, where it is.
    pub(crate) fn stray(&self, before: &Self, slots: &[usize]) -> Option<String> {
        let form = self.form;
        let mut mine = vec![false; self.bytes.bytes().len()];
        for slot in slots {
            let (data, scale) = form.ranges(*slot);
            mine[data].fill(true);
            mine[scale].fill(true);
        }
        let changed = self.bytes.bytes().iter().zip(before.bytes.bytes()).zip(&mine);
        let at = changed.enumerate().find(|(_, ((now, was), mine))| !**mine && now != was)?.0;
        let (page, byte) = (at / form.page_bytes, at % form.page_bytes);
        let (data, per_page) = (form.entries_per_page * form.parts.data, form.entries_per_page);
        Some(match byte {
            b if b < data => format!("pool slot {}", page * per_page + b / form.parts.data),
            b if b < data + per_page * form.parts.scale => {
                format!("scales of pool slot {}", page * per_page + (b - data) / form.parts.scale)
            }
            _ => format!("padding of pool page {page}"),
        })
    }

    pub(crate) fn arg(&mut self) -> PoolRef {
        reference(self.form, &mut self.bytes, std::ptr::null(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotseam_abi::layout::{KEY_FP8_HADAMARD, KV_F32};

    const PAIR: Shape = Shape { dim: 2, rope_dim: 0 };

    #[test]
    fn live_entries_are_reachable_and_the_rest_is_poison() {
        let live = [3..6, 0..0, 10..11];
        let mut pool =
            ReadPool::new(&mut Random::new(3), KV_F32, PAIR, 4, &live, |_, s, e| vec![s as f32, e as f32])
                .unwrap();
        assert_eq!((pool.table_width, pool.form.page_bytes), (4, 4 * 8 + 12));
        let mapped: Vec<bool> = pool.table.i32().iter().map(|p| *p >= 0).collect();
        let expected = [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1].map(|unmapped| unmapped == 0);
        assert_eq!(mapped, expected);
        assert_eq!(pool.bytes.f32().iter().filter(|v| !v.is_nan()).count(), 2 * 4);
        let page = pool.table.i32()[10] as usize;
        let at = page * pool.form.page_bytes / 4 + 4;
        assert_eq!(pool.bytes.f32()[at..][..2], [2.0, 10.0]);
        pool.set(2, 10, 7.0);
        assert_eq!(pool.bytes.f32()[at..][..2], [7.0, 7.0]);
    }

    #[test]
    fn writes_to_other_slots_scales_and_padding_are_seen() {
        let pool = WritePool::new(KEY_FP8_HADAMARD, PAIR, 4, 7).unwrap();
        assert_eq!(pool.slots(), 8);
        let slots = pool.some_slots(&mut Random::new(1));
        assert_eq!(slots[..4], [3, 4, 0, 7]);
        assert_eq!(slots.iter().copied().collect::<std::collections::BTreeSet<_>>().len(), 8);
        let written = |at: usize| {
            let mut now = pool.clone();
            now.bytes.bytes_mut()[at] ^= 1;
            now.stray(&pool, &[1, 4])
        };
        let page = pool.form.page_bytes;
        assert_eq!(written(2), None, "data of slot 1");
        assert_eq!(written(8 + 7), None, "scales of slot 1");
        assert_eq!(written(5).unwrap(), "pool slot 2");
        assert_eq!(written(page + 8 + 4).unwrap(), "scales of pool slot 5");
        assert_eq!(written(page - 1).unwrap(), "padding of pool page 0");
    }
}
