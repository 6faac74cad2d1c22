//! One row and some of its heads: partial results a split, then the merge.

use hotseam_cpu_kernels::scratch::{Lease, lease};
use hotseam_sdk::ops::{axpy, bf16, dot_rows, max, scale, weighted_sum_rows};
use hotseam_sdk::views::{Core, Pool};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Score of a key that is not there. Finite, so that no difference of scores is NaN; the weight of such a key is
/// selected as 0 and its data are zeros, because a split of masked keys alone would otherwise weigh them 1.
const MASKED: f32 = -1e30;

/// Fills `out [heads, dim]` for `heads` of `row`, which is not padding.
pub(crate) fn attend(a: &Core<'_>, row: usize, heads: Range<usize>, split: usize, out: &mut [f32]) {
    let (dim, keys) = (a.dim, Keys::of(a, row));
    let splits = keys.len().div_ceil(split);
    let mut q = lease::<f32>(heads.len() * dim);
    round(&a.q[(row * a.heads + heads.start) * dim..][..q.len()], &mut q);
    let (mut k, mut p) = (lease::<f32>(split * dim), lease::<f32>(split));
    let (mut partial, mut lse) =
        (lease::<f32>(heads.len() * splits * dim), lease::<f32>(heads.len() * splits));
    for n in 0..splits {
        let range = n * split..keys.len().min((n + 1) * split);
        for (key, k) in range.clone().zip(k.chunks_exact_mut(dim)) {
            match keys.get(key) {
                Some(entry) => round(entry, k),
                None => k.fill(0.0),
            }
        }
        let p = &mut p[..range.len()];
        for (head, q) in q.chunks_exact(dim).enumerate() {
            dot_rows(q, &k, dim, p.len(), p);
            for (p, key) in p.iter_mut().zip(range.clone()) {
                *p = if keys.get(key).is_some() { *p * (a.scale * LOG2_E) } else { MASKED };
            }
            let at = head * splits + n;
            let (sum, of_split) = soften(p);
            let acc = &mut partial[at * dim..][..dim];
            weighted_sum_rows(p, &k, dim, acc);
            scale(1.0 / sum, acc);
            lse[at] = of_split;
        }
    }
    for (head, out) in out.chunks_exact_mut(dim).enumerate() {
        let of_head = head * splits..(head + 1) * splits;
        let partial = &partial[of_head.start * dim..of_head.end * dim];
        merge(partial, &lse[of_head], a.sinks[heads.start + head], out);
    }
}

/// Turns scores in base 2 into weights rounded to bf16. Returns what to divide the weighted sum by, the sum of the
/// unrounded weights, and the log-sum-exp; without any key these are 1 and [`MASKED`], and the weights 0.
fn soften(p: &mut [f32]) -> (f32, f32) {
    let most = max(p);
    let mut sum = 0.0;
    for p in &mut *p {
        let weight = if *p == MASKED { 0.0 } else { (*p - most).exp2() };
        sum += weight;
        *p = rounded(weight);
    }
    if sum == 0.0 { (1.0, MASKED) } else { (sum, most + sum.log2()) }
}

/// Adds the splits `partial [splits, dim]` by their log-sum-exps. The sink enters here, once.
fn merge(partial: &[f32], lse: &[f32], sink: f32, out: &mut [f32]) {
    let sink = sink * LOG2_E;
    let most = max(lse).max(sink).max(MASKED);
    let mut sum = (sink - most).exp2();
    out.fill(0.0);
    for (lse, partial) in lse.iter().zip(partial.chunks_exact(out.len())) {
        let weight = (lse - most).exp2();
        sum += weight;
        axpy(weight, partial, out);
    }
    // The sum is 0 only for a row without keys and without a sink.
    scale(if sum == 0.0 { 0.0 } else { 1.0 / sum }, out);
}

fn rounded(value: f32) -> f32 {
    bf16::to_f32(bf16::from_f32(value))
}

