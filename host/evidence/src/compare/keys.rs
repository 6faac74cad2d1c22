//! Index keys in layouts that the driving assignment does not store: what truth would have stored.

use std::collections::BTreeMap;

use hotseam_abi::{CompressArgs, PoolRef, component};
use hotseam_engine::observe::{Args, Call, Handed, PoolLayout};

use super::judge::truth;
use super::values::pool_layout;

/// Pools beside those of the engine, by the address of the engine's pool and by layout, with the same pages.
#[derive(Debug, Default)]
pub(crate) struct KeyPools {
    pools: BTreeMap<(usize, u32), Pool>,
}

#[derive(Debug)]
struct Pool {
    /// 4-byte words, so that pages are aligned; a page begins at a word.
    words: Vec<u32>,
    layout: PoolLayout,
    entries_per_page: usize,
}

impl Pool {
    fn new(pages: usize, layout: PoolLayout, entries_per_page: usize) -> Self {
        let mut new = Self { words: Vec::new(), layout, entries_per_page };
        new.words = vec![0; pages * new.page_bytes() / 4];
        new
    }

    fn page_bytes(&self) -> usize {
        self.layout.page_bytes(self.entries_per_page).next_multiple_of(4)
    }

    fn pages(&self) -> usize {
        self.words.len() * 4 / self.page_bytes().max(1)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.words.len() * 4;
        // SAFETY: words are bytes.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), n) }
    }

    fn page_mut(&mut self, page: usize) -> &mut [u8] {
        let size = self.page_bytes();
        &mut self.bytes_mut()[page * size..(page + 1) * size]
    }

    /// Writes an entry, data and scales one after the other, to a slot.
    fn put(&mut self, slot: usize, entry: &[u8]) {
        let (PoolLayout { data_bytes, scale_bytes, .. }, per_page) = (self.layout, self.entries_per_page);
        let (page, i) = (self.page_mut(slot / per_page), slot % per_page);
        let (data, scale) = entry.split_at(data_bytes);
        page[i * data_bytes..][..data_bytes].copy_from_slice(data);
        page[per_page * data_bytes + i * scale_bytes..][..scale_bytes].copy_from_slice(scale);
    }
}

impl KeyPools {
    /// Stores the entries of an `indexer.compress` call in `layout` too.
    ///
    /// # Errors
    /// If truth does not know a layout or refuses the arguments.
    pub(crate) fn store(&mut self, call: &Call<'_>, a: &CompressArgs, layout: u32) -> Result<(), String> {
        if layout == a.pool.layout {
            return Ok(());
        }
        let wanted = pool_layout(&a.pool, layout)?;
        let scratch = call.scratch(Some(wanted));
        truth(&scratch, 0)?;
        let (pages, per_page) = (a.pool.bytes.shape[0].max(0) as usize, a.pool.entries_per_page as usize);
        let key = (a.pool.bytes.data.addr(), layout);
        let pool = self.pools.entry(key).or_insert_with(|| Pool::new(pages, wanted, per_page.max(1)));
        let n = a.n_entries as usize;
        if n == 0 {
            return Ok(());
        }
        // SAFETY: the table of a call that is looked at.
        let out_slots = unsafe { std::slice::from_raw_parts(a.out_slots, n) };
        let places = scratch.places();
        let entries = &scratch.outputs()[0];
        let size = wanted.data_bytes + wanted.scale_bytes;
        for ((item, _), bytes) in places[0].items.iter().zip(entries.chunks_exact(size)) {
            pool.put(out_slots[*item] as usize, bytes);
        }
        Ok(())
    }

    /// The pool in `layout` in place of the engine's, for a call that reads it.
    pub(crate) fn view(&mut self, engine: &PoolRef, layout: u32) -> Option<PoolRef> {
        if layout == engine.layout {
            return Some(*engine);
        }
        let pool = self.pools.get_mut(&(engine.bytes.data.addr(), layout))?;
        let mut view = *engine;
        (view.layout, view.data_bytes, view.scale_bytes) =
            (layout, pool.layout.data_bytes as u32, pool.layout.scale_bytes as u32);
        view.bytes.data = pool.words.as_mut_ptr().cast();
        view.bytes.shape = [pool.pages() as i64, pool.page_bytes() as i64, 1, 1];
        view.bytes.strides = [pool.page_bytes() as i64, 1, 1, 1];
        Some(view)
    }

    /// Follows a hand-off from one engine pool to another.
    pub(crate) fn handed(&mut self, moved: &[Handed<'_>]) {
        for part in moved.iter().filter(|m| m.component == component::INDEX_KEYS && !m.is_empty()) {
            let ((from, to), (src, dst)) = (part.bases(), part.items());
            let layouts: Vec<u32> =
                self.pools.keys().filter(|(base, _)| *base == from).map(|k| k.1).collect();
            for layout in layouts {
                let Some(source) = self.pools.remove(&(from, layout)) else { continue };
                let pages = dst.iter().max().map_or(0, |last| *last as usize + 1).max(source.pages());
                let target = self
                    .pools
                    .entry((to, layout))
                    .or_insert_with(|| Pool::new(pages, source.layout, source.entries_per_page));
                let mut source = source;
                for (s, d) in src.iter().zip(dst) {
                    target.page_mut(*d as usize).copy_from_slice(source.page_mut(*s as usize));
                }
                self.pools.insert((from, layout), source);
            }
        }
    }
}

/// The layout of the pool that an `indexer.compress` call writes.
pub(crate) fn written(args: Args<'_>) -> Option<&CompressArgs> {
    match args {
        Args::Compress(a) => Some(a),
        _ => None,
    }
}
