//! The attention block: projections, store, compressors, indexer, core, output projection.

use super::rows::for_rows;
use super::workspace::Workspace;
use super::{Forward, Step, norm_rows, refs};
use hotseam_abi::{
    Batch, CompressArgs, CoreArgs, PoolRef, SelectArgs, StepCtx, StoreArgs, TensorRef, capability,
};
use hotseam_kv::{CompressPlan, Plan};
use hotseam_model::{Compressor, LayerClass, Matrix};
use hotseam_ops::{Linear, Parallel, dot, linear, linear_grouped, linears, rope};
use hotseam_slots::{CallError, LayerCells};

/// `[rows, w.n]` at the start of `y`.
fn product<'a>(x: &'a [f32], rows: usize, w: &'a Matrix, y: &'a mut [f32]) -> Linear<'a> {
    Linear::dense(x, w.mat(), &mut y[..rows * w.n])
}

/// kv and gate of a compressor.
fn pair<'a>(
    x: &'a [f32],
    rows: usize,
    w: &'a Compressor,
    [kv, gate]: &'a mut [Vec<f32>; 2],
) -> [Linear<'a>; 2] {
    [product(x, rows, &w.wkv, kv), product(x, rows, &w.wgate, gate)]
}

/// A pool that a call writes by explicit slots.
fn write_only(pool: PoolRef) -> PoolRef {
    PoolRef { table: std::ptr::null(), table_width: 0, ..pool }
}

impl Forward {
    /// `x` to `y`.
    pub(super) fn attention(
        &mut self,
        par: &dyn Parallel,
        ctx: &StepCtx,
        cells: &LayerCells,
        batch: &Batch,
        step: &Step<'_>,
        layer: usize,
    ) -> Result<(), CallError> {
        let class = self.model.config.class(layer);
        self.project(par, batch.n_rows as usize, layer);
        self.queries(par, step.plan, layer);
        self.store(ctx, cells, batch, step, layer)?;
        let ratio = match class {
            LayerClass::Window => 0,
            LayerClass::Csa => 4,
            LayerClass::Hca => 128,
        };
        if ratio != 0 {
            self.compress(ctx, cells, batch, step, layer, ratio)?;
        }
        if class == LayerClass::Csa {
            self.compress_keys(ctx, cells, batch, step, layer)?;
            self.select(ctx, cells, batch, step, layer)?;
        }
        self.core(par, ctx, cells, batch, step, layer, ratio)?;
        self.output(par, batch.n_rows as usize, layer);
        Ok(())
    }

    /// All products of the block's input: low-rank query, window kv, kv and gate of the compressors.
    fn project(&mut self, par: &dyn Parallel, n: usize, layer: usize) {
        let w = &self.model.weights.layers[layer];
        let Workspace { x, q_down, kv, entries, keys, .. } = &mut self.ws;
        let x = &x[..n * self.model.config.hidden_size];
        let own = [product(x, n, &w.wq_a, q_down), product(x, n, &w.wkv, kv)];
        let entries = w.compressor.as_ref().map(|compressor| pair(x, n, compressor, entries));
        let keys = w.indexer.as_ref().map(|indexer| pair(x, n, &indexer.compressor, keys));
        let compressors = entries.into_iter().chain(keys).flatten();
        linears(par, n, own.into_iter().chain(compressors));
    }

    /// Low-rank query, per-head norm (no weight) and rope.
    fn queries(&mut self, par: &dyn Parallel, plan: &Plan, layer: usize) {
        let c = &self.model.config;
        let w = &self.model.weights.layers[layer];
        let (n, width) = (plan.rows(), c.num_attention_heads * c.head_dim);
        let ws = &mut self.ws;
        let rank = c.q_lora_rank;
        norm_rows(par, &ws.q_down[..n * rank], w.q_norm.f32(), &mut ws.q_lora[..n * rank], c);
        linear(par, &ws.q_lora[..n * rank], n, w.wq_b.mat(), &mut ws.q[..n * width]);
        let tables = self.model.rope(layer);
        for_rows(par, &mut ws.q[..n * width], width, |row, heads| {
            let (cos, sin) = tables.row(plan.positions[row] as usize);
            for head in heads.chunks_exact_mut(c.head_dim) {
                let scale = 1.0 / (dot(head, head) / c.head_dim as f32 + c.rms_norm_eps).sqrt();
                head.iter_mut().for_each(|v| *v *= scale);
                rope(head, cos, sin, false);
            }
        });
    }

