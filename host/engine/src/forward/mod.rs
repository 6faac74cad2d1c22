//! One forward pass over the rows of a step.
//!
//! Order in a layer: mhc.pre, norm, attention block, mhc.post, mhc.pre, norm, experts, mhc.post
//! (transformers `DeepseekV4DecoderLayer`).

mod attention;
mod ffn;
mod head;
mod refs;
mod rows;
mod workspace;

use crate::EngineConfig;
use crate::observe::{Probe, Stepping};
use hotseam_abi::{
    Batch, ExpertRef, MhcPostArgs, MhcPreArgs, StepCtx, TensorRef, capability, layer_class, phase,
};
use hotseam_kv::{KvStore, LayerLayout, Plan};
use hotseam_loader::{host_services, pool};
use hotseam_model::{Hc, LayerClass, Model, ModelConfig, Tensor};
use hotseam_ops::{Amx, Parallel, WithAmx, rms_norm};
use hotseam_slots::{CallError, LayerCells, Phase, Snapshot};
use rows::for_rows;
use std::sync::Arc;
use workspace::Workspace;

/// What a step runs on.
pub(crate) struct Step<'a> {
    /// Cells that serve it.
    pub(crate) snapshot: &'a Snapshot,
    /// Its phase.
    pub(crate) phase: Phase,
    /// KV memory that `plan` addresses.
    pub(crate) store: &'a KvStore,
    /// Rows, pages and states.
    pub(crate) plan: &'a Plan,
    /// Layouts of the pools of each layer.
    pub(crate) layouts: &'a [LayerLayout],
    /// `[rows]` input tokens.
    pub(crate) tokens: &'a [i32],
    /// Rows whose logits are wanted, rising.
    pub(crate) wanted: &'a [usize],
    /// Number of the step.
    pub(crate) number: u64,
    /// Who looks at its calls.
    pub(crate) probe: Probe<'a>,
}

/// Weights and buffers of forward passes.
pub(crate) struct Forward {
    model: Arc<Model>,
    experts: Vec<Vec<ExpertRef>>,
    ws: Workspace,
    index_topk: usize,
    /// What the host's own products of prefill steps use.
    amx: Option<Amx>,
}

/// One of the two blocks of a layer, as mHC sees it.
struct Block<'a> {
    hc: &'a Hc,
    norm: &'a Tensor,
}

impl Forward {
    /// Buffers for an engine of these sizes.
    pub(crate) fn new(model: Arc<Model>, sizes: &EngineConfig) -> Self {
        let (max_rows, amx) = (sizes.max_rows(), sizes.amx.then(Amx::detect).and_then(Result::ok));
        let index_topk = sizes.index_topk.unwrap_or(model.config.index_topk);
        let ws = Workspace::new(&model.config, max_rows, index_topk);
        Self { experts: refs::experts(&model), ws, index_topk, amx, model }
    }

    /// Runs the step; returns `[wanted, vocab]` logits.
    ///
    /// # Errors
    /// The first call that failed. KV written by the step is then to be given up.
    pub(crate) fn run(&mut self, step: &Step<'_>) -> Result<&[f32], CallError> {
        let par: &dyn Parallel = &WithAmx::new(pool(), self.amx.filter(|_| step.phase == Phase::Prefill));
        let model = Arc::clone(&self.model);
        let batch = step.plan.batch();
        step.probe.step(Stepping {
            phase: step.phase,
            tokens: step.tokens,
            positions: &step.plan.positions,
            chunk: step.plan.seqs.first().map_or(0, |seq| seq.chunk),
        });
        self.embed(par, &model, step.tokens);
        for layer in 0..model.config.num_hidden_layers {
            let weights = &model.weights.layers[layer];
            let cells = step.snapshot.layer(step.phase, layer);
            let ctx = context(step, layer as u32, model.config.class(layer));

            let attention = Block { hc: &weights.hc_attn, norm: &weights.attn_norm };
            self.collapse(par, &ctx, cells, &batch, step.probe, attention)?;
            self.attention(par, &ctx, cells, &batch, step, layer)?;
            self.expand(&ctx, cells, &batch, step.probe)?;

            let ffn = Block { hc: &weights.hc_ffn, norm: &weights.ffn_norm };
            self.collapse(par, &ctx, cells, &batch, step.probe, ffn)?;
            self.ffn(par, &ctx, cells, &batch, step, layer)?;
            self.expand(&ctx, cells, &batch, step.probe)?;
        }
        self.head(par, step, &batch)
    }

    /// The streams of the first `rows` rows as the last step left them, `[rows, hc, hidden]`.
    pub(crate) fn streams(&self, rows: usize) -> &[f32] {
        let c = &self.model.config;
        &self.ws.streams[..rows * c.hc_mult * c.hidden_size]
    }

