//! Selection by a full sort of the scores.

use hotseam_cpu_kernels::indexer;
use hotseam_sdk::views::Select;
use hotseam_sdk::{Ctx, Result};
use std::cmp::Ordering;

/// Scores every entry as the stock indexer does, then keeps the best of the first `limit`, best first and ties to the
/// later entry. `scratch` holds the scores when the host does not ask for them; in the host's tap entries that were not
/// reached are minus infinity.
pub(crate) fn select(ctx: &Ctx, a: Select<'_>, limit: usize, scratch: &mut Vec<f32>) -> Result<()> {
    let mut a = a;
    if a.scores.is_empty() {
        a.scores_width = (0..a.rows.len()).map(|row| a.complete(row)).max().unwrap_or(0);
        scratch.resize(a.rows.len() * a.scores_width, 0.0);
        a.scores = scratch;
    }
    indexer::select(ctx.host(), &mut a)?;
    for row in 0..a.rows.len() {
        let complete = a.complete(row);
        let scores = &mut a.scores[row * a.scores_width..][..complete];
        let seen = complete.min(limit);
        keep_best(&scores[..seen], &mut a.ids[row * a.topk..][..a.topk]);
        scores[seen..].fill(f32::NEG_INFINITY);
    }
    Ok(())
}

/// Writes the indices of the largest scores to `ids`, best first, and -1 after them.
fn keep_best(scores: &[f32], ids: &mut [i32]) {
    let mut order: Vec<i32> = (0..scores.len() as i32).collect();
    order.sort_by(|a, b| {
        let (x, y) = (scores[*a as usize], scores[*b as usize]);
        // A NaN is smaller than any number.
        let by_score = y.partial_cmp(&x).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
        if by_score == Ordering::Equal { b.cmp(a) } else { by_score }
    });
    let kept = order.len().min(ids.len());
    ids[..kept].copy_from_slice(&order[..kept]);
    ids[kept..].fill(-1);
}

#[cfg(test)]
mod tests {
    use super::keep_best;

    #[test]
    fn keeps_the_best_and_pads() {
        let mut ids = [7; 2];
        keep_best(&[0.5, -1.0, 2.0], &mut ids);
        assert_eq!(ids, [2, 0]);
        let mut ids = [7; 4];
        keep_best(&[0.5, -1.0], &mut ids);
        assert_eq!(ids, [0, 1, -1, -1]);
    }

    #[test]
    fn ties_go_to_the_later_entry_and_nan_comes_last() {
        let mut ids = [7; 4];
        keep_best(&[1.0, f32::NAN, 1.0, -0.0, 0.0], &mut ids);
        assert_eq!(ids, [2, 0, 4, 3]);
        let mut ids = [7; 3];
        keep_best(&[f32::NAN, f32::NEG_INFINITY, f32::NAN], &mut ids);
        assert_eq!(ids, [1, 2, 0]);
    }
}
