//! The attention block: projections, store, compressors, indexer, core, output projection.

use super::lists::{CompressLists, Lists};
use super::ops::{Block, Done, Product};
use super::{Forward, Step, refs};
use hotseam_abi::{CompressArgs, CoreArgs, PoolRef, SelectArgs, StepCtx, StoreArgs, TensorRef, capability};
use hotseam_model::{Compressor, LayerClass};
use hotseam_slots::LayerCells;
use std::ptr::null;

/// kv and gate of a compressor.
fn pair<'a>(x: &'a Block, w: &'a Compressor, [kv, gate]: &'a [Block; 2]) -> [Product<'a>; 2] {
    [Product { x, w: &w.wkv, y: kv }, Product { x, w: &w.wgate, y: gate }]
}

impl Forward {
    /// `x` to `y`, which with several ranks is to be summed over them.
    pub(super) fn attention(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        lists: &Lists,
        step: &Step<'_>,
        layer: usize,
    ) -> Done {
        let class = self.model.config.class(layer);
        self.project(lists.rows(), layer)?;
        self.queries(lists, layer)?;
        self.store(ctx, cells, lists, step, layer)?;
        let ratio = match class {
            LayerClass::Window => 0,
            LayerClass::Csa => 4,
            LayerClass::Hca => 128,
        };
        if ratio != 0 {
            self.compress(ctx, cells, lists, step, layer, ratio)?;
        }
        if class == LayerClass::Csa {
            self.compress_keys(ctx, cells, lists, step, layer)?;
            self.select(ctx, cells, lists, step, layer)?;
        }
        self.core(ctx, cells, lists, step, layer, ratio)?;
        self.output(lists.rows(), layer)
    }

    /// All products of the block's input: low-rank query, window kv, kv and gate of the compressors.
    fn project(&self, n: usize, layer: usize) -> Done {
        let (w, ws) = (&self.model.weights.layers[layer], &self.ws);
        let x = &ws.x;
        let own = [Product { x, w: &w.wq_a, y: &ws.q_down }, Product { x, w: &w.wkv, y: &ws.kv }];
        let entries = w.compressor.as_ref().map(|compressor| pair(x, compressor, &ws.entries));
        let keys = w.indexer.as_ref().map(|indexer| pair(x, &indexer.compressor, &ws.keys));
        let compressors = entries.into_iter().chain(keys).flatten();
        self.ops.products(n, &mut own.into_iter().chain(compressors))
    }

    /// Low-rank query, per-head norm (no weight) and rope.
    fn queries(&self, lists: &Lists, layer: usize) -> Done {
        let c = &self.model.config;
        let (w, ws, ops, n) = (&self.model.weights.layers[layer], &self.ws, &self.ops, lists.rows());
        ops.rms_norm(n, &ws.q_down, &w.q_norm, c.rms_norm_eps, &ws.q_lora)?;
        ops.products(n, &mut [Product { x: &ws.q_lora, w: &w.wq_b, y: &ws.q }].into_iter())?;
        let rope = self.model.rope(layer);
        ops.queries(lists, &ws.q, c.num_attention_heads, c.head_dim, rope, c.rms_norm_eps)
    }

    fn store(&self, ctx: &StepCtx, cells: &LayerCells, lists: &Lists, step: &Step<'_>, layer: usize) -> Done {
        let c = &self.model.config;
        let w = &self.model.weights.layers[layer];
        let n = lists.rows();
        let args = StoreArgs {
            size: size_of::<StoreArgs>() as u32,
            norm_eps: c.rms_norm_eps,
            batch: &raw const lists.batch,
            kv: self.ws.kv.f32([n, c.head_dim]),
            norm_weight: refs::tensor(&w.kv_norm),
            rope: refs::rope(self.model.rope(layer)),
            out_slots: lists.window_slots,
            pool: step.store.window_pool(layer, step.layouts[layer].kv, null(), 0),
        };
        Ok(step.probe.call(&cells.store, ctx, &args, lists.live)?)
    }

    /// Describes the call of a compressor, whose kv and gate [`Self::project`] made.
    fn compressor(
        &self,
        lists: &Lists,
        layer: usize,
        ratio: usize,
        weights: &Compressor,
        [kv, gate]: &[Block; 2],
        pool: PoolRef,
        state: TensorRef,
    ) -> CompressArgs {
        let (n, width) = (lists.rows(), weights.wkv.n);
        let of: &CompressLists = if ratio == 4 { &lists.c4 } else { &lists.c128 };
        CompressArgs {
            size: size_of::<CompressArgs>() as u32,
            ratio: ratio as u32,
            overlap: u32::from(ratio == 4),
            n_entries: of.n_entries as u32,
            norm_eps: self.model.config.rms_norm_eps,
            batch: &raw const lists.batch,
            kv: kv.f32([n, width]),
            gate: gate.f32([n, width]),
            ape: refs::tensor(&weights.ape),
            norm_weight: refs::tensor(&weights.norm),
            rope: refs::rope(self.model.rope(layer)),
            sources: of.sources,
            entry_positions: of.entry_positions,
            out_slots: of.out_slots,
            state_dst: of.state_dst,
            state,
            pool,
        }
    }

