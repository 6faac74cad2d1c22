//! One forward pass over the rows of a step.
//!
//! Order in a layer: mhc.pre, norm, attention block, mhc.post, mhc.pre, norm, experts, mhc.post
//! (transformers `DeepseekV4DecoderLayer`).

mod attention;
mod ffn;
mod head;
mod lists;
pub(crate) mod ops;
mod refs;
mod workspace;

use crate::observe::{HostCopies, Probe, Stepping};
use crate::{Device, EngineConfig, EngineError};
use hotseam_abi::{ExpertRef, MhcPostArgs, MhcPreArgs, StepCtx, TensorRef, capability, layer_class, phase};
use hotseam_cuda::CudaError;
use hotseam_kv::{KvStore, LayerLayout, Plan};
use hotseam_loader::host_services;
use hotseam_model::{Hc, LayerClass, Model, Tensor};
use hotseam_slots::{LayerCells, Phase, Snapshot};
use lists::{HeadRows, Lists};
use ops::{Cpu, Done, Ops, Repeat, StepError};
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
    experts: Vec<Experts>,
    ops: Box<dyn Ops>,
    ws: Workspace,
    index_topk: usize,
    head: HeadRows,
    /// Where logits and streams are put that are not in host memory.
    copy: Vec<f32>,
    /// Where the host has the weights, if they are used elsewhere.
    host_copies: Option<Arc<HostCopies>>,
}

/// Experts of a layer, as calls are given them.
struct Experts {
    refs: Vec<ExpertRef>,
    /// The same where the calls run; empty on the CPU.
    on_device: ops::Block,
}

/// One of the two blocks of a layer, as mHC sees it.
struct Block<'a> {
    hc: &'a Hc,
    norm: &'a Tensor,
}

