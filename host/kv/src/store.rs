//! The pools of all layers, and the life of a sequence in them.

use crate::alloc::FreeList;
use crate::footprint::entries_per_page;
use crate::memory::{Memory, Source};
use crate::{C4_RING, C128_RING, KvError, PAGE_TOKENS, SeqKv};
use hotseam_abi::{PoolRef, TensorRef, component, dtype, layout};
use hotseam_model::{LayerClass, ModelConfig};

/// A layout of pool entries: its number in [`hotseam_abi::layout`] and the bytes of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Layout number.
    pub id: u32,
    /// Values of an entry.
    pub dim: u32,
    /// How many of them are roped.
    pub rope_dim: u32,
    /// Bytes of the data part of an entry.
    pub data_bytes: u32,
    /// Bytes of its scale part.
    pub scale_bytes: u32,
}

impl Layout {
    /// Bytes of a page: its entries, and the padding that the serving engines have ([`layout::KV_FP8_DS_MLA`]).
    pub fn page_bytes(&self, entries_per_page: usize) -> usize {
        let entries = entries_per_page * (self.data_bytes + self.scale_bytes) as usize;
        match self.id {
            layout::KV_FP8_DS_MLA => entries.next_multiple_of(self.data_bytes.max(1) as usize),
            _ => entries,
        }
    }
}

/// Layouts of one layer, as the variants of its cells declare them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerLayout {
    /// Window and compressed attention entries.
    pub kv: Layout,
    /// Index keys; csa layers only.
    pub keys: Option<Layout>,
}

/// Sizes of a store.
#[derive(Debug, Clone, Copy)]
pub struct KvConfig {
    /// Full pages.
    pub pages: usize,
    /// Sequences that may be open at once; bounds state rows and window pages.
    pub max_seqs: usize,
    /// Largest number of rows of one sequence in a step.
    pub max_rows: usize,
    /// Where the pools are.
    pub place: Place,
}

/// Where the memory of a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Host memory.
    Host,
    /// Host memory that other processes can map: for stores that transports send from.
    Shared,
    /// Memory of the CUDA device of this number, whose context is current on the thread that uses the store.
    Device(u32),
}

/// Entries of one component, layer and layout.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) layout: Layout,
    pub(crate) entries_per_page: usize,
    pub(crate) pages: usize,
    pub(crate) memory: Memory,
}

impl Pool {
    fn new(
        layout: Layout,
        entries_per_page: usize,
        pages: usize,
        source: &mut Source,
    ) -> Result<Self, KvError> {
        let bytes = layout.page_bytes(entries_per_page) * pages;
        Ok(Self { layout, entries_per_page, pages, memory: source.zeroed(bytes)? })
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.layout.page_bytes(self.entries_per_page)
    }

    fn tensor(&self) -> TensorRef {
        matrix(&self.memory, self.pages as i64, self.page_bytes() as i64, dtype::U8)
    }
}

/// State rows of one compressor.
#[derive(Debug)]
pub(crate) struct States {
    pub(crate) rows: usize,
    /// f32 values of a row: kv and score.
    pub(crate) width: usize,
    pub(crate) memory: Memory,
}

impl States {
    fn new(rows: usize, channels: usize, source: &mut Source) -> Result<Self, KvError> {
        let width = 2 * channels;
        Ok(Self { rows, width, memory: source.zeroed(rows * width * 4)? })
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.width * 4
    }

    fn tensor(&self) -> TensorRef {
        matrix(&self.memory, self.rows as i64, self.width as i64, dtype::F32)
    }
}

fn matrix(memory: &Memory, rows: i64, columns: i64, dtype: u32) -> TensorRef {
    let (device, device_id) = memory.device();
    TensorRef {
        data: memory.as_mut_ptr().cast(),
        shape: [rows, columns, 1, 1],
        strides: [columns, 1, 1, 1],
        dtype,
        ndim: 2,
        device,
        device_id,
    }
}

/// Pools of one layer. A component has one pool for each layout that was ever asked for.
#[derive(Debug)]
pub(crate) struct LayerStore {
    pub(crate) class: LayerClass,
    pub(crate) window: Vec<Pool>,
    pub(crate) entries: Vec<Pool>,
    pub(crate) keys: Vec<Pool>,
    pub(crate) state: Option<States>,
    pub(crate) index_state: Option<States>,
}

impl LayerStore {
    pub(crate) fn entries_component(&self) -> u32 {
        if self.class == LayerClass::Csa { component::C4 } else { component::C128 }
    }

