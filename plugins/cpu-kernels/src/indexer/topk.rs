//! The largest scores of a row, kept while they are made: a threshold rises, and what is below it is not stored.

use crate::scratch;

/// Words of a [`Best`] before its candidates: how many there are, and the threshold.
const HEAD: usize = 2;

/// Candidates for the `k` largest scores, in the order of their entries, in memory of the caller.
pub(super) struct Best<'a> {
    words: &'a mut [u64],
    k: usize,
}

impl<'a> Best<'a> {
    /// Words that the candidates of a row need, if at most `tile` scores are given at once.
    pub(super) fn words(k: usize, tile: usize) -> usize {
        HEAD + 2 * k + tile
    }

    /// None so far.
    pub(super) fn begin(words: &'a mut [u64], k: usize) -> Self {
        words[..HEAD].fill(0);
        Self { words, k }
    }

    /// Those that the memory holds.
    pub(super) fn resume(words: &'a mut [u64], k: usize) -> Self {
        Self { words, k }
    }

    /// The candidates.
    pub(super) fn keys(&self) -> &[u64] {
        &self.words[HEAD..HEAD + self.words[0] as usize]
    }

    /// Takes the scores of entries `first ..`, which follow all that were taken before.
    pub(super) fn take(&mut self, first: usize, scores: &[f32]) {
        if self.words[0] as usize + HEAD + scores.len() > self.words.len() {
            self.narrow();
        }
        let (head, keys) = self.words.split_at_mut(HEAD);
        let (mut n, threshold) = (head[0] as usize, head[1]);
        // Every entry is written and only those above the threshold are stepped over: without a branch.
        for (entry, score) in (first..).zip(scores) {
            let key = key_of(*score, entry);
            keys[n] = key;
            n += usize::from(key > threshold);
        }
        head[0] = n as u64;
    }

    /// Drops all but the `k` largest, and lets nothing in that would not be one of them.
    fn narrow(&mut self) {
        let n = self.words[0] as usize;
        if n <= self.k {
            return;
        }
        let kept = &mut self.words[HEAD..HEAD + n];
        let least = keep_largest(kept, self.k);
        (self.words[0], self.words[1]) = (self.k as u64, least);
    }
}

/// Moves the `k` largest of more than `k` keys to the front, in their order; returns the least of them.
fn keep_largest(keys: &mut [u64], k: usize) -> u64 {
    if k == 0 {
        return u64::MAX;
    }
    let mut order = scratch::lease::<u64>(keys.len());
    order.copy_from_slice(keys);
    let (_, least, _) = order.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    let (least, mut n) = (*least, 0);
    // Keys are distinct, so exactly `k` of them are at least the k-th. A place is read before it is written.
    for i in 0..keys.len() {
        let key = keys[i];
        keys[n] = key;
        n += usize::from(key >= least);
    }
    least
}

/// Writes the entries of the `ids.len()` largest keys to `ids`, in the order of the keys, -1 where there are fewer.
pub(super) fn choose(keys: &mut [u64], ids: &mut [i32]) {
    let k = ids.len();
    let kept = if keys.len() > k {
        keep_largest(keys, k);
        &keys[..k]
    } else {
        &*keys
    };
    let (used, unused) = ids.split_at_mut(kept.len());
    used.iter_mut().zip(kept).for_each(|(id, key)| *id = !(*key as u32) as i32);
    unused.fill(-1);
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

    /// In slices and tiles, as the kernel does it.
    fn fast(scores: &[f32], k: usize, tile: usize, slices: usize) -> Vec<i32> {
        let (mut all, n) = (Vec::new(), scores.len());
        for slice in 0..slices {
            let mut words = vec![7; Best::words(k, tile)];
            Best::begin(&mut words, k);
            let range = slice * n / slices..(slice + 1) * n / slices;
            for first in range.clone().step_by(tile) {
                Best::resume(&mut words, k).take(first, &scores[first..range.end.min(first + tile)]);
            }
            all.extend_from_slice(Best::resume(&mut words, k).keys());
        }
        let mut ids = vec![-9; k];
        choose(&mut all, &mut ids);
        ids
    }

    #[test]
    fn agrees_with_a_full_sort() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 22) as f32 - 2.0
        };
        for n in [2, 5, 64, 65, 300, 1000] {
            for k in [1, 2, 4, 63, 64, 299] {
                if k >= n {
                    continue;
                }
                for kind in 0..5 {
                    let mut scores: Vec<f32> = (0..n).map(|_| random()).collect();
                    if kind == 1 {
                        // Many ties, and both zeros.
                        scores.iter_mut().for_each(|s| *s = s.round());
                        scores.iter_mut().for_each(|s| *s = if *s == 0.0 { 0.0 } else { *s });
                    }
                    if kind == 2 || kind == 3 {
                        let nans = if kind == 2 { n / 3 } else { n - 1 };
                        (0..nans).for_each(|i| scores[i * 7 % n] = f32::NAN);
                        scores[n - 1] = f32::NEG_INFINITY;
                    }
                    if kind == 4 {
                        // Rising: every score passes the threshold.
                        scores.sort_by(f32::total_cmp);
                    }
                    for (tile, slices) in [(16, 1), (3, 1), (16, 3)] {
                        let ids = fast(&scores, k, tile, slices);
                        assert_eq!(ids, slow(&scores, k), "n {n}, k {k}, kind {kind}, {slices} slices");
                    }
                }
            }
        }
    }
}
