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

use crate::observe::{HostCopies, Memory, Probe, Stepping};
use crate::{Device, EngineConfig, EngineError};
use hotseam_abi::{
    ExpertRef, MhcPostArgs, MhcPreArgs, StepCtx, TensorRef, capability, device, layer_class, phase,
};
use hotseam_cuda::CudaError;
use hotseam_kv::{KvStore, LayerLayout, Plan};
use hotseam_loader::host_services;
use hotseam_model::{Hc, LayerClass, Model, Tensor};
use hotseam_ranks::{Collective, RankError, Values};
use hotseam_slots::{LayerCells, Phase, Snapshot};
use lists::{HeadRows, Lists};
use ops::{Cpu, Done, Ops, Repeat, StepError};
use std::cell::Cell;
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
    /// Whether anyone looks at its calls, here or on another rank ([`Probe::sees_calls`]): each is then made, over no more rows than
    /// there are.
    pub(crate) looked_at: bool,
    /// Who looks at its calls here.
    pub(crate) probe: Probe<'a>,
}

/// Weights and buffers of forward passes.
pub(crate) struct Forward {
    model: Arc<Model>,
    experts: Vec<Experts>,
    ops: Box<dyn Ops>,
    ws: Workspace,
    index_topk: usize,
    /// The ranks that the model is spread over; `None` for one.
    group: Option<Box<dyn Collective>>,
    /// Sums that the running step has made.
    sums: Cell<usize>,
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
    /// Buffers for an engine of these sizes; `model` is the part of this process's rank of `group`. On a device its context becomes current on this thread, and the weights are
    /// copied there.
    ///
    /// # Errors
    /// If the device cannot be had, or there is not the memory.
    pub(crate) fn new(
        model: &Arc<Model>,
        sizes: &EngineConfig,
        group: Option<Box<dyn Collective>>,
    ) -> Result<Self, EngineError> {
        match sizes.device {
            Device::Cpu => Ok(Self::on(Box::new(Cpu::new(sizes.amx)), Arc::clone(model), sizes, group)?),
            #[cfg(feature = "cuda")]
            Device::Cuda(ordinal) => {
                let (ops, model) = ops::Cuda::new(ordinal, model, sizes)?;
                Ok(Self::on(Box::new(ops), Arc::new(model), sizes, group)?)
            }
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) => Err(EngineError::NoCuda),
        }
    }

    fn on(
        ops: Box<dyn Ops>,
        model: Arc<Model>,
        sizes: &EngineConfig,
        group: Option<Box<dyn Collective>>,
    ) -> Result<Self, CudaError> {
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
        Ok(Self { experts, ws, index_topk, group, sums: Cell::new(0), head, copy, host_copies, ops, model })
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
        self.head.set(step.plan, step.wanted);
        let lists = self.ops.begin(step.phase, step.plan, step.tokens, &self.head, !step.looked_at);
        let lists = lists.map_err(|error| self.not_begun(error))?;
        step.probe.step(Stepping {
            phase: step.phase,
            tokens: step.tokens,
            positions: &step.plan.positions,
            chunk: step.plan.seqs.first().map_or(0, |seq| seq.chunk),
        });
        self.sums.set(0);
        if let Err(error) = self.layers(step, &lists) {
            if !matches!(error, StepError::Rank(_)) {
                self.sit_out(lists.rows())?;
            }
            return Err(error);
        }
        match &self.group {
            // The others have nothing to choose from the logits.
            Some(group) if group.rank() > 0 => Ok(&[]),
            _ => self.head(step, &lists),
        }
    }

    /// A step that cannot even begin on one rank ends the group: the others are in the midst of it.
    fn not_begun(&self, error: StepError) -> StepError {
        match &self.group {
            None => error,
            Some(group) => {
                RankError::Gone { rank: group.rank(), what: format!("cannot begin a step: {error}") }.into()
            }
        }
    }

    /// Tokens to streams, through all layers.
    fn layers(&self, step: &Step<'_>, lists: &Lists) -> Done {
        let config = &self.model.config;
        self.ops.embed(lists, &self.model.weights.embed, config.hc_mult, &self.ws.streams)?;
        (0..config.num_hidden_layers).try_for_each(|layer| self.run_layer(step, lists, layer))
    }

    /// One layer, done or, on a device, launched as it was recorded.
    fn run_layer(&self, step: &Step<'_>, lists: &Lists, layer: usize) -> Done {
        let cells = step.snapshot.layer(step.phase, layer);
        let mut work = || {
            // Work that was recorded in vain is done again.
            self.sums.set(2 * layer);
            self.layer(step, cells, lists, layer)
        };
        let sums_record = self.group.as_ref().is_none_or(|group| group.records());
        if step.phase == Phase::Prefill || step.looked_at || !sums_record {
            return work();
        }
        let key = Repeat { layer: layer as u32, rows: lists.batch.n_rows, served_by: cells.served_by() };
        if self.ops.repeat(key, &mut work)? {
            cells.count_repeated(lists.live);
            self.sums.set(2 * (layer + 1));
        }
        Ok(())
    }

    /// Replaces the blocks' outputs of all ranks by their sum.
    fn sum_ranks(&self, rows: usize) -> Done {
        let Some(group) = &self.group else { return Ok(()) };
        self.sums.set(self.sums.get() + 1);
        let y = &self.ws.y;
        let values = match y.device {
            device::CPU => Values::Host(y.ptr()),
            _ => Values::Device { address: y.ptr::<u8>().addr() as u64, stream: self.ops.context().0 },
        };
        // SAFETY: `y` holds a row of `hidden` values for each row of a step, and its writers are before this in the stream.
        unsafe { group.all_reduce(values, rows * self.model.config.hidden_size) }.map_err(StepError::from)
    }

    /// Takes part in the sums that a step still has after its work here ended early: the other ranks wait for them.
    fn sit_out(&self, rows: usize) -> Done {
        let all = 2 * self.model.config.num_hidden_layers;
        (self.sums.get()..all).try_for_each(|_| self.sum_ranks(rows))
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

    /// Where the values of a step are.
    pub(crate) fn memory(&self) -> Memory {
        match self.ws.y.device {
            device::CPU => Memory::Host,
            _ => Memory::Device { stream: self.ops.context().0 },
        }
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
            rank: self.group.as_ref().map_or(0, |group| group.rank()),
            world: self.group.as_ref().map_or(1, |group| group.world()),
            step: step.number,
            stream,
            workspace,
            workspace_bytes,
            host: host_services(),
        }
    }
}
