//! Rope tables and KV pools.

use crate::layouts::{self, Entry, EntryMut, Parts, Shape};
use crate::tensor::{dim, f32s, pool_shape, raw, raw_mut};
use crate::{Error, Result, SharedMut};
use hotseam_abi::{PoolRef, RopeTables, layout};
use std::ops::Range;

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

/// How a pool is laid out: the one place that knows where the bytes of a slot are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// One of [`hotseam_abi::layout`].
    pub layout: u32,
    /// Values of an entry.
    pub shape: Shape,
    /// Bytes of the parts of an entry.
    pub parts: Parts,
    /// Entries of a page.
    pub entries_per_page: usize,
    /// Bytes of a page, padding included.
    pub page_bytes: usize,
}

impl Form {
    /// Where the data and the scales of a slot are in the bytes of the pool.
    #[inline]
    pub fn ranges(&self, slot: usize) -> (Range<usize>, Range<usize>) {
        let (page, entry) = (slot / self.entries_per_page, slot % self.entries_per_page);
        let data = page * self.page_bytes + entry * self.parts.data;
        let scale =
            page * self.page_bytes + self.entries_per_page * self.parts.data + entry * self.parts.scale;
        (data..data + self.parts.data, scale..scale + self.parts.scale)
    }

    /// Whether entries are f32 values as they are.
    pub fn is_f32(&self) -> bool {
        matches!(self.layout, layout::KV_F32 | layout::KEY_F32)
    }

    /// The form that a pool has, for entries of `dim` values; and its number of pages.
    fn of(p: &PoolRef, dim: usize, what: &str) -> Result<(Form, usize)> {
        let (pages, page_bytes) = pool_shape(&p.bytes, what)?;
        let shape = Shape { dim: p.dim as usize, rope_dim: p.rope_dim as usize };
        if shape.dim != dim {
            return Err(Error::argument(format!("{what} has entries of {} values, expected {dim}", p.dim)));
        }
        let parts = layouts::parts(p.layout, shape)?;
        let found = Parts { data: p.data_bytes as usize, scale: p.scale_bytes as usize };
        if parts != found {
            return Err(Error::argument(format!(
                "{what} has entries of {} and {} bytes, layout {} at {dim} values has {} and {}",
                found.data, found.scale, p.layout, parts.data, parts.scale
            )));
        }
        let entries_per_page = p.entries_per_page as usize;
        if entries_per_page == 0 {
            return Err(Error::argument(format!("{what} has no entries in a page")));
        }
        let needed = entries_per_page.saturating_mul(parts.data + parts.scale);
        let form = Form { layout: p.layout, shape, parts, entries_per_page, page_bytes };
        if page_bytes < needed || (form.is_f32() && !page_bytes.is_multiple_of(4)) {
            return Err(Error::argument(format!(
                "{what} has pages of {page_bytes} bytes, expected at least {needed} for {entries_per_page} entries"
            )));
        }
        Ok((form, pages))
    }
}

/// A pool that is read.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// How it is laid out.
    pub form: Form,
    bytes: &'a [u8],
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
        let per_page = self.form.entries_per_page;
        let page = self.table[seq * self.table_width + entry / per_page];
        assert!(page >= 0, "entry {entry} of sequence {seq} has no page");
        page as usize * per_page + entry % per_page
    }

    /// Bytes of a slot.
    #[inline]
    pub fn entry(&self, slot: usize) -> Entry<'a> {
        let (data, scale) = self.form.ranges(slot);
        Entry { data: &self.bytes[data], scale: &self.bytes[scale] }
    }

    /// Reads a slot into `values`, in the rotated space if the layout rotates.
    pub fn decode(&self, slot: usize, values: &mut [f32]) {
        layouts::decode(self.form.layout, self.form.shape.rope_dim, self.entry(slot), values)
            .expect("the layout was checked when the view was made");
    }

    /// The values of a slot of an f32 layout.
    ///
    /// # Panics
    /// If the layout is none.
    #[inline]
    pub fn f32(&self, slot: usize) -> &'a [f32] {
        assert!(self.form.is_f32(), "layout {} is not f32", self.form.layout);
        let data = self.entry(slot).data;
        // SAFETY: aligned to 4 bytes: the pool is and pages of f32 entries are (checked when the view was made); any bits
        // are an f32.
        unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), data.len() / 4) }
    }

    /// # Safety
    /// Pool and table are valid for `'a` and not written meanwhile.
    pub(crate) unsafe fn from_raw(p: &PoolRef, n_seqs: usize, dim: usize, what: &str) -> Result<Pool<'a>> {
        let (form, pages) = Form::of(p, dim, what)?;
        let table_width = p.table_width as usize;
        // SAFETY: the caller's contract.
        let (bytes, table) = unsafe {
            (
                raw(p.bytes.data.cast::<u8>(), pages * form.page_bytes, what)?,
                raw(p.table, n_seqs * table_width, what)?,
            )
        };
        if let Some(bad) = table.iter().find(|page| i64::from(**page) >= pages as i64) {
            return Err(Error::argument(format!("{what}: page {bad} of {pages}")));
        }
        Ok(Pool { form, bytes, table, table_width })
    }
}

/// A pool that is written by slot.
#[derive(Debug)]
pub struct PoolMut<'a> {
    /// How it is laid out.
    pub form: Form,
    bytes: &'a mut [u8],
}

