//! A copy of one sequence's KV outside the store, to start other requests from.

use crate::memory::Memory;
use crate::store::{LayerLayout, find};
use crate::writer::History;
use crate::{C4_RING, C128_RING, KvError, KvStore, SeqKv};

/// The bytes that a sequence of `len` positions needs to go on.
#[derive(Debug, Clone)]
pub struct Saved {
    len: usize,
    bytes: Vec<u8>,
    history: History,
}

impl Saved {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// A run of bytes inside a layer's memory: (which memory, offset, length).
enum Place {
    Window(usize),
    Entries(usize),
    Keys(usize),
    State(usize),
    IndexState(usize),
}

impl KvStore {
    /// Calls `f` with the memory and byte range of every item that `seq`'s future needs, in a fixed order.
    fn for_each_item(&self, seq: &SeqKv, layouts: &[LayerLayout], mut f: impl FnMut(usize, Place, usize)) {
        let needed = self.needed(seq.len);
        for (layer, layout) in layouts.iter().enumerate() {
            let store = &self.layers[layer];
            let page = find(&store.window, layout.kv).page_bytes();
            for p in &seq.window_pages[needed.first_window_page..needed.pages] {
                f(layer, Place::Window(*p as usize * page), page);
            }
            if let Some(state) = &store.state {
                let page = find(&store.entries, layout.kv).page_bytes();
                for p in &seq.pages[..needed.pages] {
                    f(layer, Place::Entries(*p as usize * page), page);
                }
                let row = state.row_bytes();
                match &store.index_state {
                    Some(index) => {
                        for p in needed.c4.clone() {
                            let n = seq.c4_ring[p % C4_RING] as usize;
                            f(layer, Place::State(n * row), row);
                            f(layer, Place::IndexState(n * index.row_bytes()), index.row_bytes());
                        }
                    }
                    None => {
                        for p in needed.c128.clone() {
                            f(layer, Place::State(seq.c128_ring[p % C128_RING] as usize * row), row);
                        }
                    }
                }
            }
            if let Some(keys) = layout.keys {
                let page = find(&store.keys, keys).page_bytes();
                for p in &seq.pages[..needed.pages] {
                    f(layer, Place::Keys(*p as usize * page), page);
                }
            }
        }
    }

    fn memory(&self, layer: usize, layout: LayerLayout, place: &Place) -> (&Memory, usize) {
        let store = &self.layers[layer];
        match place {
            Place::Window(o) => (&find(&store.window, layout.kv).memory, *o),
            Place::Entries(o) => (&find(&store.entries, layout.kv).memory, *o),
            Place::Keys(o) => {
                (&find(&store.keys, layout.keys.expect("keys are listed only where they are")).memory, *o)
            }
            Place::State(o) => (&store.state.as_ref().expect("state is listed only where it is").memory, *o),
            Place::IndexState(o) => (&store.index_state.as_ref().expect("as state").memory, *o),
        }
    }

    /// Copies out what `seq`'s future needs.
    ///
    /// # Errors
    /// If it cannot be had from a device.
    pub fn save(&self, seq: &SeqKv, layouts: &[LayerLayout]) -> Result<Saved, KvError> {
        let (mut bytes, mut done) = (Vec::new(), Ok(()));
        self.for_each_item(seq, layouts, |layer, place, n| {
            let (memory, offset) = self.memory(layer, layouts[layer], &place);
            if done.is_ok() {
                // SAFETY: items lie inside their pool; no call of a plugin runs while the engine thread is here.
                done = unsafe { memory.read(offset, n, &mut bytes) };
            }
        });
        done?;
        Ok(Saved { len: seq.len, bytes, history: seq.history.clone() })
    }

    /// Opens a sequence with room for `tokens` positions that continues from a saved one.
    ///
    /// # Errors
    /// If pages or rows run out, the layouts are not those it was saved with, or a device fails.
    pub fn restore(
        &mut self,
        saved: &Saved,
        layouts: &[LayerLayout],
        tokens: usize,
    ) -> Result<SeqKv, KvError> {
        let mut seq = self.open_at(saved.len, tokens)?;
        seq.history.clone_from(&saved.history);
        let mut expected = 0;
        self.for_each_item(&seq, layouts, |_, _, n| expected += n);
        if expected != saved.bytes.len() {
            self.close(seq);
            return Err(KvError::Saved { expected, found: saved.bytes.len() });
        }
        let (mut at, mut done) = (0, Ok(()));
        self.for_each_item(&seq, layouts, |layer, place, n| {
            let (memory, offset) = self.memory(layer, layouts[layer], &place);
            if done.is_ok() {
                // SAFETY: items lie inside their pool, the sequence is new, and `&mut self` keeps everyone else away.
                done = unsafe { memory.write(offset, &saved.bytes[at..at + n]) };
            }
            at += n;
        });
        match done {
            Ok(()) => Ok(seq),
            Err(error) => {
                self.close(seq);
                Err(error.into())
            }
        }
    }
}
