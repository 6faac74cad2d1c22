//! The experts block: route, routed experts, shared expert.

use super::rows::for_rows;
use super::{Forward, Step, refs};
use hotseam_abi::{Batch, ExpertsArgs, RouteArgs, StepCtx, TensorRef, capability};
use hotseam_ops::{Linear, Parallel, linear, linears, swiglu};
use hotseam_slots::{CallError, LayerCells};

impl Forward {
    /// `x` to `y`.
    pub(super) fn ffn(
        &mut self,
        par: &dyn Parallel,
        ctx: &StepCtx,
        cells: &LayerCells,
        batch: &Batch,
        step: &Step<'_>,
        layer: usize,
    ) -> Result<(), CallError> {
        let c = &self.model.config;
        let w = &self.model.weights.layers[layer];
        let (n, hidden, topk) = (batch.n_rows as usize, c.hidden_size, c.num_experts_per_tok);
        let x = refs::f32s(&self.ws.x[..n * hidden], [n, hidden]);
        let optional = |t: &Option<hotseam_model::Tensor>| t.as_ref().map_or(TensorRef::NONE, refs::tensor);
        let route = RouteArgs {
            size: size_of::<RouteArgs>() as u32,
            topk: topk as u32,
            routed_scale: c.routed_scaling_factor,
            batch,
            x,
            gate: refs::tensor(&w.gate),
            bias: optional(&w.gate_bias),
            tid2eid: optional(&w.tid2eid),
            input_ids: step.tokens.as_ptr(),
            ids: self.ws.expert_ids.as_mut_ptr(),
            weights: self.ws.expert_weights.as_mut_ptr(),
        };
        step.probe.call(&cells.route, ctx, &route, n)?;
        let scaled = match c.is_hash(layer) {
            true => capability::ROUTE_SCALES_HASH,
            false => capability::ROUTE_SCALES_TOPK,
        };
        let experts = ExpertsArgs {
            size: size_of::<ExpertsArgs>() as u32,
            topk: topk as u32,
            n_experts: self.experts[layer].len() as u32,
            swiglu_limit: c.swiglu_limit,
            routed_scale: if cells.route.has(scaled) { 1.0 } else { c.routed_scaling_factor },
            batch,
            x,
            ids: self.ws.expert_ids.as_ptr(),
            weights: self.ws.expert_weights.as_ptr(),
            experts: self.experts[layer].as_ptr(),
            experts_device: std::ptr::null(),
            out: refs::f32s_mut(&mut self.ws.y[..n * hidden], [n, hidden]),
        };
        step.probe.call(&cells.experts, ctx, &experts, n)?;
        self.shared_expert(par, n, layer);
        Ok(())
    }

    /// Adds the shared expert to `y`.
    fn shared_expert(&mut self, par: &dyn Parallel, n: usize, layer: usize) {
        let c = &self.model.config;
        let w = &self.model.weights.layers[layer].shared;
        let (hidden, inter) = (c.hidden_size, w.w1.n);
        let ws = &mut self.ws;
        let x = &ws.x[..n * hidden];
        let gate = Linear::dense(x, w.w1.mat(), &mut ws.ffn_gate[..n * inter]);
        let up = Linear::dense(x, w.w3.mat(), &mut ws.ffn_up[..n * inter]);
        linears(par, n, [gate, up]);
        let gate = &ws.ffn_gate;
        for_rows(par, &mut ws.ffn_up[..n * inter], inter, |row, up| {
            swiglu_in_place(&gate[row * inter..(row + 1) * inter], up, c.swiglu_limit);
        });
        linear(par, &ws.ffn_up[..n * inter], n, w.w2.mat(), &mut ws.shared[..n * hidden]);
        ws.y[..n * hidden].iter_mut().zip(&ws.shared).for_each(|(y, s)| *y += s);
    }
}

/// `up = silu(min(gate, limit)) * clamp(up)`, through a block of the stack.
fn swiglu_in_place(gate: &[f32], up: &mut [f32], limit: f32) {
    const BLOCK: usize = 64;
    let mut out = [0.0; BLOCK];
    for (gate, up) in gate.chunks(BLOCK).zip(up.chunks_mut(BLOCK)) {
        let out = &mut out[..up.len()];
        swiglu(gate, up, limit, out);
        up.copy_from_slice(out);
    }
}
