//! `moe.route` and `moe.experts`.

use super::numbers::{add_scaled, dot, sigmoid, widen};
use hotseam_sdk::ops::Parallel;
use hotseam_sdk::views::{Experts, Route};
use hotseam_sdk::{Error, Result, SharedMut};
use std::borrow::Cow;
use std::cmp::Ordering;

/// `moe.route`; see [`hotseam_abi::RouteArgs`]. `routed_scale` is never applied here: truth leaves it to `experts`.
pub fn route(par: &dyn Parallel, a: Route<'_>) -> Result<()> {
    let scores = router_scores(par, &a);
    let n = a.gate.n;
    for row in 0..a.rows.len() {
        let ids = &mut a.ids[row * a.topk..(row + 1) * a.topk];
        let weights = &mut a.weights[row * a.topk..(row + 1) * a.topk];
        if a.rows.positions[row] < 0 {
            ids.fill(-1);
            weights.fill(0.0);
            continue;
        }
        let scores = &scores[row * n..(row + 1) * n];
        match a.tid2eid {
            Some(table) => ids.copy_from_slice(&table[a.input_ids[row] as usize * a.topk..][..a.topk]),
            None => choose(scores, a.bias, ids),
        }
        if let Some(bad) = ids.iter().find(|id| !(0..n as i32).contains(*id)) {
            return Err(Error::argument(format!(
                "tid2eid sends token {} to expert {bad} of {n}",
                a.input_ids[row]
            )));
        }
        let sum: f64 = ids.iter().map(|id| f64::from(scores[*id as usize])).sum();
        for (w, id) in weights.iter_mut().zip(ids.iter()) {
            *w = (f64::from(scores[*id as usize]) / (sum + 1e-20)) as f32;
        }
    }
    Ok(())
}

/// `[rows, n_experts]` scores `sqrt(softplus(gate x))`; zeros for padding.
pub fn router_scores(par: &dyn Parallel, a: &Route<'_>) -> Vec<f32> {
    let (n, hidden) = (a.gate.n, a.gate.k);
    let gate = widen(&a.gate);
    let mut scores = vec![0f32; a.rows.len() * n];
    let shared = SharedMut::new(&mut scores);
    par.run(a.rows.len(), 1, &|rows| {
        for row in rows.filter(|row| a.rows.positions[*row] >= 0) {
            let x = &a.x[row * hidden..(row + 1) * hidden];
            // SAFETY: each row is in one piece.
            let out = unsafe { shared.slice(row * n..(row + 1) * n) };
            for (s, w) in out.iter_mut().zip(gate.chunks_exact(hidden)) {
                *s = softplus(dot(w, x)).sqrt() as f32;
            }
        }
    });
    scores
}

/// The `ids.len()` largest of score plus bias, NaN last, ties by number.
fn choose(scores: &[f32], bias: Option<&[f32]>, ids: &mut [i32]) {
    let key = |e: &usize| f64::from(scores[*e]) + bias.map_or(0.0, |b| f64::from(b[*e]));
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.is_nan().cmp(&b.is_nan()).then(b.partial_cmp(&a).unwrap_or(Ordering::Equal))
    });
    for (id, e) in ids.iter_mut().zip(order) {
        *id = e as i32;
    }
}

/// As torch: linear above 20.
fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

struct Wide<'a> {
    w1: Cow<'a, [f32]>,
    w2: Cow<'a, [f32]>,
    w3: Cow<'a, [f32]>,
}

/// `moe.experts`; see [`hotseam_abi::ExpertsArgs`].
pub fn experts(par: &dyn Parallel, mut a: Experts<'_>) -> Result<()> {
    let mut used = vec![false; a.n_experts()];
    a.ids.iter().filter(|id| **id >= 0).for_each(|id| used[*id as usize] = true);
    let mut wide = Vec::with_capacity(used.len());
    for (id, used) in used.into_iter().enumerate() {
        wide.push(match used {
            true => {
                a.expert(id).map(|e| Some(Wide { w1: widen(&e.w1), w2: widen(&e.w2), w3: widen(&e.w3) }))?
            }
            false => None,
        });
    }
    let hidden = a.hidden;
    let out = std::mem::take(&mut a.out);
    let out = SharedMut::new(out);
    par.run(a.rows.len(), 1, &|rows| {
        for row in rows.filter(|row| a.rows.positions[*row] >= 0) {
            // SAFETY: each row is in one piece.
            experts_row(&a, row, &wide, unsafe { out.slice(row * hidden..(row + 1) * hidden) });
        }
    });
    Ok(())
}

fn experts_row(a: &Experts<'_>, row: usize, wide: &[Option<Wide<'_>>], out: &mut [f32]) {
    let x = &a.x[row * a.hidden..(row + 1) * a.hidden];
    let limit = f64::from(a.swiglu_limit);
    let mut total = vec![0f64; a.hidden];
    for k in row * a.topk..(row + 1) * a.topk {
        let Some(e) = usize::try_from(a.ids[k]).ok().and_then(|id| wide[id].as_ref()) else { continue };
        let up_rows = e.w3.chunks_exact(a.hidden);
        let inner: Vec<f32> = (e.w1.chunks_exact(a.hidden).zip(up_rows))
            .map(|(w1, w3)| swiglu(dot(w1, x), dot(w3, x), limit) as f32)
            .collect();
        let down: Vec<f32> = e.w2.chunks_exact(a.inter).map(|w2| dot(w2, &inner) as f32).collect();
        add_scaled(&mut total, f64::from(a.weights[k]) * f64::from(a.routed_scale), &down);
    }
    for (o, t) in out.iter_mut().zip(total) {
        *o = t as f32;
    }
}

/// `silu(min(gate, limit)) * clamp(up, -limit, limit)`; NaN stays NaN.
fn swiglu(gate: f64, up: f64, limit: f64) -> f64 {
    let gate = if gate > limit { limit } else { gate };
    let up = if up > limit {
        limit
    } else if up < -limit {
        -limit
    } else {
        up
    };
    gate * sigmoid(gate) * up
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clamp_is_one_sided_for_the_gate() {
        let silu = |x: f64| x * sigmoid(x);
        assert_eq!(swiglu(30.0, -40.0, 10.0), silu(10.0) * -10.0);
        assert_eq!(swiglu(-30.0, 40.0, 10.0), silu(-30.0) * 10.0);
        assert_eq!(swiglu(30.0, -40.0, f64::INFINITY), silu(30.0) * -40.0);
        assert!(swiglu(f64::NAN, 1.0, 10.0).is_nan());
    }

    #[test]
    fn the_bias_chooses() {
        let mut ids = [0; 2];
        choose(&[0.9, 0.8, 0.1, 0.2], None, &mut ids);
        assert_eq!(ids, [0, 1]);
        choose(&[0.9, 0.8, 0.1, f32::NAN], Some(&[0.0, 0.0, 5.0, 9.0]), &mut ids);
        assert_eq!(ids, [2, 0]);
    }

    #[test]
    fn softplus_neither_overflows_nor_vanishes() {
        assert_eq!(softplus(1000.0), 1000.0);
        assert!((softplus(0.0) - std::f64::consts::LN_2).abs() < 1e-15);
        assert!((softplus(-40.0) / (-40f64).exp() - 1.0).abs() < 1e-12);
    }
}
