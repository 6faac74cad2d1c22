//! The experts block: route, routed experts, shared expert.

use super::lists::Lists;
use super::ops::{Done, Product};
use super::{Forward, Step, refs};
use hotseam_abi::{ExpertsArgs, RouteArgs, StepCtx, TensorRef, capability};
use hotseam_slots::LayerCells;

impl Forward {
    /// `x` to `y`, which with several ranks is to be summed over them.
    pub(super) fn ffn(
        &self,
        ctx: &StepCtx,
        cells: &LayerCells,
        lists: &Lists,
        step: &Step<'_>,
        layer: usize,
    ) -> Done {
        let c = &self.model.config;
        let w = &self.model.weights.layers[layer];
        let (n, hidden, topk) = (lists.rows(), c.hidden_size, c.num_experts_per_tok);
        let x = self.ws.x.f32([n, hidden]);
        let optional = |t: &Option<hotseam_model::Tensor>| t.as_ref().map_or(TensorRef::NONE, refs::tensor);
        let route = RouteArgs {
            size: size_of::<RouteArgs>() as u32,
            topk: topk as u32,
            routed_scale: c.routed_scaling_factor,
            batch: &raw const lists.batch,
            x,
            gate: refs::tensor(&w.gate),
            bias: optional(&w.gate_bias),
            tid2eid: optional(&w.tid2eid),
            input_ids: lists.tokens,
            ids: self.ws.expert_ids.ptr(),
            weights: self.ws.expert_weights.ptr(),
        };
        step.probe.call(&cells.route, ctx, &route, lists.live)?;
        let scaled = match c.is_hash(layer) {
            true => capability::ROUTE_SCALES_HASH,
            false => capability::ROUTE_SCALES_TOPK,
        };
        let weights = &self.experts[layer];
        let ids = match &self.group {
            None => &self.ws.expert_ids,
            Some(group) => {
                // What the router said stays as it is for whoever looks at it.
                let (all, own) = (&self.ws.expert_ids, &self.ws.local_ids);
                self.ops.local_experts(n * topk, all, self.own_experts(group), own)?;
                own
            }
        };
        let experts = ExpertsArgs {
            size: size_of::<ExpertsArgs>() as u32,
            topk: topk as u32,
            n_experts: weights.refs.len() as u32,
            swiglu_limit: c.swiglu_limit,
            routed_scale: if cells.route.has(scaled) { 1.0 } else { c.routed_scaling_factor },
            batch: &raw const lists.batch,
            x,
            ids: ids.ptr(),
            weights: self.ws.expert_weights.ptr(),
            experts: weights.refs.as_ptr(),
            experts_device: if weights.on_device.bytes == 0 {
                std::ptr::null()
            } else {
                weights.on_device.ptr()
            },
            out: self.ws.y.f32([n, hidden]),
        };
        step.probe.call(&cells.experts, ctx, &experts, lists.live)?;
        self.shared_expert(n, layer)
    }

    /// Adds the shared expert to `y`.
    fn shared_expert(&self, n: usize, layer: usize) -> Done {
        let c = &self.model.config;
        let w = &self.model.weights.layers[layer].shared;
        let (ops, ws) = (&self.ops, &self.ws);
        let gate = Product { x: &ws.x, w: &w.w1, y: &ws.ffn_gate };
        let up = Product { x: &ws.x, w: &w.w3, y: &ws.ffn_up };
        ops.products(n, &mut [gate, up].into_iter())?;
        ops.swiglu(n, w.w1.n, &ws.ffn_gate, &ws.ffn_up, c.swiglu_limit)?;
        let down = Product { x: &ws.ffn_up, w: &w.w2, y: &ws.shared };
        ops.products(n, &mut [down].into_iter())?;
        ops.add(n * c.hidden_size, &ws.y, &ws.shared)
    }
}
