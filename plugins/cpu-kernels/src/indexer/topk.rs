//! The largest scores, in the order of their entries.

use crate::scratch;

/// Writes the numbers of the `ids.len()` largest scores to `ids`, rising. There must be more scores than that.
/// Ties go to the lower number; a NaN is smaller than any number.
pub(super) fn largest(scores: &[f32], ids: &mut [i32]) {
    let (n, k) = (scores.len(), ids.len());
    if k == 0 {
        return;
    }
    let (mut keys, mut order) = (scratch::lease::<u64>(n), scratch::lease::<u64>(n));
    for (entry, (key, score)) in keys.iter_mut().zip(scores).enumerate() {
        *key = key_of(*score, entry);
    }
    order.copy_from_slice(&keys);
    let (_, least, _) = order.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    let least = *least;
    // Keys are distinct, so exactly `k` of them are at least the k-th. Every entry is written and only the chosen ones
    // are stepped over: without a branch, because one would be guessed wrong often.
    let mut chosen = scratch::lease::<u32>(n + 1);
    let mut count = 0;
    for (entry, key) in keys.iter().enumerate() {
        chosen[count] = entry as u32;
        count += usize::from(*key >= least);
    }
    for (id, entry) in ids.iter_mut().zip(&*chosen) {
        *id = *entry as i32;
    }
}

/// A number that sorts as (score, entry) should: by score, then the lower entry first; NaN below everything.
#[inline(always)]
fn key_of(score: f32, entry: usize) -> u64 {
    let bits = score.to_bits();
    // Negative numbers turn round, positive ones move above them.
    let ordered = bits ^ ((bits as i32 >> 31) as u32 | 1 << 31);
    let ordered = if score.is_nan() { 0 } else { ordered };
    u64::from(ordered) << 32 | u64::from(!(entry as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(scores: &[f32], k: usize) -> Vec<i32> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        let value = |i: usize| if scores[i].is_nan() { (0, 0.0) } else { (1, scores[i]) };
        order.sort_by(|a, b| value(*b).partial_cmp(&value(*a)).unwrap().then(a.cmp(b)));
        let mut ids: Vec<i32> = order[..k].iter().map(|i| *i as i32).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn agrees_with_a_full_sort() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 22) as f32 - 2.0
        };
        for n in [2, 5, 64, 65, 300] {
            for k in [1, 2, 4, 63, 64, 299] {
                if k >= n {
                    continue;
                }
                for kind in 0..4 {
                    let mut scores: Vec<f32> = (0..n).map(|_| random()).collect();
                    if kind == 1 {
                        // Many ties, and both zeros.
                        scores.iter_mut().for_each(|s| *s = s.round());
                        scores.iter_mut().for_each(|s| *s = if *s == 0.0 { 0.0 } else { *s });
                    }
                    if kind >= 2 {
                        let nans = if kind == 2 { n / 3 } else { n - 1 };
                        (0..nans).for_each(|i| scores[i * 7 % n] = f32::NAN);
                        scores[n - 1] = f32::NEG_INFINITY;
                    }
                    let mut ids = vec![-9; k];
                    largest(&scores, &mut ids);
                    assert_eq!(ids, slow(&scores, k), "n {n}, k {k}, kind {kind}");
                }
            }
        }
    }
}
