//! `moe.route`.

use crate::scratch;
use hotseam_sdk::ops::{Parallel, linear, sqrt_softplus};
use hotseam_sdk::views::Route;
use hotseam_sdk::{Error, Result, SharedMut};

/// Rows that are worth a thread.
const GRAIN: usize = 64;

/// `moe.route`. The weights are not multiplied by `routed_scale`: a variant that declares so does it afterwards.
/// Ties of `s + bias` go to the lower expert, a NaN is chosen only when there is no number left.
///
/// # Errors
/// If the expert table names an expert that does not exist; nothing is written then.
pub fn route(par: &dyn Parallel, a: &mut Route<'_>) -> Result<()> {
    let (n, topk, n_experts) = (a.rows.len(), a.topk, a.gate.n);
    if let Some(table) = a.tid2eid {
        check_table(a, table)?;
    }
    let mut scores = scratch::lease::<f32>(n * n_experts);
    linear(par, a.x, n, a.gate, &mut scores);
    let scores = SharedMut::new(&mut scores);
    let (ids, weights) = (SharedMut::new(&mut *a.ids), SharedMut::new(&mut *a.weights));
    let (positions, input_ids, table, bias) = (a.rows.positions, a.input_ids, a.tid2eid, a.bias);
    par.run(n, GRAIN, &|rows| {
        for row in rows {
            // SAFETY: rows do not overlap.
            let (s, ids, weights) = unsafe {
                (
                    scores.slice(row * n_experts..(row + 1) * n_experts),
                    ids.slice(row * topk..(row + 1) * topk),
                    weights.slice(row * topk..(row + 1) * topk),
                )
            };
            if positions[row] < 0 {
                ids.fill(-1);
                weights.fill(0.0);
                continue;
            }
            match table {
                Some(table) => {
                    ids.copy_from_slice(&table[input_ids[row] as usize * topk..][..topk]);
                    ids.iter().zip(&mut *weights).for_each(|(id, w)| *w = sqrt_softplus(s[*id as usize]));
                }
                None => {
                    s.iter_mut().for_each(|s| *s = sqrt_softplus(*s));
                    choose(s, bias, ids);
                    ids.iter().zip(&mut *weights).for_each(|(id, w)| *w = s[*id as usize]);
                }
            }
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w /= sum + 1e-20);
        }
    });
    Ok(())
}

/// Refuses an expert table whose rows that are used name experts that do not exist.
fn check_table(a: &Route<'_>, table: &[i32]) -> Result<()> {
    let limit = a.gate.n as i32;
    for (row, token) in a.input_ids.iter().enumerate().filter(|(row, _)| a.rows.positions[*row] >= 0) {
        let chosen = &table[*token as usize * a.topk..][..a.topk];
        if let Some(bad) = chosen.iter().find(|id| !(0..limit).contains(*id)) {
            return Err(Error::argument(format!(
                "tid2eid: expert {bad} for token {token} in row {row}, expected 0 to {}",
                limit - 1
            )));
        }
    }
    Ok(())
}

/// The `ids.len()` largest of `scores + bias`, largest first.
fn choose(scores: &[f32], bias: Option<&[f32]>, ids: &mut [i32]) {
    for k in 0..ids.len() {
        let mut best: Option<(usize, f32)> = None;
        for (e, score) in scores.iter().enumerate() {
            let value = score + bias.map_or(0.0, |b| b[e]);
            let value = if value.is_nan() { f32::NEG_INFINITY } else { value };
            if best.is_none_or(|(_, most)| value > most) && !ids[..k].contains(&(e as i32)) {
                best = Some((e, value));
            }
        }
        // `topk` is at most the number of experts, so there is always one left.
        ids[k] = best.map_or(-1, |(e, _)| e as i32);
    }
}
