//! One page of keys.

use hotseam_sdk::ops::dot_rows;
use hotseam_sdk::views::Pool;

/// Decodes entries `first .. first + n` of a sequence, which lie in one page, to `tile [n, dim]`.
pub(crate) fn load(keys: &Pool<'_>, seq: usize, first: usize, dim: usize, tile: &mut [f32]) {
    for (j, key) in tile.chunks_exact_mut(dim).enumerate() {
        keys.decode(keys.slot(seq, first + j), key);
    }
}

/// `scores[j] = sum_h weights[h] * relu(q[h] . tile[j])`, heads in order. `dots` has as many places as `scores`.
pub(crate) fn score(q: &[f32], weights: &[f32], tile: &[f32], dots: &mut [f32], scores: &mut [f32]) {
    let dim = q.len() / weights.len();
    scores.fill(0.0);
    for (q, weight) in q.chunks_exact(dim).zip(weights) {
        dot_rows(q, tile, dim, scores.len(), dots);
        for (score, dot) in scores.iter_mut().zip(&*dots) {
            // A NaN is not below 0 and stays, as in torch.
            *score += weight * if *dot < 0.0 { 0.0 } else { *dot };
        }
    }
}
