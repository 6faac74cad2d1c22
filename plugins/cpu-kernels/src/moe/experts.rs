//! `moe.experts`.

use crate::scratch;
use hotseam_sdk::ops::{Linear, Parallel, Serial, WithAmx, axpy, linear, linears, swiglu};
use hotseam_sdk::views::{Expert, Experts};
use hotseam_sdk::{Result, SharedMut};
use std::ops::Range;

/// Rows of one expert that are computed together: enough to pay for widening the weights, few enough to share out.
const BLOCK: usize = 64;
/// Rows whose sum is worth a thread.
const GRAIN: usize = 32;

/// `moe.experts`: rows are grouped by expert; the result of each (row, k) is kept, and summed over `k` in order, so that
/// the sum does not depend on the grouping.
///
/// # Errors
/// If the weights of an expert that is used have another shape or dtype; nothing is written then.
pub fn experts(par: &dyn Parallel, a: &mut Experts<'_>) -> Result<()> {
    let (topk, hidden) = (a.topk, a.hidden);
    let groups = Groups::new(a);
    for e in (0..a.n_experts()).filter(|e| !groups.of(*e).is_empty()) {
        a.expert(e)?;
    }
    let mut results = scratch::lease::<f32>(groups.pairs.len() * hidden);
    {
        let results = SharedMut::new(&mut results);
        let view = &*a;
        let run = |par: &dyn Parallel, block: usize| {
            let (e, range) = groups.block(block);
            // The weights were checked above, so there is nothing to report here.
            if let Ok(expert) = view.expert(e) {
                // SAFETY: blocks do not overlap.
                let results = unsafe { results.slice(range.start * hidden..range.end * hidden) };
                run_block(par, view, &expert, &groups.pairs[range], results);
            }
        };
        let alone = WithAmx::new(&Serial, par.amx());
        match groups.blocks() {
            // Fewer blocks than threads: the threads share each product instead.
            few if few < par.threads() => (0..few).for_each(|block| run(par, block)),
            many => par.run(many, 1, &|blocks| blocks.for_each(|block| run(&alone, block))),
        }
    }
    let out = SharedMut::new(&mut *a.out);
    let (ids, weights, scale) = (a.ids, a.weights, a.routed_scale);
    par.run(a.rows.len(), GRAIN, &|rows| {
        for row in rows {
            // SAFETY: rows do not overlap.
            let out = unsafe { out.slice(row * hidden..(row + 1) * hidden) };
            out.fill(0.0);
            for pair in (row * topk..(row + 1) * topk).filter(|pair| ids[*pair] >= 0) {
                let result = &results[groups.place[pair] as usize * hidden..][..hidden];
                axpy(weights[pair] * scale, result, out);
            }
        }
    });
    Ok(())
}

/// Runs one expert on the rows of `pairs`; `results` is `[pairs, hidden]`.
fn run_block(par: &dyn Parallel, a: &Experts<'_>, expert: &Expert<'_>, pairs: &[u32], results: &mut [f32]) {
    let (n, hidden, inter) = (pairs.len(), a.hidden, a.inter);
    let mut x = scratch::lease::<f32>(n * hidden);
    for (x, pair) in x.chunks_exact_mut(hidden).zip(pairs) {
        x.copy_from_slice(&a.x[*pair as usize / a.topk * hidden..][..hidden]);
    }
    let (mut gate, mut up) = (scratch::lease::<f32>(n * inter), scratch::lease::<f32>(n * inter));
    linears(par, n, [Linear::dense(&x, expert.w1, &mut gate), Linear::dense(&x, expert.w3, &mut up)]);
    let mut y = scratch::lease::<f32>(n * inter);
    swiglu(&gate, &up, a.swiglu_limit, &mut y);
    linear(par, &y, n, expert.w2, results);
}

/// The pairs `row * topk + k`, sorted by expert.
struct Groups {
    /// Pairs of expert 0, of expert 1, ..; pairs without an expert are left out.
    pairs: scratch::Lease<u32>,
    /// `[rows * topk]` place of each pair in `pairs`.
    place: scratch::Lease<u32>,
    /// `[n_experts + 1]` where the pairs of an expert begin.
    begin: scratch::Lease<u32>,
}

impl Groups {
    fn new(a: &Experts<'_>) -> Self {
        let n_experts = a.n_experts();
        let mut begin = scratch::lease::<u32>(n_experts + 1);
        begin.fill(0);
        for id in a.ids.iter().filter(|id| **id >= 0) {
            begin[*id as usize + 1] += 1;
        }
        for e in 0..n_experts {
            begin[e + 1] += begin[e];
        }
        let mut pairs = scratch::lease::<u32>(begin[n_experts] as usize);
        let mut place = scratch::lease::<u32>(a.ids.len());
        let mut next = scratch::lease::<u32>(n_experts);
        next.copy_from_slice(&begin[..n_experts]);
        for (pair, id) in a.ids.iter().enumerate().filter(|(_, id)| **id >= 0) {
            let at = &mut next[*id as usize];
            pairs[*at as usize] = pair as u32;
            place[pair] = *at;
            *at += 1;
        }
        Self { pairs, place, begin }
    }

    /// Where the pairs of an expert lie.
    fn of(&self, expert: usize) -> Range<usize> {
        self.begin[expert] as usize..self.begin[expert + 1] as usize
    }

    /// Number of blocks of all experts.
    fn blocks(&self) -> usize {
        (0..self.begin.len() - 1).map(|e| self.of(e).len().div_ceil(BLOCK)).sum()
    }

    /// Expert and pairs of a block.
    fn block(&self, block: usize) -> (usize, Range<usize>) {
        let mut before = 0;
        for e in 0..self.begin.len() - 1 {
            let of = self.of(e);
            let here = of.len().div_ceil(BLOCK);
            if block < before + here {
                // Blocks of one expert are of nearly equal length.
                let (i, len) = (block - before, of.len());
                return (e, of.start + len * i / here..of.start + len * (i + 1) / here);
            }
            before += here;
        }
        (0, 0..0)
    }
}