    fn compress(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        lists: &Lists,
        step: &Step<'_>,
        layer: usize,
        ratio: usize,
    ) -> Done {
        let (Some(cell), Some(weights)) = (&cells.compress, &self.model.weights.layers[layer].compressor)
        else {
            unreachable!("the snapshot and the checkpoint fill csa and hca layers");
        };
        let pool = step.store.entry_pool(layer, step.layouts[layer].kv, null(), 0);
        let state = step.store.state(layer);
        let args = self.compressor(lists, layer, ratio, weights, &self.ws.entries, pool, state);
        Ok(step.probe.call(cell, ctx, &args, lists.live)?)
    }

    fn compress_keys(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        lists: &Lists,
        step: &Step<'_>,
        layer: usize,
    ) -> Done {
        let (Some(cell), Some(indexer), Some(keys)) =
            (&cells.index_compress, &self.model.weights.layers[layer].indexer, step.layouts[layer].keys)
        else {
            unreachable!("the snapshot and the checkpoint fill csa layers");
        };
        let pool = step.store.key_pool(layer, keys, null(), 0);
        let state = step.store.index_state(layer);
        let args = self.compressor(lists, layer, 4, &indexer.compressor, &self.ws.keys, pool, state);
        Ok(step.probe.call(cell, ctx, &args, lists.live)?)
    }

    fn select(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        lists: &Lists,
        step: &Step<'_>,
        layer: usize,
    ) -> Done {
        let c = &self.model.config;
        let (Some(cell), Some(indexer), Some(keys)) =
            (&cells.select, &self.model.weights.layers[layer].indexer, step.layouts[layer].keys)
        else {
            unreachable!("the snapshot and the checkpoint fill csa layers");
        };
        let n = lists.rows();
        let args = SelectArgs {
            size: size_of::<SelectArgs>() as u32,
            ratio: 4,
            heads: c.index_n_heads as u32,
            topk: self.index_topk as u32,
            scores_width: 0,
            batch: &raw const lists.batch,
            q_lora: self.ws.q_lora.f32([n, c.q_lora_rank]),
            x: self.ws.x.f32([n, c.hidden_size]),
            wq_b: refs::matrix(&indexer.wq_b),
            weights_proj: refs::tensor(&indexer.weights_proj),
            rope: refs::rope(self.model.rope(layer)),
            keys: step.store.key_pool(layer, keys, lists.table, lists.table_width),
            ids: self.ws.ids.ptr(),
            scores: std::ptr::null_mut(),
        };
        Ok(step.probe.call(cell, ctx, &args, lists.live)?)
    }

    fn core(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        lists: &Lists,
        step: &Step<'_>,
        layer: usize,
        ratio: usize,
    ) -> Done {
        let c = &self.model.config;
        let (n, heads, d) = (lists.rows(), c.num_attention_heads, c.head_dim);
        let kv = step.layouts[layer].kv;
        let window = step.store.window_pool(layer, kv, lists.window_table, lists.table_width);
        let args = CoreArgs {
            size: size_of::<CoreArgs>() as u32,
            window: c.sliding_window as u32,
            ratio: ratio as u32,
            ids_width: if ratio == 4 { self.index_topk as u32 } else { 0 },
            scale: (d as f32).powf(-0.5),
            batch: &raw const lists.batch,
            q: self.ws.q.f32([n, heads, d]),
            sinks: refs::tensor(&self.model.weights.layers[layer].attn_sink),
            swa: window,
            entries: match ratio {
                0 => window,
                _ => step.store.entry_pool(layer, kv, lists.table, lists.table_width),
            },
            ids: if ratio == 4 { self.ws.ids.ptr() } else { null() },
            rope: refs::rope(self.model.rope(layer)),
            out: self.ws.attn.f32([n, heads, d]),
        };
        step.probe.call(&cells.core, ctx, &args, lists.live)?;
        match cells.core.has(capability::FUSES_INVERSE_ROPE) {
            true => Ok(()),
            false => self.ops.inverse_rope(lists, &self.ws.attn, heads, d, self.model.rope(layer)),
        }
    }

    /// Grouped low-rank output projection.
    fn output(&self, n: usize, layer: usize) -> Done {
        let groups = self.model.config.o_groups;
        let (w, ws, ops) = (&self.model.weights.layers[layer], &self.ws, &self.ops);
        ops.grouped(n, groups, &ws.attn, &w.wo_a, &ws.o_lora)?;
        ops.products(n, &mut [Product { x: &ws.o_lora, w: &w.wo_b, y: &ws.y }].into_iter())
    }
}
