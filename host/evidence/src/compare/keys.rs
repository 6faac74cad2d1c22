//! Index keys in layouts that the driving assignment does not store: what truth would have stored.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use hotseam_abi::{CompressArgs, PoolRef, component};
use hotseam_engine::observe::{Args, Call, Handed, Memory, PoolLayout, Room, Scratch};

use super::judge::truth;
use super::values::pool_layout;

/// Pools beside those of the engine, by the address of the engine's pool and by layout, with the same pages.
#[derive(Debug, Default)]
pub(crate) struct KeyPools {
    pools: BTreeMap<(usize, u32), Pool>,
}

/// Pages in the memory of the engine's pool. A page begins at a word.
#[derive(Debug)]
struct Pool {
    room: Room,
    pages: usize,
    layout: PoolLayout,
    entries_per_page: usize,
}

impl Pool {
    fn new(memory: Memory, pages: usize, layout: PoolLayout, per_page: usize) -> Result<Self, String> {
        let bytes = vec![0; pages * page_bytes(layout, per_page)];
        let room = Room::of(memory, &bytes).map_err(|error| error.to_string())?;
        Ok(Self { room, pages, layout, entries_per_page: per_page })
    }

    fn page_bytes(&self) -> usize {
        page_bytes(self.layout, self.entries_per_page)
    }

    /// Writes an entry, data and scales one after the other, to a slot.
    fn put(&mut self, slot: usize, entry: &[u8]) -> Result<(), String> {
        let (PoolLayout { data_bytes, scale_bytes, .. }, per_page) = (self.layout, self.entries_per_page);
        let (page, i) = (slot / per_page * self.page_bytes(), slot % per_page);
        let (data, scale) = entry.split_at(data_bytes);
        let scales = page + per_page * data_bytes + i * scale_bytes;
        let written = self.room.write(page + i * data_bytes, data);
        written.and_then(|()| self.room.write(scales, scale)).map_err(|error| error.to_string())
    }
}

fn page_bytes(layout: PoolLayout, entries_per_page: usize) -> usize {
    layout.page_bytes(entries_per_page).next_multiple_of(4)
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
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let host = call.on_host().map_err(|error| failed(&error))?;
        // SAFETY: inputs of a call that is looked at, which outlive the scratch.
        let scratch = unsafe { Scratch::on_host(host.args(), Some(wanted)) };
        truth(&scratch, 0)?;
        let (pages, per_page) = (a.pool.bytes.shape[0].max(0) as usize, a.pool.entries_per_page as usize);
        let pool = match self.pools.entry((a.pool.bytes.data.addr(), layout)) {
            Entry::Occupied(pool) => pool.into_mut(),
            Entry::Vacant(none) => none.insert(Pool::new(call.memory, pages, wanted, per_page.max(1))?),
        };
        // SAFETY: the table of a call that is looked at.
        let out_slots = unsafe { call.memory.read(a.out_slots, a.n_entries as usize) };
        let (out_slots, outputs) =
            (out_slots.map_err(|error| failed(&error))?, scratch.outputs().map_err(|error| failed(&error))?);
        let size = wanted.data_bytes + wanted.scale_bytes;
        for ((item, _), bytes) in scratch.places()[0].items.iter().zip(outputs[0].chunks_exact(size)) {
            pool.put(out_slots[*item] as usize, bytes)?;
        }
        Ok(())
    }

    /// The pool in `layout` in place of the engine's, for a call that reads it.
    pub(crate) fn view(&self, engine: &PoolRef, layout: u32) -> Option<PoolRef> {
        if layout == engine.layout {
            return Some(*engine);
        }
        let pool = self.pools.get(&(engine.bytes.data.addr(), layout))?;
        let mut view = *engine;
        (view.layout, view.data_bytes, view.scale_bytes) =
            (layout, pool.layout.data_bytes as u32, pool.layout.scale_bytes as u32);
        view.bytes.data = pool.room.ptr().cast();
        view.bytes.shape = [pool.pages as i64, pool.page_bytes() as i64, 1, 1];
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
                let (memory, size) = (source.room.memory(), source.page_bytes());
                let pages = dst.iter().max().map_or(0, |last| *last as usize + 1).max(source.pages);
                let target = match self.pools.entry((to, layout)) {
                    Entry::Occupied(pool) => Some(pool.into_mut()),
                    Entry::Vacant(none) => Pool::new(memory, pages, source.layout, source.entries_per_page)
                        .ok()
                        .map(|pool| none.insert(pool)),
                };
                // Pages that cannot be followed read as zeros, and what reads them is then found to differ.
                if let Some(target) = target {
                    for (s, d) in src.iter().zip(dst) {
                        let page = source.room.read(*s as usize * size, size);
                        let _ = page.and_then(|page| target.room.write(*d as usize * size, &page));
                    }
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
