//! Long sequences for measurements: copies of the pages of a short one.

use crate::memory::Memory;
use crate::store::{LayerLayout, find};
use crate::{KvError, KvStore, SeqKv};

impl KvStore {
    /// Opens a sequence that holds `len` positions, with room for `tokens`, whose pages are copies of those of `of`, over and
    /// over. What it says makes no sense, but every number in it is one that a call wrote.
    ///
    /// # Errors
    /// If pages or rows run out, or a device fails.
    ///
    /// # Panics
    /// If `of` has no page that is full.
    pub fn open_copies(
        &mut self,
        of: &SeqKv,
        layouts: &[LayerLayout],
        len: usize,
        tokens: usize,
    ) -> Result<SeqKv, KvError> {
        let full = of.complete_pages();
        assert!(full > 0, "a page to copy");
        let seq = self.open_at(len, tokens)?;
        let window: Vec<i32> = of.window_pages.iter().copied().filter(|page| *page >= 0).collect();
        match self.copy_pages(layouts, &of.pages[..full], &window, &seq) {
            Ok(()) => Ok(seq),
            Err(error) => {
                self.close(seq);
                Err(error)
            }
        }
    }

    fn copy_pages(
        &self,
        layouts: &[LayerLayout],
        full: &[i32],
        window: &[i32],
        to: &SeqKv,
    ) -> Result<(), KvError> {
        let copy = |memory: &Memory, page_bytes: usize, from: i32, to: i32| {
            // SAFETY: both are pages of the pool; nothing runs on it meanwhile.
            unsafe { memory.copy_within(from as usize * page_bytes, to as usize * page_bytes, page_bytes) }
        };
        for (store, layout) in self.layers.iter().zip(layouts) {
            let pool = find(&store.window, layout.kv);
            for (i, page) in to.window_pages.iter().enumerate().filter(|(_, page)| **page >= 0) {
                copy(&pool.memory, pool.page_bytes(), window[i % window.len()], *page)?;
            }
            let entries = (!store.entries.is_empty()).then(|| find(&store.entries, layout.kv));
            let keys = layout.keys.map(|keys| find(&store.keys, keys));
            for pool in entries.into_iter().chain(keys) {
                for (i, page) in to.pages.iter().enumerate() {
                    copy(&pool.memory, pool.page_bytes(), full[i % full.len()], *page)?;
                }
            }
        }
        Ok(())
    }
}