    fn embed(&mut self, par: &dyn Parallel, model: &Model, tokens: &[i32]) {
        let (hidden, hc) = (model.config.hidden_size, model.config.hc_mult);
        let table = rows::mat(&model.weights.embed);
        for_rows(par, &mut self.ws.streams[..tokens.len() * hc * hidden], hc * hidden, |row, streams| {
            let token = tokens[row] as usize;
            let (first, rest) = streams.split_at_mut(hidden);
            table.row_f32(token, first);
            rest.chunks_exact_mut(hidden).for_each(|stream| stream.copy_from_slice(first));
        });
    }

    /// mhc.pre and the norm that follows it: streams to the block's input.
    fn collapse(
        &mut self,
        par: &dyn Parallel,
        ctx: &StepCtx,
        cells: &LayerCells,
        batch: &Batch,
        probe: Probe<'_>,
        block: Block<'_>,
    ) -> Result<(), CallError> {
        let c = &self.model.config;
        let (n, hc, hidden) = (batch.n_rows as usize, c.hc_mult, c.hidden_size);
        let args = MhcPreArgs {
            size: size_of::<MhcPreArgs>() as u32,
            iters: c.hc_sinkhorn_iters as u32,
            hc_eps: c.hc_eps,
            norm_eps: c.rms_norm_eps,
            batch,
            streams: refs::f32s(&self.ws.streams[..n * hc * hidden], [n, hc, hidden]),
            fn_weight: refs::tensor(&block.hc.fn_weight),
            base: refs::tensor(&block.hc.base),
            scale: refs::tensor(&block.hc.scale),
            next_norm: refs::tensor(block.norm),
            x: refs::f32s_mut(&mut self.ws.x[..n * hidden], [n, hidden]),
            post: refs::f32s_mut(&mut self.ws.post[..n * hc], [n, hc]),
            comb: refs::f32s_mut(&mut self.ws.comb[..n * hc * hc], [n, hc, hc]),
        };
        probe.call(&cells.mhc_pre, ctx, &args, n)?;
        if !cells.mhc_pre.has(capability::NORM_FUSED) {
            norm_in_place(par, &mut self.ws.x[..n * hidden], block.norm.f32(), c);
        }
        Ok(())
    }

    /// mhc.post, in place: the block's output `y` into the streams.
    fn expand(
        &mut self,
        ctx: &StepCtx,
        cells: &LayerCells,
        batch: &Batch,
        probe: Probe<'_>,
    ) -> Result<(), CallError> {
        let c = &self.model.config;
        let (n, hc, hidden) = (batch.n_rows as usize, c.hc_mult, c.hidden_size);
        let streams: TensorRef = refs::f32s_mut(&mut self.ws.streams[..n * hc * hidden], [n, hc, hidden]);
        let args = MhcPostArgs {
            size: size_of::<MhcPostArgs>() as u32,
            batch,
            f: refs::f32s(&self.ws.y[..n * hidden], [n, hidden]),
            streams,
            post: refs::f32s(&self.ws.post[..n * hc], [n, hc]),
            comb: refs::f32s(&self.ws.comb[..n * hc * hc], [n, hc, hc]),
            out: streams,
        };
        probe.call(&cells.mhc_post, ctx, &args, n)
    }
}

/// Context of the calls of one layer.
fn context(step: &Step<'_>, layer: u32, class: LayerClass) -> StepCtx {
    StepCtx {
        size: size_of::<StepCtx>() as u32,
        phase: match step.phase {
            Phase::Prefill => phase::PREFILL,
            Phase::Decode => phase::DECODE,
        },
        layer,
        layer_class: match class {
            LayerClass::Window => layer_class::WINDOW,
            LayerClass::Csa => layer_class::CSA,
            LayerClass::Hca => layer_class::HCA,
        },
        rank: 0,
        world: 1,
        step: step.number,
        stream: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        host: host_services(),
    }
}

/// RMS norm of each row of `x`, whose width is the weight's.
fn norm_in_place(par: &dyn Parallel, x: &mut [f32], weight: &[f32], c: &ModelConfig) {
    for_rows(par, x, weight.len(), |_, row| {
        let scale = 1.0 / (hotseam_ops::dot(row, row) / row.len() as f32 + c.rms_norm_eps).sqrt();
        row.iter_mut().zip(weight).for_each(|(v, w)| *v = w * (*v * scale));
    });
}

/// RMS norm of each row of `x` into `out`.
fn norm_rows(par: &dyn Parallel, x: &[f32], weight: &[f32], out: &mut [f32], c: &ModelConfig) {
    let width = weight.len();
    for_rows(par, out, width, |row, out| {
        rms_norm(&x[row * width..(row + 1) * width], Some(weight), c.rms_norm_eps, out);
    });
}