    fn store(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        batch: &Batch,
        step: &Step<'_>,
        layer: usize,
    ) -> Result<(), CallError> {
        let c = &self.model.config;
        let w = &self.model.weights.layers[layer];
        let (n, d) = (step.plan.rows(), c.head_dim);
        let args = StoreArgs {
            size: size_of::<StoreArgs>() as u32,
            norm_eps: c.rms_norm_eps,
            batch,
            kv: refs::f32s(&self.ws.kv[..n * d], [n, d]),
            norm_weight: refs::tensor(&w.kv_norm),
            rope: refs::rope(self.model.rope(layer)),
            out_slots: step.plan.window_slots.as_ptr(),
            pool: write_only(step.store.window_pool(layer, step.layouts[layer].kv, &[], 0)),
        };
        step.probe.call(&cells.store, ctx, &args, n)
    }

    /// Describes the call of a compressor, whose kv and gate [`Self::project`] made.
    fn compressor(
        &self,
        batch: &Batch,
        layer: usize,
        ratio: usize,
        weights: &Compressor,
        lists: &CompressPlan,
        [kv, gate]: &[Vec<f32>; 2],
        pool: PoolRef,
        state: TensorRef,
    ) -> CompressArgs {
        let n = batch.n_rows as usize;
        let width = weights.wkv.n;
        CompressArgs {
            size: size_of::<CompressArgs>() as u32,
            ratio: ratio as u32,
            overlap: u32::from(ratio == 4),
            n_entries: lists.out_slots.len() as u32,
            norm_eps: self.model.config.rms_norm_eps,
            batch,
            kv: refs::f32s(&kv[..n * width], [n, width]),
            gate: refs::f32s(&gate[..n * width], [n, width]),
            ape: refs::tensor(&weights.ape),
            norm_weight: refs::tensor(&weights.norm),
            rope: refs::rope(self.model.rope(layer)),
            sources: lists.sources.as_ptr(),
            entry_positions: lists.entry_positions.as_ptr(),
            out_slots: lists.out_slots.as_ptr(),
            state_dst: lists.state_dst.as_ptr(),
            state,
            pool: write_only(pool),
        }
    }

    fn compress(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        batch: &Batch,
        step: &Step<'_>,
        layer: usize,
        ratio: usize,
    ) -> Result<(), CallError> {
        let (Some(cell), Some(weights)) = (&cells.compress, &self.model.weights.layers[layer].compressor)
        else {
            unreachable!("the snapshot and the checkpoint fill csa and hca layers");
        };
        let lists = if ratio == 4 { &step.plan.c4 } else { &step.plan.c128 };
        let pool = step.store.entry_pool(layer, step.layouts[layer].kv, &[], 0);
        let args = self.compressor(
            batch,
            layer,
            ratio,
            weights,
            lists,
            &self.ws.entries,
            pool,
            step.store.state(layer),
        );
        step.probe.call(cell, ctx, &args, batch.n_rows as usize)
    }

    fn compress_keys(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        batch: &Batch,
        step: &Step<'_>,
        layer: usize,
    ) -> Result<(), CallError> {
        let (Some(cell), Some(indexer), Some(keys)) =
            (&cells.index_compress, &self.model.weights.layers[layer].indexer, step.layouts[layer].keys)
        else {
            unreachable!("the snapshot and the checkpoint fill csa layers");
        };
        let pool = step.store.key_pool(layer, keys, &[], 0);
        let state = step.store.index_state(layer);
        let args =
            self.compressor(batch, layer, 4, &indexer.compressor, &step.plan.c4, &self.ws.keys, pool, state);
        step.probe.call(cell, ctx, &args, batch.n_rows as usize)
    }