    pub(crate) fn state_component(&self) -> u32 {
        if self.class == LayerClass::Csa { component::C4_STATE } else { component::C128_STATE }
    }
}

/// The KV memory of one side (a single server, or prefill or decode of a pair).
#[derive(Debug)]
pub struct KvStore {
    pub(crate) window: usize,
    pub(crate) layers: Vec<LayerStore>,
    pub(crate) pages: FreeList,
    pub(crate) window_pages: FreeList,
    pub(crate) c4_rows: FreeList,
    pub(crate) c128_rows: FreeList,
    /// Where the pools are taken from.
    pub(crate) source: Source,
    epoch: u64,
}

impl KvStore {
    /// An empty store for a model. Pools appear when [`KvStore::ensure`] first sees their layout.
    ///
    /// # Errors
    /// If a device has not the memory for the states.
    pub fn new(model: &ModelConfig, config: KvConfig) -> Result<Self, KvError> {
        let window_pages =
            config.max_seqs * ((config.max_rows + model.sliding_window).div_ceil(PAGE_TOKENS) + 2);
        let (c4_rows, c128_rows) = (config.max_seqs * 2 * C4_RING, config.max_seqs * 2 * C128_RING);
        let mut source = Source::new(config.place);
        let mut layers = Vec::with_capacity(model.num_hidden_layers);
        for layer in 0..model.num_hidden_layers {
            let class = model.class(layer);
            let mut states =
                |rows: usize, dim: usize| States::new(rows, model.coff(layer) * dim, &mut source);
            layers.push(LayerStore {
                class,
                window: Vec::new(),
                entries: Vec::new(),
                keys: Vec::new(),
                state: match class {
                    LayerClass::Window => None,
                    LayerClass::Csa => Some(states(c4_rows, model.head_dim)?),
                    LayerClass::Hca => Some(states(c128_rows, model.head_dim)?),
                },
                index_state: match class {
                    LayerClass::Csa => Some(states(c4_rows, model.index_head_dim)?),
                    LayerClass::Window | LayerClass::Hca => None,
                },
            });
        }
        Ok(Self {
            window: model.sliding_window,
            layers,
            pages: FreeList::new("pages", config.pages),
            window_pages: FreeList::new("window pages", window_pages),
            c4_rows: FreeList::new("ratio-4 state rows", c4_rows),
            c128_rows: FreeList::new("ratio-128 state rows", c128_rows),
            source,
            epoch: 0,
        })
    }

    /// Makes the pools of `layouts` (one a layer), where they are not there yet. Not for the step loop.
    ///
    /// # Errors
    /// If a device has not the memory for them; those that were made stay.
    pub fn ensure(&mut self, layouts: &[LayerLayout]) -> Result<(), KvError> {
        let (pages, window_pages) = (self.pages.capacity(), self.window_pages.capacity());
        let (source, epoch) = (&mut self.source, &mut self.epoch);
        let mut add = |pools: &mut Vec<Pool>, layout: Layout, per_page: usize, pages: usize| {
            if !pools.iter().any(|p| p.layout == layout) {
                pools.push(Pool::new(layout, per_page, pages, source)?);
                *epoch += 1;
            }
            Ok::<_, KvError>(())
        };
        for (layer, want) in self.layers.iter_mut().zip(layouts) {
            add(&mut layer.window, want.kv, PAGE_TOKENS, window_pages)?;
            if let Some(entries) = entries_per_page(layer.class) {
                add(&mut layer.entries, want.kv, entries, pages)?;
            }
            if let Some(keys) = want.keys {
                add(&mut layer.keys, keys, PAGE_TOKENS / 4, pages)?;
            }
        }
        Ok(())
    }

    /// Rises when pools were added: registered regions are then out of date.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Window pages that no sequence holds.
    pub fn free_window_pages(&self) -> usize {
        self.window_pages.available()
    }

    /// Window pages in all.
    pub fn total_window_pages(&self) -> usize {
        self.window_pages.capacity()
    }

    /// Full pages that no sequence holds.
    pub fn free_pages(&self) -> usize {
        self.pages.available()
    }

    /// Full pages in all.
    pub fn total_pages(&self) -> usize {
        self.pages.capacity()
    }

    /// Whether a sequence of at most `tokens` positions can be opened now.
    pub fn can_open(&self, tokens: usize) -> bool {
        self.pages.available() >= tokens.div_ceil(PAGE_TOKENS)
    }

