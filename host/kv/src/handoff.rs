//! Moving a sequence from one store to another: what a prefill side sends to a decode side.

use crate::alloc::FreeList;
use crate::memory::Memory;
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

/// Items of each component, by its number in [`hotseam_abi::component`].
pub type Items = [Vec<i32>; component::NAMES.len()];

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
        let (from, to) = (self.items(src), self.items(dst));
        let of = |layer: usize, component: u32| Transfer {
            component,
            layer: layer as u32,
            src: from[component as usize].clone(),
            dst: to[component as usize].clone(),
        };
        let layers = 0..layouts.len().min(self.layers.len());
        let all = layers.flat_map(|layer| self.components(layer).map(move |component| (layer, component)));
        all.map(|(layer, component)| of(layer, component)).filter(|t| !t.src.is_empty()).collect()
    }

    /// Opens a sequence whose `len` positions come from elsewhere, with room for `tokens`.
    ///
    /// # Errors
    /// If this store has not enough pages or rows; nothing is then held.
    pub fn expect(&mut self, len: usize, tokens: usize) -> Result<SeqKv, KvError> {
        self.open_at(len, tokens)
    }

    /// What the future of a sequence needs, by component: pages in order of position, or state rows in order of position.
    /// Every layer that has a component has it under these numbers.
    pub fn items(&self, seq: &SeqKv) -> Items {
        let needed = self.needed(seq.len);
        let pages = seq.pages[..needed.pages].to_vec();
        let c4: Vec<i32> = needed.c4.map(|p| seq.c4_ring[p % C4_RING]).collect();
        let mut items = Items::default();
        items[component::SWA as usize] = seq.window_pages[needed.first_window_page..needed.pages].to_vec();
        items[component::C4 as usize].clone_from(&pages);
        items[component::C128 as usize].clone_from(&pages);
        items[component::INDEX_KEYS as usize] = pages;
        items[component::C4_STATE as usize].clone_from(&c4);
        items[component::INDEX_STATE as usize] = c4;
        items[component::C128_STATE as usize] = needed.c128.map(|p| seq.c128_ring[p % C128_RING]).collect();
        items
    }

    /// The components that a layer has.
    pub fn components(&self, layer: usize) -> impl Iterator<Item = u32> + use<> {
        let store = &self.layers[layer];
        let (entries, state) = (store.entries_component(), store.state_component());
        let compressed = store.state.is_some().then_some([entries, state]);
        let indexed = store.index_state.is_some().then_some([component::INDEX_KEYS, component::INDEX_STATE]);
        [component::SWA]
            .into_iter()
            .chain(compressed.into_iter().flatten())
            .chain(indexed.into_iter().flatten())
    }

    /// Regions of every component and layer from this store to `to`, for the pools of `layouts`.
    pub fn regions(&self, to: &KvStore, layouts: &[LayerLayout]) -> Vec<Region> {
        let incoming = to.incoming(layouts);
        let mut regions = self.outgoing(layouts);
        for (region, other) in regions.iter_mut().zip(incoming) {
            (region.dst, region.dst_items) = (other.dst, other.dst_items);
        }
        regions
    }

    /// The sending sides alone.
    pub fn outgoing(&self, layouts: &[LayerLayout]) -> Vec<Region> {
        let fd = self.source.fd().unwrap_or(-1);
        let side = |component, layer, memory: &Memory, item_bytes: usize, items: usize| Region {
            component,
            layer: layer as u32,
            src: memory.as_mut_ptr(),
            dst: std::ptr::null_mut(),
            item_bytes: item_bytes as u64,
            src_items: items as u64,
            dst_items: 0,
            src_offset: memory.offset(),
            src_fd: fd,
        };
        self.sides(layouts, side)
    }

    /// The receiving sides alone.
    pub fn incoming(&self, layouts: &[LayerLayout]) -> Vec<Region> {
        let side = |component, layer, memory: &Memory, item_bytes: usize, items: usize| Region {
            component,
            layer: layer as u32,
            src: std::ptr::null(),
            dst: memory.as_mut_ptr(),
            item_bytes: item_bytes as u64,
            src_items: 0,
            dst_items: items as u64,
            src_offset: 0,
            src_fd: -1,
        };
        self.sides(layouts, side)
    }

    /// Calls `side` with component, layer, memory, bytes of an item and number of items of every region, in a fixed order.
    fn sides(
        &self,
        layouts: &[LayerLayout],
        side: impl Fn(u32, usize, &Memory, usize, usize) -> Region,
    ) -> Vec<Region> {
        let mut regions = Vec::new();
        for (layer, layout) in layouts.iter().enumerate() {
            let store = &self.layers[layer];
            for component in self.components(layer) {
                let pool = |pool: &Pool| side(component, layer, &pool.memory, pool.page_bytes(), pool.pages);
                let state = |states: &Option<States>| {
                    states.as_ref().map(|s| side(component, layer, &s.memory, s.row_bytes(), s.rows))
                };
                regions.extend(match component {
                    component::SWA => Some(pool(find(&store.window, layout.kv))),
                    component::C4 | component::C128 => Some(pool(find(&store.entries, layout.kv))),
                    component::INDEX_KEYS => layout.keys.map(|keys| pool(find(&store.keys, keys))),
                    component::INDEX_STATE => state(&store.index_state),
                    _ => state(&store.state),
                });
            }
        }
        regions
    }

    /// Free items of each component that were in use since they were last marked clean, or that were not.
    pub fn free_items(&self, used: bool) -> Items {
        let (pages, c4) = (self.pages.free(used), self.c4_rows.free(used));
        let mut items = Items::default();
        items[component::SWA as usize] = self.window_pages.free(used);
        items[component::C4 as usize].clone_from(&pages);
        items[component::C128 as usize].clone_from(&pages);
        items[component::INDEX_KEYS as usize] = pages;
        items[component::C4_STATE as usize].clone_from(&c4);
        items[component::INDEX_STATE as usize] = c4;
        items[component::C128_STATE as usize] = self.c128_rows.free(used);
        items
    }

    /// Notes that no free item holds anything that is of use.
    pub fn mark_clean(&mut self) {
        let lists = [&mut self.pages, &mut self.window_pages, &mut self.c4_rows, &mut self.c128_rows];
        lists.into_iter().for_each(FreeList::mark_clean);
    }
}