impl Forward {
    /// Buffers for an engine of these sizes. On a device its context becomes current on this thread, and the weights are
    /// copied there.
    ///
    /// # Errors
    /// If the device cannot be had, or there is not the memory.
    pub(crate) fn new(model: &Arc<Model>, sizes: &EngineConfig) -> Result<Self, EngineError> {
        match sizes.device {
            Device::Cpu => Ok(Self::on(Box::new(Cpu::new(sizes.amx)), Arc::clone(model), sizes)?),
            #[cfg(feature = "cuda")]
            Device::Cuda(ordinal) => {
                let (ops, model) = ops::Cuda::new(ordinal, model, sizes)?;
                Ok(Self::on(Box::new(ops), Arc::new(model), sizes)?)
            }
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) => Err(EngineError::NoCuda),
        }
    }

    fn on(ops: Box<dyn Ops>, model: Arc<Model>, sizes: &EngineConfig) -> Result<Self, CudaError> {
        let (max_rows, index_topk) = (sizes.max_rows(), sizes.index_topk.unwrap_or(model.config.index_topk));
        let ws = Workspace::new(&*ops, &model.config, max_rows, index_topk)?;
        let experts = refs::experts(&model).into_iter().map(|refs| {
            let on_device = ops.experts(&refs)?;
            Ok(Experts { refs, on_device })
        });
        let experts = experts.collect::<Result<_, CudaError>>()?;
        let (head, copy) = (HeadRows::with_capacity(max_rows), Vec::new());
        let on_device = sizes.device != Device::Cpu;
        let host_copies = on_device.then(|| Arc::new(HostCopies::of(&model)));
        Ok(Self { experts, ws, index_topk, head, copy, host_copies, ops, model })
    }

    /// Where the host has the weights, if they are used elsewhere.
    pub(crate) fn host_copies(&self) -> Option<Arc<HostCopies>> {
        self.host_copies.clone()
    }

    /// Runs the step; returns `[wanted, vocab]` logits.
    ///
    /// # Errors
    /// The first call that failed. KV written by the step is then to be given up.
    pub(crate) fn run(&mut self, step: &Step<'_>) -> Result<&[f32], StepError> {
        let model = Arc::clone(&self.model);
        self.head.set(step.plan, step.wanted);
        let looked_at = step.probe.sees_calls();
        let lists = self.ops.begin(step.phase, step.plan, step.tokens, &self.head, !looked_at)?;
        step.probe.step(Stepping {
            phase: step.phase,
            tokens: step.tokens,
            positions: &step.plan.positions,
            chunk: step.plan.seqs.first().map_or(0, |seq| seq.chunk),
        });
        self.ops.embed(&lists, &model.weights.embed, model.config.hc_mult, &self.ws.streams)?;
        for layer in 0..model.config.num_hidden_layers {
            let cells = step.snapshot.layer(step.phase, layer);
            let mut work = || self.layer(step, cells, &lists, layer);
            if step.phase == Phase::Prefill || looked_at {
                work()?;
                continue;
            }
            let (layer, rows) = (layer as u32, lists.batch.n_rows);
            let key = Repeat { layer, rows, served_by: cells.served_by() };
            if self.ops.repeat(key, &mut work)? {
                cells.count_repeated(lists.live);
            }
        }
        self.head(step, &lists)
    }

    /// One layer: streams to streams.
    fn layer(&self, step: &Step<'_>, cells: &LayerCells, lists: &Lists, layer: usize) -> Done {
        let weights = &self.model.weights.layers[layer];
        let ctx = self.context(step, layer as u32, self.model.config.class(layer));

        let attention = Block { hc: &weights.hc_attn, norm: &weights.attn_norm };
        self.collapse(&ctx, cells, lists, step.probe, attention)?;
        self.attention(&ctx, cells, lists, step, layer)?;
        self.expand(&ctx, cells, lists, step.probe)?;

        let ffn = Block { hc: &weights.hc_ffn, norm: &weights.ffn_norm };
        self.collapse(&ctx, cells, lists, step.probe, ffn)?;
        self.ffn(&ctx, cells, lists, step, layer)?;
        self.expand(&ctx, cells, lists, step.probe)
    }

    /// The streams of the first `rows` rows as the last step left them, `[rows, hc, hidden]`.
    ///
    /// # Errors
    /// If they cannot be had from the device.
    pub(crate) fn streams(&mut self, rows: usize) -> Result<&[f32], StepError> {
        let c = &self.model.config;
        self.ops.read(&self.ws.streams, rows * c.hc_mult * c.hidden_size, &mut self.copy)
    }

    /// mhc.pre and the norm that follows it: streams to the block's input.
    fn collapse(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        lists: &Lists,
        probe: Probe<'_>,
        block: Block<'_>,
    ) -> Done {
        let c = &self.model.config;
        let (n, hc, hidden) = (lists.rows(), c.hc_mult, c.hidden_size);
        let args = MhcPreArgs {
            size: size_of::<MhcPreArgs>() as u32,
            iters: c.hc_sinkhorn_iters as u32,
            hc_eps: c.hc_eps,
            norm_eps: c.rms_norm_eps,
            batch: &raw const lists.batch,
            streams: self.ws.streams.f32([n, hc, hidden]),
            fn_weight: refs::tensor(&block.hc.fn_weight),
            base: refs::tensor(&block.hc.base),
            scale: refs::tensor(&block.hc.scale),
            next_norm: refs::tensor(block.norm),
            x: self.ws.x.f32([n, hidden]),
            post: self.ws.post.f32([n, hc]),
            comb: self.ws.comb.f32([n, hc, hc]),
        };
        probe.call(&cells.mhc_pre, ctx, &args, lists.live)?;
        match cells.mhc_pre.has(capability::NORM_FUSED) {
            true => Ok(()),
            false => self.ops.rms_norm(n, &self.ws.x, block.norm, c.rms_norm_eps, &self.ws.x),
        }
    }

    /// mhc.post, in place: the block's output `y` into the streams.
    fn expand(&self, ctx: &StepCtx, cells: &LayerCells, lists: &Lists, probe: Probe<'_>) -> Done {
        let c = &self.model.config;
        let (n, hc, hidden) = (lists.rows(), c.hc_mult, c.hidden_size);
        let streams: TensorRef = self.ws.streams.f32([n, hc, hidden]);
        let args = MhcPostArgs {
            size: size_of::<MhcPostArgs>() as u32,
            batch: &raw const lists.batch,
            f: self.ws.y.f32([n, hidden]),
            streams,
            post: self.ws.post.f32([n, hc]),
            comb: self.ws.comb.f32([n, hc, hc]),
            out: streams,
        };
        Ok(probe.call(&cells.mhc_post, ctx, &args, lists.live)?)
    }

    /// Context of the calls of one layer.
    fn context(&self, step: &Step<'_>, layer: u32, class: LayerClass) -> StepCtx {
        let (stream, workspace, workspace_bytes) = self.ops.context();
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
            stream,
            workspace,
            workspace_bytes,
            host: host_services(),
        }
    }
}
