//! Index keys in layouts that the driving assignment does not store: what truth would have stored.

use std::collections::BTreeMap;

use hotseam_abi::{CompressArgs, PoolRef, component};
use hotseam_conformance::truth::layout::entry_bytes;
use hotseam_engine::observe::{Args, Call, Handed, PoolLayout};

use super::judge::truth;
use super::values::dim;

/// Pools beside those of the engine, by the address of the engine's pool and by layout, with the same slots.
#[derive(Debug, Default)]
pub(crate) struct KeyPools {
    pools: BTreeMap<(usize, u32), Pool>,
}

#[derive(Debug)]
struct Pool {
    /// 4-byte words, so that entries are aligned.
    words: Vec<u32>,
    entry_bytes: usize,
    /// Entry bytes of the engine's pool.
    theirs: usize,
}

impl Pool {
    fn new(slots: usize, entry_bytes: usize, theirs: usize) -> Self {
        Self { words: vec![0; (slots * entry_bytes).div_ceil(4)], entry_bytes, theirs }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.words.len() * 4;
        // SAFETY: words are bytes.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), n) }
    }

    fn slots(&self) -> usize {
        self.words.len() * 4 / self.entry_bytes.max(1)
    }
}

/// The layout `id` for the entries of `pool`.
pub(crate) fn pool_layout(pool: &PoolRef, id: u32) -> Result<PoolLayout, String> {
    let dim = dim(pool.layout, pool.bytes.shape[1].max(0) as usize)?;
    Ok(PoolLayout { id, entry_bytes: entry_bytes(id, dim).map_err(|e| e.message)? })
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
        let theirs = a.pool.bytes.shape[1].max(0) as usize;
        let slots = a.pool.bytes.shape[0].max(0) as usize;
        let key = (a.pool.bytes.data.addr(), layout);
        let pool = self.pools.entry(key).or_insert_with(|| Pool::new(slots, wanted.entry_bytes, theirs));
        let n = a.n_entries as usize;
        if n == 0 {
            return Ok(());
        }
        // SAFETY: the table of a call that is looked at.
        let out_slots = unsafe { std::slice::from_raw_parts(a.out_slots, n) };
        let places = scratch.places();
        let entries = &scratch.outputs()[0];
        let size = wanted.entry_bytes;
        for ((item, _), bytes) in places[0].items.iter().zip(entries.chunks_exact(size)) {
            let slot = out_slots[*item] as usize;
            pool.bytes_mut()[slot * size..(slot + 1) * size].copy_from_slice(bytes);
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
        view.layout = layout;
        view.bytes.data = pool.words.as_mut_ptr().cast();
        view.bytes.shape = [pool.slots() as i64, pool.entry_bytes as i64, 1, 1];
        view.bytes.strides = [pool.entry_bytes as i64, 1, 1, 1];
        Some(view)
    }

    /// Follows a hand-off from one engine pool to another.
    pub(crate) fn handed(&mut self, moved: &[Handed<'_>]) {
        for part in moved.iter().filter(|m| m.component == component::INDEX_KEYS && !m.is_empty()) {
            let ((from, to), (src, dst)) = (part.bases(), part.items());
            let item = part.sent(0).len();
            let layouts: Vec<u32> =
                self.pools.keys().filter(|(base, _)| *base == from).map(|k| k.1).collect();
            for layout in layouts {
                let Some(source) = self.pools.remove(&(from, layout)) else { continue };
                let page = item / source.theirs.max(1) * source.entry_bytes;
                let slots = dst
                    .iter()
                    .max()
                    .map_or(0, |last| (*last as usize + 1) * page / source.entry_bytes.max(1));
                let slots = slots.max(source.slots());
                let target = self
                    .pools
                    .entry((to, layout))
                    .or_insert_with(|| Pool::new(slots, source.entry_bytes, source.theirs));
                let mut source = source;
                for (s, d) in src.iter().zip(dst) {
                    let bytes = source.bytes_mut()[*s as usize * page..][..page].to_vec();
                    target.bytes_mut()[*d as usize * page..][..page].copy_from_slice(&bytes);
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
