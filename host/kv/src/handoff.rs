//! Moving a sequence from one store to another: what a prefill side sends to a decode side.

use crate::seq::{c4_kept, c128_kept};
use crate::store::{LayerLayout, Pool, States, find};
use crate::{C4_RING, C128_RING, KvError, KvStore, PAGE_TOKENS, SeqKv};
use hotseam_abi::{Region, component};

/// Items of one component and layer: source item i goes to destination item i. Items are pages or state rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// One of [`hotseam_abi::component`].
    pub component: u32,
    /// Layer number.
    pub layer: u32,
    /// Items of the sending store.
    pub src: Vec<i32>,
    /// Items of the receiving store.
    pub dst: Vec<i32>,
}

/// Items that a sequence's future needs, by kind.
pub(crate) struct Needed {
    /// Index of the first window page that is still read.
    pub(crate) first_window_page: usize,
    /// Full pages that hold entries.
    pub(crate) pages: usize,
    /// Positions with ratio-4 state.
    pub(crate) c4: std::ops::Range<usize>,
    /// Positions with ratio-128 state.
    pub(crate) c128: std::ops::Range<usize>,
}

impl KvStore {
    pub(crate) fn needed(&self, len: usize) -> Needed {
        Needed {
            first_window_page: (len + 1).saturating_sub(self.window) / PAGE_TOKENS,
            pages: len.div_ceil(PAGE_TOKENS),
            c4: c4_kept(len),
            c128: c128_kept(len),
        }
    }

    /// Opens a sequence that holds `len` positions already, whose bytes are still to be written, with room for `tokens`.
    pub(crate) fn open_at(&mut self, len: usize, tokens: usize) -> Result<SeqKv, KvError> {
        let mut seq = self.open(tokens)?;
        seq.len = len;
        let needed = self.needed(len);
        let mut fill = || -> Result<(), KvError> {
            for page in needed.first_window_page..len.div_ceil(PAGE_TOKENS) {
                seq.window_pages[page] = self.window_pages.take()?;
            }
            for p in needed.c4.clone() {
                seq.c4_ring[p % C4_RING] = self.c4_rows.take()?;
            }
            for p in needed.c128.clone() {
                seq.c128_ring[p % C128_RING] = self.c128_rows.take()?;
            }
            Ok(())
        };
        match fill() {
            Ok(()) => Ok(seq),
            Err(error) => {
                self.close(seq);
                Err(error)
            }
        }
    }

    /// Opens a copy of `src`'s sequence here, with room for `tokens` positions, and lists what must be moved for it.
    /// Both stores hold the pools of `layouts`.
    ///
    /// # Errors
    /// If this store has not enough pages or rows; nothing is then held.
    pub fn receive(
        &mut self,
        src: &SeqKv,
        layouts: &[LayerLayout],
        tokens: usize,
    ) -> Result<(SeqKv, Vec<Transfer>), KvError> {
        let mut dst = self.open_at(src.len, tokens)?;
        dst.history.clone_from(&src.history);
        let transfers = self.transfers(src, &dst, layouts);
        Ok((dst, transfers))
    }

    /// All that the future of `seq` needs, as transfers onto itself.
    pub fn held(&self, seq: &SeqKv, layouts: &[LayerLayout]) -> Vec<Transfer> {
        self.transfers(seq, seq, layouts)
    }

    /// What a copy `dst` of `src` needs. Both are of stores that are built alike.
    fn transfers(&self, src: &SeqKv, dst: &SeqKv, layouts: &[LayerLayout]) -> Vec<Transfer> {
        let needed = self.needed(src.len);
        let pages = |seq: &SeqKv| seq.pages[..needed.pages].to_vec();
        let windows = |seq: &SeqKv| seq.window_pages[needed.first_window_page..needed.pages].to_vec();
        let c4 = |seq: &SeqKv| needed.c4.clone().map(|p| seq.c4_ring[p % C4_RING]).collect::<Vec<_>>();
        let c128 =
            |seq: &SeqKv| needed.c128.clone().map(|p| seq.c128_ring[p % C128_RING]).collect::<Vec<_>>();
        let mut transfers = Vec::new();
        for (layer, (store, _)) in self.layers.iter().zip(layouts).enumerate() {
            let mut push = |component: u32, from: Vec<i32>, to: Vec<i32>| {
                if !from.is_empty() {
                    transfers.push(Transfer { component, layer: layer as u32, src: from, dst: to });
                }
            };
            push(component::SWA, windows(src), windows(dst));
            if store.state.is_some() {
                push(store.entries_component(), pages(src), pages(dst));
                match store.index_state.is_some() {
                    true => push(store.state_component(), c4(src), c4(dst)),
                    false => push(store.state_component(), c128(src), c128(dst)),
                }
            }
            if store.index_state.is_some() {
                push(component::INDEX_KEYS, pages(src), pages(dst));
                push(component::INDEX_STATE, c4(src), c4(dst));
            }
        }
        transfers
    }

    /// Regions of every component and layer from this store to `to`, for the pools of `layouts`.
    pub fn regions(&self, to: &KvStore, layouts: &[LayerLayout]) -> Vec<Region> {
        let mut regions = Vec::new();
        for (layer, layout) in layouts.iter().enumerate() {
            let (src, dst) = (&self.layers[layer], &to.layers[layer]);
            let mut pool = |component: u32, from: &Pool, into: &Pool| {
                regions.push(Region {
                    component,
                    layer: layer as u32,
                    src: from.memory.as_mut_ptr(),
                    dst: into.memory.as_mut_ptr(),
                    item_bytes: from.page_bytes() as u64,
                    src_items: from.pages as u64,
                    dst_items: into.pages as u64,
                });
            };
            pool(component::SWA, find(&src.window, layout.kv), find(&dst.window, layout.kv));
            if src.state.is_some() {
                pool(src.entries_component(), find(&src.entries, layout.kv), find(&dst.entries, layout.kv));
            }
            if let Some(keys) = layout.keys {
                pool(component::INDEX_KEYS, find(&src.keys, keys), find(&dst.keys, keys));
            }
            let mut state = |component: u32, from: &Option<States>, into: &Option<States>| {
                if let (Some(from), Some(into)) = (from, into) {
                    regions.push(Region {
                        component,
                        layer: layer as u32,
                        src: from.memory.as_mut_ptr(),
                        dst: into.memory.as_mut_ptr(),
                        item_bytes: from.row_bytes() as u64,
                        src_items: from.rows as u64,
                        dst_items: into.rows as u64,
                    });
                }
            };
            state(src.state_component(), &src.state, &dst.state);
            state(component::INDEX_STATE, &src.index_state, &dst.index_state);
        }
        regions
    }
}
