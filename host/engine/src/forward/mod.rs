//! One forward pass over the rows of a step.
//!
//! Order in a layer: mhc.pre, norm, attention block, mhc.post, mhc.pre, norm, experts, mhc.post
//! (transformers `DeepseekV4DecoderLayer`). With several ranks the output of each block is summed over them before mhc.post.

mod attention;
mod ffn;
mod group;
mod head;
mod layer;
mod lists;
pub(crate) mod ops;
mod refs;
mod workspace;

use crate::observe::{HostCopies, Memory, Probe, Stepping};
use crate::sampler::{Chosen, Draw, NotFinite};
use crate::{Device, EngineConfig, EngineError};
use group::Group;
use hotseam_abi::{
    ExpertRef, MhcPostArgs, MhcPreArgs, StepCtx, TensorRef, capability, device, layer_class, phase,
};
use hotseam_cuda::CudaError;
use hotseam_kv::{KvStore, LayerLayout, Plan};
use hotseam_loader::host_services;
use hotseam_model::{Hc, LayerClass, Model, Tensor};
use hotseam_ranks::Collective;
use hotseam_slots::{LayerCells, Phase, Snapshot};
use layer::LayerWork;
use lists::{HeadRows, Lists};
use ops::{Cpu, Done, Ops, Repeat, StepError, do_from};
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
    /// What the tokens of the wanted rows are drawn by, if nothing else is wanted of their logits; else empty.
    pub(crate) draws: &'a [Draw],
    /// Number of the step.
    pub(crate) number: u64,
    /// Whether anyone looks at its calls, here or on another rank ([`Probe::sees_calls`]): each is then made, over no more rows than
    /// there are.
    pub(crate) looked_at: bool,
    /// Who looks at its calls here.
    pub(crate) probe: Probe<'a>,
}

/// What a step says of the wanted rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Answer<'a> {
    /// `[wanted, vocab]`; none on ranks other than the first.
    Logits(&'a [f32]),
    /// A token of each, chosen on the device by [`Step::draws`].
    Chosen(&'a [Result<Chosen, NotFinite>]),
}

/// Weights and buffers of forward passes.
pub(crate) struct Forward {
    /// The ranks that the model is spread over; `None` for one. Ends first: freeing memory of a device waits for the sums in its stream.
    group: Option<Group>,
    model: Arc<Model>,
    experts: Vec<Experts>,
    ops: Box<dyn Ops>,
    ws: Workspace,
    index_topk: usize,
    head: HeadRows,
    /// Where logits and streams are put that are not in host memory.
    copy: Vec<f32>,
    chosen: Vec<Result<Chosen, NotFinite>>,
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
    /// Buffers for an engine of these sizes; with a `group`, `model` is the part of its rank ([`Model::of_rank`]). On a device its
    /// context becomes current on this thread, and the weights are copied there.
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
        let (head, copy, chosen) = (HeadRows::with_capacity(max_rows), Vec::new(), Vec::new());
        let group = group.and_then(Group::new);
        let on_device = sizes.device != Device::Cpu;
        let host_copies = on_device.then(|| Arc::new(HostCopies::of(&model)));
        Ok(Self { experts, ws, index_topk, group, head, copy, chosen, host_copies, ops, model })
    }

    /// Where the host has the weights, if they are used elsewhere.
    pub(crate) fn host_copies(&self) -> Option<Arc<HostCopies>> {
        self.host_copies.clone()
    }

    /// Runs the step; returns what it says of the wanted rows on the first rank, nothing on others. Every rank of a group runs it with the
    /// same rows at the same time.
    ///
    /// # Errors
    /// The first call that failed. KV written by the step is then to be given up, on all ranks of a group: the others are not told,
    /// and what they have computed is of no use. The next step can be run, unless the error is [`StepError::Rank`], which ends the
    /// group.
    pub(crate) fn run(&mut self, step: &Step<'_>) -> Result<Answer<'_>, StepError> {
        self.head.set(step.plan, step.wanted);
        let lists = self.ops.begin(step.phase, step.plan, step.tokens, &self.head, !step.looked_at);
        let lists = lists.map_err(|error| self.not_begun(error))?;
        step.probe.step(Stepping {
            phase: step.phase,
            tokens: step.tokens,
            positions: &step.plan.positions,
            chunk: step.plan.seqs.first().map_or(0, |seq| seq.chunk),
        });
        if let Some(group) = &self.group {
            group.begin();
        }
        self.layers(step, &lists).map_err(|error| self.give_up(error, lists.rows()))?;
        match self.group.as_ref().map(Group::place) {
            // The first rank has the head. On the others the step is over when their device has done it, so that what failed there
            // is a failure of this step.
            Some((1.., _)) => {
                self.settle()?;
                Ok(Answer::Logits(self.ops.read(&self.ws.y, 0, &mut self.copy)?))
            }
            _ => self.head(step, &lists),
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
        let work = LayerWork { forward: self, step, cells, lists, layer };
        if step.phase == Phase::Prefill || step.looked_at {
            return do_from(&work, 0);
        }
        let key = Repeat { layer: layer as u32, rows: lists.batch.n_rows, served_by: cells.served_by() };
        if self.ops.repeat(key, &work)? {
            cells.count_repeated(lists.live);
        }
        Ok(())
    }

    /// The streams of the first `rows` rows as the last step left them, `[rows, hc, hidden]`.
    ///
    /// # Errors
    /// If they cannot be had from the device.
    pub(crate) fn streams(&mut self, rows: usize) -> Result<&[f32], StepError> {
        self.settle()?;
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
        let (rank, world) = self.group.as_ref().map_or((0, 1), Group::place);
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
            rank,
            world,
            step: step.number,
            stream,
            workspace,
            workspace_bytes,
            host: host_services(),
        }
    }
}

#[cfg(test)]
mod tests;