    fn select(
        &mut self,
        ctx: &StepCtx,
        cells: &LayerCells,
        batch: &Batch,
        step: &Step<'_>,
        layer: usize,
    ) -> Result<(), CallError> {
        let c = &self.model.config;
        let (Some(cell), Some(indexer), Some(keys)) =
            (&cells.select, &self.model.weights.layers[layer].indexer, step.layouts[layer].keys)
        else {
            unreachable!("the snapshot and the checkpoint fill csa layers");
        };
        let n = batch.n_rows as usize;
        let args = SelectArgs {
            size: size_of::<SelectArgs>() as u32,
            ratio: 4,
            heads: c.index_n_heads as u32,
            topk: self.index_topk as u32,
            scores_width: 0,
            batch,
            q_lora: refs::f32s(&self.ws.q_lora[..n * c.q_lora_rank], [n, c.q_lora_rank]),
            x: refs::f32s(&self.ws.x[..n * c.hidden_size], [n, c.hidden_size]),
            wq_b: refs::matrix(&indexer.wq_b),
            weights_proj: refs::tensor(&indexer.weights_proj),
            rope: refs::rope(self.model.rope(layer)),
            keys: step.store.key_pool(layer, keys, &step.plan.table, step.plan.table_width),
            ids: self.ws.ids.as_mut_ptr(),
            scores: std::ptr::null_mut(),
        };
        step.probe.call(cell, ctx, &args, n)
    }

    fn core(
        &mut self,
        par: &dyn Parallel,
        ctx: &StepCtx,
        cells: &LayerCells,
        batch: &Batch,
        step: &Step<'_>,
        layer: usize,
        ratio: usize,
    ) -> Result<(), CallError> {
        let c = &self.model.config;
        let (n, heads, d) = (batch.n_rows as usize, c.num_attention_heads, c.head_dim);
        let (plan, kv) = (step.plan, step.layouts[layer].kv);
        let window = step.store.window_pool(layer, kv, &plan.window_table, plan.table_width);
        let args = CoreArgs {
            size: size_of::<CoreArgs>() as u32,
            window: c.sliding_window as u32,
            ratio: ratio as u32,
            ids_width: if ratio == 4 { self.index_topk as u32 } else { 0 },
            scale: (d as f32).powf(-0.5),
            batch,
            q: refs::f32s(&self.ws.q[..n * heads * d], [n, heads, d]),
            sinks: refs::tensor(&self.model.weights.layers[layer].attn_sink),
            swa: window,
            entries: match ratio {
                0 => window,
                _ => step.store.entry_pool(layer, kv, &plan.table, plan.table_width),
            },
            ids: if ratio == 4 { self.ws.ids.as_ptr() } else { std::ptr::null() },
            rope: refs::rope(self.model.rope(layer)),
            out: refs::f32s_mut(&mut self.ws.attn[..n * heads * d], [n, heads, d]),
        };
        step.probe.call(&cells.core, ctx, &args, n)?;
        if !cells.core.has(capability::FUSES_INVERSE_ROPE) {
            let tables = self.model.rope(layer);
            for_rows(par, &mut self.ws.attn[..n * heads * d], heads * d, |row, heads| {
                let (cos, sin) = tables.row(plan.positions[row] as usize);
                heads.chunks_exact_mut(d).for_each(|head| rope(head, cos, sin, true));
            });
        }
        Ok(())
    }

    /// Grouped low-rank output projection.
    fn output(&mut self, par: &dyn Parallel, n: usize, layer: usize) {
        let c = &self.model.config;
        let w = &self.model.weights.layers[layer];
        let (width, groups, rank) = (c.num_attention_heads * c.head_dim, c.o_groups, c.o_lora_rank);
        let Workspace { attn, o_lora, y, .. } = &mut self.ws;
        let o_lora = &mut o_lora[..n * groups * rank];
        linear_grouped(par, &attn[..n * width], n, groups, w.wo_a.mat(), o_lora);
        linear(par, o_lora, n, w.wo_b.mat(), &mut y[..n * c.hidden_size]);
    }
}
