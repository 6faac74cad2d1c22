//! How much memory KV takes: the arithmetic that [`crate::KvStore`] allocates by.

use crate::store::LayerLayout;
use crate::{C4_RING, C128_RING, PAGE_TOKENS};
use hotseam_model::{LayerClass, ModelConfig};

/// Bytes over all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Of a full page: compressed entries and index keys of 256 positions.
    pub page: usize,
    /// Of a window page: window entries of 256 positions. A sequence holds as many as its window and a step need.
    pub window_page: usize,
    /// Of the compressor states that the store keeps for a sequence.
    pub states: usize,
}

impl Footprint {
    /// That of a model whose layers have these layouts.
    pub fn of(model: &ModelConfig, layouts: &[LayerLayout]) -> Self {
        let mut all = Self { page: 0, window_page: 0, states: 0 };
        for (layer, layout) in layouts.iter().enumerate().take(model.num_hidden_layers) {
            let class = model.class(layer);
            all.window_page += layout.kv.page_bytes(PAGE_TOKENS);
            all.page += entries_per_page(class).map_or(0, |n| layout.kv.page_bytes(n));
            all.page += layout.keys.map_or(0, |keys| keys.page_bytes(PAGE_TOKENS / 4));
            // Rows of kv and score in f32, twice: those of the last step and those that the running one writes.
            let row = |dim: usize| 2 * model.coff(layer) * dim * 4;
            all.states += match class {
                LayerClass::Window => 0,
                LayerClass::Csa => 2 * C4_RING * (row(model.head_dim) + row(model.index_head_dim)),
                LayerClass::Hca => 2 * C128_RING * row(model.head_dim),
            };
        }
        all
    }

    /// Bytes that a position of context adds, in a full page.
    pub fn per_position(&self) -> f64 {
        self.page as f64 / PAGE_TOKENS as f64
    }
}

/// Compressed entries of a full page of a class of layers.
pub(crate) fn entries_per_page(class: LayerClass) -> Option<usize> {
    match class {
        LayerClass::Window => None,
        LayerClass::Csa => Some(PAGE_TOKENS / 4),
        LayerClass::Hca => Some(PAGE_TOKENS / 128),
    }
}
