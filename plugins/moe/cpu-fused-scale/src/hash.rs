//! Hash routing in one pass.

use hotseam_cpu_kernels::scratch;
use hotseam_sdk::ops::{Parallel, linear, sqrt_softplus};
use hotseam_sdk::views::Route;
use hotseam_sdk::{Error, Result};

/// `moe.route` of a hash layer with `table [vocab, topk]`, weights times `routed_scale`. The score is computed for the
/// chosen experts only, and the division by the sum and the factor are one multiplication.
///
/// # Errors
/// If the table names an expert that does not exist.
pub(crate) fn route(par: &dyn Parallel, a: &mut Route<'_>, table: &[i32]) -> Result<()> {
    let (rows, topk, n_experts) = (a.rows.len(), a.topk, a.gate.n);
    let mut logits = scratch::lease::<f32>(rows * n_experts);
    linear(par, a.x, rows, a.gate, &mut logits);
    for row in 0..rows {
        let (ids, weights) = (&mut a.ids[row * topk..][..topk], &mut a.weights[row * topk..][..topk]);
        if a.rows.positions[row] < 0 {
            ids.fill(-1);
            weights.fill(0.0);
            continue;
        }
        let token = a.input_ids[row] as usize;
        ids.copy_from_slice(&table[token * topk..][..topk]);
        let logits = &logits[row * n_experts..][..n_experts];
        for (id, weight) in ids.iter().zip(&mut *weights) {
            let logit = usize::try_from(*id).ok().and_then(|id| logits.get(id));
            let unknown =
                || Error::argument(format!("tid2eid gives token {token} the expert {id} of {n_experts}"));
            *weight = sqrt_softplus(*logit.ok_or_else(unknown)?);
        }
        let factor = a.routed_scale / (weights.iter().sum::<f32>() + 1e-20);
        weights.iter_mut().for_each(|w| *w *= factor);
    }
    Ok(())
}