impl<'a> PoolMut<'a> {
    /// A pool in memory of one's own.
    ///
    /// # Panics
    /// If `bytes` are no whole pages.
    pub fn new(form: Form, bytes: &'a mut [u8]) -> Self {
        assert!(bytes.len().is_multiple_of(form.page_bytes), "{} bytes are no whole pages", bytes.len());
        Self { form, bytes }
    }

    /// Takes the pool out of a view, so that the rest of the view can be read while the pool is written; the view keeps a
    /// pool without slots.
    pub fn take(&mut self) -> PoolMut<'a> {
        PoolMut { form: self.form, bytes: std::mem::take(&mut self.bytes) }
    }

    /// Bytes of a slot.
    pub fn entry(&self, slot: usize) -> Entry<'_> {
        let (data, scale) = self.form.ranges(slot);
        Entry { data: &self.bytes[data], scale: &self.bytes[scale] }
    }

    /// Bytes of a slot, to be written.
    pub fn entry_mut(&mut self, slot: usize) -> EntryMut<'_> {
        let (data, scale) = self.form.ranges(slot);
        // The scales of a page follow its data.
        let (head, tail) = self.bytes.split_at_mut(scale.start);
        EntryMut { data: &mut head[data], scale: &mut tail[..scale.len()] }
    }

    /// Writes `values` (roped, not rotated) to a slot; see [`layouts::encode`] for what is left in them.
    pub fn encode(&mut self, slot: usize, values: &mut [f32]) {
        let form = self.form;
        layouts::encode(form.layout, form.shape.rope_dim, values, self.entry_mut(slot))
            .expect("the layout was checked when the view was made");
    }

    /// The pool for several threads that write different slots.
    pub fn shared(&mut self) -> SharedPool<'_> {
        SharedPool { form: self.form, bytes: SharedMut::new(self.bytes) }
    }

    /// # Safety
    /// The pool is valid for `'a` and touched by nobody else meanwhile.
    pub(crate) unsafe fn from_raw(
        p: &PoolRef,
        out_slots: &[i32],
        dim: usize,
        what: &str,
    ) -> Result<PoolMut<'a>> {
        let (form, pages) = Form::of(p, dim, what)?;
        let slots = pages * form.entries_per_page;
        if let Some(bad) = out_slots.iter().find(|slot| i64::from(**slot) >= slots as i64) {
            return Err(Error::argument(format!("{what}: slot {bad} of {slots}")));
        }
        // SAFETY: the caller's contract.
        let bytes = unsafe { raw_mut(p.bytes.data.cast::<u8>(), pages * form.page_bytes, what)? };
        Ok(PoolMut { form, bytes })
    }
}

/// A pool that several pieces of a parallel loop write to, each its own slots.
pub struct SharedPool<'a> {
    form: Form,
    bytes: SharedMut<'a, u8>,
}

impl SharedPool<'_> {
    /// Writes `values` (roped, not rotated) to a slot; see [`layouts::encode`] for what is left in them.
    ///
    /// # Safety
    /// Nobody else touches the slot meanwhile.
    ///
    /// # Panics
    /// If the slot is outside the pool.
    pub unsafe fn encode(&self, slot: usize, values: &mut [f32]) {
        let (data, scale) = self.form.ranges(slot);
        // SAFETY: the parts of different slots do not overlap, and nobody else has this slot.
        let entry = unsafe { EntryMut { data: self.bytes.slice(data), scale: self.bytes.slice(scale) } };
        layouts::encode(self.form.layout, self.form.shape.rope_dim, values, entry)
            .expect("the layout was checked when the view was made");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(entries_per_page: usize) -> Form {
        Form {
            layout: layout::KV_FP8_DS_MLA,
            shape: Shape { dim: 512, rope_dim: 64 },
            parts: Parts { data: 576, scale: 8 },
            entries_per_page,
            page_bytes: (entries_per_page * 584).next_multiple_of(576),
        }
    }

    #[test]
    fn slots_are_where_the_serving_engines_have_them() {
        for (entries_per_page, page) in [(256, 149_760), (64, 37_440), (2, 1_728)] {
            let form = form(entries_per_page);
            assert_eq!(form.page_bytes, page);
            let last = entries_per_page - 1;
            assert_eq!(form.ranges(0), (0..576, entries_per_page * 576..entries_per_page * 576 + 8));
            let (data, scale) = form.ranges(last);
            assert_eq!(data.end, entries_per_page * 576);
            assert_eq!(scale, data.end + last * 8..data.end + last * 8 + 8);
            let (data, _) = form.ranges(entries_per_page);
            assert_eq!(data.start, page);
        }
    }

    #[test]
    fn parts_of_slots_fill_a_page_without_overlap() {
        let form = form(4);
        let mut bytes = vec![0u8; 3 * form.page_bytes];
        let mut pool = PoolMut::new(form, &mut bytes);
        for slot in 0..12 {
            let entry = pool.entry_mut(slot);
            entry.data.iter_mut().chain(entry.scale).for_each(|b| *b += 1);
        }
        for page in bytes.chunks_exact(form.page_bytes) {
            assert!(page[..4 * 584].iter().all(|b| *b == 1));
            assert!(page[4 * 584..].iter().all(|b| *b == 0), "padding is nobody's");
        }
    }
}