fn round(from: &[f32], to: &mut [f32]) {
    for (from, to) in from.iter().zip(to) {
        *to = rounded(*from);
    }
}

/// The keys of a row: window entries in the order of positions, then compressed entries in the order of their ids.
struct Keys<'a> {
    swa: Pool<'a>,
    entries: Option<Pool<'a>>,
    /// Number of window keys.
    window: usize,
    /// Slot of each key, [`Self::NONE`] for an id of -1.
    slots: Lease<usize>,
}

impl<'a> Keys<'a> {
    const NONE: usize = usize::MAX;

    fn of(a: &Core<'a>, row: usize) -> Self {
        let (window, seq) = (a.window_of(row), a.rows.seq(row));
        let ids = a.ids_of(row);
        let compressed = ids.map_or(a.complete(row), <[i32]>::len);
        let mut slots = lease::<usize>(window.len() + compressed);
        let (near, far) = slots.split_at_mut(window.len());
        let n_near = near.len();
        for (slot, position) in near.iter_mut().zip(window) {
            *slot = a.swa.slot(seq, position);
        }
        if let Some(pool) = a.entries {
            for (i, slot) in far.iter_mut().enumerate() {
                let id = ids.map_or(i as i32, |ids| ids[i]);
                *slot = usize::try_from(id).map_or(Self::NONE, |id| pool.slot(seq, id));
            }
        }
        Self { swa: a.swa, entries: a.entries, window: n_near, slots }
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    /// The entry of a key, or none if it is masked.
    fn get(&self, key: usize) -> Option<&'a [f32]> {
        let pool = if key < self.window { Some(&self.swa) } else { self.entries.as_ref() };
        let slot = self.slots[key];
        pool.filter(|_| slot != Self::NONE).map(|pool| pool.f32(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_merge_to_the_whole() {
        let scores = [1.5, -2.0, 0.25, 3.0, MASKED, -1.0];
        let values = [1.0, 2.0, -1.0, 0.5, f32::MAX, 4.0];
        let sink = -0.5;
        let exact = |v: fn(f64) -> f64| -> f64 {
            let weight = |i: usize| if scores[i] == MASKED { 0.0 } else { f64::from(scores[i]).exp2() };
            (0..scores.len())
                .map(|i| if weight(i) == 0.0 { 0.0 } else { weight(i) * v(f64::from(values[i])) })
                .sum()
        };
        let want = exact(|v| v) / (exact(|_| 1.0) + f64::from(sink).exp());
        for split in [1, 2, 4, 6] {
            let (mut partial, mut lse) = (Vec::new(), Vec::new());
            for (s, v) in scores.chunks(split).zip(values.chunks(split)) {
                let mut p = s.to_vec();
                let (sum, of_split) = soften(&mut p);
                lse.push(of_split);
                partial
                    .push(p.iter().zip(v).filter(|(p, _)| **p != 0.0).map(|(p, v)| p * v).sum::<f32>() / sum);
            }
            let mut out = [f32::NAN];
            merge(&partial, &lse, sink, &mut out);
            assert!(
                (f64::from(out[0]) - want).abs() < 4e-3 * want.abs(),
                "split {split}: {} for {want}",
                out[0]
            );
        }
    }

    #[test]
    fn nothing_to_attend_gives_zeros_and_nan_stays() {
        let mut masked = [MASKED; 3];
        assert_eq!((soften(&mut masked), masked), ((1.0, MASKED), [0.0; 3]));
        let mut out = [f32::NAN; 2];
        merge(&[0.0, 0.0], &[MASKED], 0.0, &mut out);
        assert_eq!(out, [0.0; 2]);
        merge(&[], &[], f32::NEG_INFINITY, &mut out);
        assert_eq!(out, [0.0; 2]);
        let mut p = [f32::NAN, 1.0];
        let (_, lse) = soften(&mut p);
        merge(&[1.0, 1.0], &[lse], 0.0, &mut out);
        assert!(out[0].is_nan());
    }
}
