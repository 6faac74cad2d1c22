//! `indexer.select`.

use super::layout;
use super::numbers::{dot, rope, widen};
use hotseam_sdk::ops::Parallel;
use hotseam_sdk::views::Select;
use hotseam_sdk::{Result, SharedMut};
use std::cmp::Ordering;

/// `indexer.select`; see [`hotseam_abi::SelectArgs`]. The chosen entries are ordered by falling score, then by number;
/// entries with a NaN score are only returned when all entries are.
pub fn select(par: &dyn Parallel, mut a: Select<'_>) -> Result<()> {
    let (topk, width) = (a.topk, a.scores_width);
    let ids = std::mem::take(&mut a.ids);
    let tap = std::mem::take(&mut a.scores);
    let (ids, tap_wanted, tap) = (SharedMut::new(ids), !tap.is_empty(), SharedMut::new(tap));
    for_each_row(par, &a, &|row, scores: &[f32]| {
        // SAFETY: each row is in one piece.
        let ids = unsafe { ids.slice(row * topk..(row + 1) * topk) };
        ids.fill(-1);
        for (id, entry) in ids.iter_mut().zip(ranked(scores, topk)) {
            *id = entry as i32;
        }
        if tap_wanted {
            let n = scores.len().min(width);
            // SAFETY: each row is in one piece.
            unsafe { tap.slice(row * width..row * width + n) }.copy_from_slice(&scores[..n]);
        }
    })
}

/// Scores of all complete entries of each row; empty for padding. The outputs of `a` are not touched.
pub fn scores(par: &dyn Parallel, a: &Select<'_>) -> Result<Vec<Vec<f32>>> {
    let mut all = vec![Vec::new(); a.rows.len()];
    let shared = SharedMut::new(&mut all);
    for_each_row(par, a, &|row, scores: &[f32]| {
        // SAFETY: each row is in one piece.
        let place = unsafe { shared.slice(row..row + 1) };
        place[0] = scores.to_vec();
    })?;
    Ok(all)
}

/// The best `topk` entries, or all if there are no more.
fn ranked(scores: &[f32], topk: usize) -> Vec<usize> {
    let few = scores.len() <= topk;
    let mut order: Vec<usize> = (0..scores.len()).filter(|e| few || !scores[*e].is_nan()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (scores[*a], scores[*b]);
        b.partial_cmp(&a).unwrap_or_else(|| match (a.is_nan(), b.is_nan()) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => Ordering::Equal,
        })
    });
    order.truncate(topk);
    order
}

fn for_each_row(par: &dyn Parallel, a: &Select<'_>, f: &(dyn Fn(usize, &[f32]) + Sync)) -> Result<()> {
    layout::parts(a.keys.form.layout, a.keys.form.shape)?;
    let (wq_b, weights_proj) = (widen(&a.wq_b), widen(&a.weights_proj));
    par.run(a.rows.len(), 1, &|rows| {
        for row in rows {
            if a.rows.positions[row] >= 0 {
                f(row, &row_scores(a, row, &wq_b, &weights_proj));
            }
        }
    });
    Ok(())
}

fn row_scores(a: &Select<'_>, row: usize, wq_b: &[f32], weights_proj: &[f32]) -> Vec<f32> {
    let (rank, hidden) = (a.wq_b.k, a.weights_proj.k);
    let q_lora = &a.q_lora[row * rank..(row + 1) * rank];
    let x = &a.x[row * hidden..(row + 1) * hidden];
    let mut q: Vec<f32> = wq_b.chunks_exact(rank).map(|w| dot(w, q_lora) as f32).collect();
    let (cos, sin) = a.rope.row(a.rows.positions[row] as usize);
    for head in q.chunks_exact_mut(a.dim) {
        rope(head, cos, sin, false);
        layout::query(a.keys.form.layout, head);
    }
    let factor = ((a.dim * a.heads) as f64).powf(-0.5);
    let weights: Vec<f64> = weights_proj.chunks_exact(hidden).map(|w| dot(w, x) * factor).collect();

    let seq = a.rows.seq(row);
    let mut key = vec![0f32; a.dim];
    let score_of = |entry| {
        let bytes = a.keys.entry(a.keys.slot(seq, entry));
        let form = a.keys.form;
        layout::decode(form.layout, form.shape.rope_dim, bytes, &mut key).expect("layout was checked");
        let heads = q.chunks_exact(a.dim).zip(&weights);
        heads.map(|(q, w)| w * relu(dot(q, &key))).sum::<f64>() as f32
    };
    (0..a.complete(row)).map(score_of).collect()
}

/// As torch has it: NaN stays NaN, which `f64::max` would turn into 0.
fn relu(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use super::ranked;

    #[test]
    fn ranking_is_by_score_then_number_and_leaves_nan_out() {
        assert_eq!(ranked(&[0.0, -1.0, 0.5, 0.5, f32::NAN], 3), [2, 3, 0]);
        assert_eq!(ranked(&[f32::NAN, -1.0, 0.5], 3), [2, 1, 0], "all entries are returned when they fit");
        assert_eq!(ranked(&[f32::NAN; 4], 3), Vec::<usize>::new());
        assert_eq!(ranked(&[], 3), Vec::<usize>::new());
    }
}
