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
        let to_window: Vec<i32> = to.window_pages.iter().copied().filter(|page| *page >= 0).collect();
        for (store, layout) in self.layers.iter().zip(layouts) {
            let pool = find(&store.window, layout.kv);
            fill(&pool.memory, pool.page_bytes(), window, &to_window)?;
            let entries = (!store.entries.is_empty()).then(|| find(&store.entries, layout.kv));
            let keys = layout.keys.map(|keys| find(&store.keys, keys));
            for pool in entries.into_iter().chain(keys) {
                fill(&pool.memory, pool.page_bytes(), full, &to.pages)?;
            }
        }
        Ok(())
    }
}

/// Fills the pages `to` with those of `from`. Where pages lie one after another, what is filled is copied behind itself, so that
/// thousands of pages take few copies.
fn fill(memory: &Memory, page_bytes: usize, from: &[i32], to: &[i32]) -> Result<(), KvError> {
    let copy = |from: i32, to: i32, pages: usize| {
        let at = |page: i32| page as usize * page_bytes;
        // SAFETY: all are pages of the pool, those that are read lie before those that are written or apart from them, and
        // nothing runs on it meanwhile.
        unsafe { memory.copy_within(at(from), at(to), pages * page_bytes) }
    };
    let mut to = to.to_vec();
    to.sort_unstable();
    for run in to.chunk_by(|a, b| *b == a + 1) {
        let mut done = from.len().min(run.len());
        for (i, page) in run[..done].iter().enumerate() {
            copy(from[i], *page, 1)?;
        }
        while done < run.len() {
            let more = done.min(run.len() - done);
            copy(run[0], run[done], more)?;
            done += more;
        }
    }
    Ok(())
}