    /// Opens a sequence and reserves its full pages for `tokens` positions.
    ///
    /// # Errors
    /// If there are not so many free pages.
    pub fn open(&mut self, tokens: usize) -> Result<SeqKv, KvError> {
        let n = tokens.div_ceil(PAGE_TOKENS);
        self.pages.require(n)?;
        let mut pages = Vec::with_capacity(n);
        for _ in 0..n {
            pages.push(self.pages.take()?);
        }
        Ok(SeqKv::new(pages))
    }

    /// Gives back all that a sequence holds.
    pub fn close(&mut self, mut seq: SeqKv) {
        self.abort(&mut seq);
        seq.pages.drain(..).for_each(|p| self.pages.give(p));
        seq.window_pages.drain(..).for_each(|p| self.window_pages.give(p));
        seq.c4_ring.iter().for_each(|r| self.c4_rows.give(*r));
        seq.c128_ring.iter().for_each(|r| self.c128_rows.give(*r));
    }

    /// Makes the positions of the last planned step permanent: `rows` more, their state rows in place of older ones.
    pub fn commit(&mut self, seq: &mut SeqKv, rows: usize) {
        seq.len += rows;
        for (position, row) in seq.c4_fresh.drain(..) {
            self.c4_rows.give(std::mem::replace(&mut seq.c4_ring[position % C4_RING], row));
        }
        for (position, row) in seq.c128_fresh.drain(..) {
            self.c128_rows.give(std::mem::replace(&mut seq.c128_ring[position % C128_RING], row));
        }
        let first_needed = (seq.len + 1).saturating_sub(self.window) / PAGE_TOKENS;
        for page in seq.window_pages.iter_mut().take(first_needed) {
            self.window_pages.give(std::mem::replace(page, -1));
        }
    }

    /// Forgets a planned step that failed: positions and state rows are as before it. Window pages that it mapped stay
    /// mapped; the next step uses them.
    pub fn abort(&mut self, seq: &mut SeqKv) {
        seq.c4_fresh.drain(..).for_each(|(_, row)| self.c4_rows.give(row));
        seq.c128_fresh.drain(..).for_each(|(_, row)| self.c128_rows.give(row));
    }

    /// Window pool of a layer. `table` is [`crate::Plan::window_table`], where the calls read it, or null for calls that write by
    /// slots.
    pub fn window_pool(
        &self,
        layer: usize,
        layout: Layout,
        table: *const i32,
        table_width: usize,
    ) -> PoolRef {
        pool_ref(&self.layers[layer].window, layout, table, table_width)
    }

    /// Compressed entries of a layer. `table` is [`crate::Plan::table`], as for [`KvStore::window_pool`].
    pub fn entry_pool(&self, layer: usize, layout: Layout, table: *const i32, table_width: usize) -> PoolRef {
        pool_ref(&self.layers[layer].entries, layout, table, table_width)
    }

    /// Index keys of a layer. `table` is [`crate::Plan::table`], as for [`KvStore::window_pool`].
    pub fn key_pool(&self, layer: usize, layout: Layout, table: *const i32, table_width: usize) -> PoolRef {
        pool_ref(&self.layers[layer].keys, layout, table, table_width)
    }

    /// State rows of a layer's compressor; absent in window layers.
    pub fn state(&self, layer: usize) -> TensorRef {
        self.layers[layer].state.as_ref().map_or(TensorRef::NONE, States::tensor)
    }

    /// State rows of a layer's index compressor; absent outside csa layers.
    pub fn index_state(&self, layer: usize) -> TensorRef {
        self.layers[layer].index_state.as_ref().map_or(TensorRef::NONE, States::tensor)
    }
}

/// The pool of a layout.
pub(crate) fn find(pools: &[Pool], layout: Layout) -> &Pool {
    pools.iter().find(|p| p.layout == layout).expect("ensure() made the pools of every bound assignment")
}

fn pool_ref(pools: &[Pool], layout: Layout, table: *const i32, table_width: usize) -> PoolRef {
    let pool = find(pools, layout);
    PoolRef {
        bytes: pool.tensor(),
        layout: layout.id,
        entries_per_page: pool.entries_per_page as u32,
        dim: layout.dim,
        rope_dim: layout.rope_dim,
        data_bytes: layout.data_bytes,
        scale_bytes: layout.scale_bytes,
        table,
        table_width: table_width as u32,
    }
}
