//! The fingerprint of an assignment's layouts: all that bytes of one worker need to mean the same to another.

use hotseam_abi::{component, layout};
use hotseam_kv::{C4_RING, C128_RING, LayerLayout, Layout, PAGE_TOKENS};
use hotseam_model::{LayerClass, ModelConfig};
use hotseam_pd::Fingerprint;
use hotseam_slots::{Generation, Phase, Snapshot};
use std::sync::Arc;

/// Assignments whose fingerprint is remembered.
const KNOWN: usize = 32;

/// Fingerprints by the digest of the table that they are of.
#[derive(Debug, Default)]
pub(crate) struct Fingerprints(Vec<([u8; 32], Arc<Fingerprint>)>);

impl Fingerprints {
    /// That of a table, whose layers have these layouts.
    pub(crate) fn of(
        &mut self,
        model: &ModelConfig,
        index_topk: Option<usize>,
        table: &Snapshot,
        layouts: &[LayerLayout],
    ) -> Arc<Fingerprint> {
        let digest = *table.digest().bytes();
        if let Some((_, known)) = self.0.iter().find(|(known, _)| *known == digest) {
            return Arc::clone(known);
        }
        let print = Arc::new(describe(model, index_topk, table, layouts));
        if self.0.len() == KNOWN {
            self.0.remove(0);
        }
        self.0.push((digest, Arc::clone(&print)));
        print
    }
}

/// That of a table.
pub(crate) fn of_table(model: &ModelConfig, index_topk: Option<usize>, table: &Snapshot) -> Fingerprint {
    let layouts: Vec<LayerLayout> = crate::scheduler::layouts(model, table).collect();
    describe(model, index_topk, table, &layouts)
}

fn describe(
    model: &ModelConfig,
    index_topk: Option<usize>,
    table: &Snapshot,
    layouts: &[LayerLayout],
) -> Fingerprint {
    let mut print = Fingerprint::default();
    print.push("layers", model.num_hidden_layers);
    print.push("hidden_size", model.hidden_size);
    print.push("vocab_size", model.vocab_size);
    print.push("sliding_window", model.sliding_window);
    print.push("index_topk", index_topk.unwrap_or(model.index_topk));
    print.push("page_tokens", PAGE_TOKENS);
    print.push("c4_ring", C4_RING);
    print.push("c128_ring", C128_RING);
    for (layer, of) in layouts.iter().enumerate() {
        let class = model.class(layer);
        let mut push = |component: u32, value: String| {
            print.push(format!("layer {layer} {}", component::NAMES[component as usize]), value);
        };
        push(component::SWA, pages(&of.kv, PAGE_TOKENS));
        let state = |dim: usize| format!("f32, {} bytes a row", 8 * model.coff(layer) * dim);
        match class {
            LayerClass::Window => {}
            LayerClass::Csa => {
                push(component::C4, pages(&of.kv, PAGE_TOKENS / 4));
                push(component::C4_STATE, state(model.head_dim));
                push(component::INDEX_STATE, state(model.index_head_dim));
            }
            LayerClass::Hca => {
                push(component::C128, pages(&of.kv, PAGE_TOKENS / 128));
                push(component::C128_STATE, state(model.head_dim));
            }
        }
        if let Some(keys) = &of.keys {
            push(component::INDEX_KEYS, pages(keys, PAGE_TOKENS / 4));
        }
        print.push(format!("layer {layer} compress_ratio"), model.ratio(layer));
        let cells = table.layer(Phase::Prefill, layer);
        let mut writer = |op: &str, generation: &Generation| {
            let value = format!("{} {:.16}", generation.spec, generation.hash);
            print.push(format!("layer {layer} {op}@prefill"), value);
        };
        writer("attention.store", &cells.store.generation);
        if let Some(cell) = &cells.compress {
            writer("attention.compress", &cell.generation);
        }
        if let Some(cell) = &cells.index_compress {
            writer("indexer.compress", &cell.generation);
        }
    }
    print
}

fn pages(of: &Layout, entries: usize) -> String {
    let name = layout::NAMES.iter().find(|(id, _)| *id == of.id).map_or("unnamed", |(_, name)| name);
    format!(
        "{name} (layout {}), {} values, {} roped, {} bytes an entry, {} bytes a page of {entries}",
        of.id,
        of.dim,
        of.rope_dim,
        of.data_bytes + of.scale_bytes,
        of.page_bytes(entries)
    )
}
