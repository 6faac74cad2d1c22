//! The two products of attention over gathered rows: several heads against rows of a pool given by offsets.
//!
//! All heads read the same rows (one key head), so rows are taken a few at a time and used for every head while
//! they are in the cache. Each result has its own fixed order: it does not depend on the other heads or rows.
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed in two arrays at once")]

use crate::isa::{Kernel, dispatch};
use crate::lanes::{LANES, Lanes};
use crate::linear::tile::{for_row_tiles, strided, tile};

/// Bytes of rows that are accumulated for all heads before the next rows: they stay in the L1 cache meanwhile.
const BLOCK_BYTES: usize = 24 * 1024;
/// Heads of a register tile.
const HEADS: usize = 4;

/// `out[h, j] = q[h] . pool[offsets[j]..][..d]` for `q [heads, d]` and `out [heads, offsets.len()]`; each result
/// has the bits of [`crate::dot`].
///
/// # Panics
/// If a length does not match, or a row ends outside the pool.
pub fn gather_scores(q: &[f32], heads: usize, d: usize, pool: &[f32], offsets: &[usize], out: &mut [f32]) {
    check("gather_scores", ("q", q.len()), ("out", out.len()), heads, d, pool.len(), offsets);
    dispatch(Scores { q, heads, d, pool, offsets, out });
}

/// `out[h] += sum over j of p[h, j] * pool[offsets[j]..][..d]` for `p [heads, offsets.len()]` and
/// `out [heads, d]`. Each channel takes one fused multiply-add per row, in the order of `offsets`.
///
/// # Panics
/// If a length does not match, or a row ends outside the pool.
pub fn gather_accumulate(
    p: &[f32],
    heads: usize,
    d: usize,
    pool: &[f32],
    offsets: &[usize],
    out: &mut [f32],
) {
    check("gather_accumulate", ("out", out.len()), ("p", p.len()), heads, d, pool.len(), offsets);
    dispatch(Accumulate { p, heads, d, pool, offsets, out });
}

/// Checks one argument of shape `[heads, d]`, one of shape `[heads, offsets.len()]`, and the offsets.
fn check(
    name: &str,
    wide: (&str, usize),
    scores: (&str, usize),
    heads: usize,
    d: usize,
    pool: usize,
    offsets: &[usize],
) {
    let n = offsets.len();
    assert_eq!(wide.1, heads.saturating_mul(d), "{name}: length of {} for [heads {heads}, d {d}]", wide.0);
    assert_eq!(
        scores.1,
        heads.saturating_mul(n),
        "{name}: length of {} for [heads {heads}, n {n}]",
        scores.0
    );
    for (j, &offset) in offsets.iter().enumerate() {
        let inside = d <= pool && offset <= pool - d;
        assert!(
            inside,
            "{name}: offset {j} is {offset}, a row of {d} values ends outside the pool of {pool}"
        );
    }
}

struct Scores<'a> {
    q: &'a [f32],
    heads: usize,
    d: usize,
    pool: &'a [f32],
    offsets: &'a [usize],
    out: &'a mut [f32],
}

impl Kernel for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        for_row_tiles!(key in 0, self.offsets.len(), threes: true; M => self.keys::<L, M>(lanes, key));
    }
}

impl Scores<'_> {
    /// `M` keys against all heads.
    #[inline(always)]
    fn keys<L: Lanes, const M: usize>(&mut self, lanes: L, key: usize) {
        let mut rows = [self.pool.as_ptr(); M];
        for (row, &offset) in rows.iter_mut().zip(&self.offsets[key..key + M]) {
            *row = self.pool[offset..].as_ptr();
        }
        let mut head = 0;
        while head + HEADS <= self.heads {
            self.tile::<L, M, HEADS>(lanes, rows, key, head);
            head += HEADS;
        }
        while head < self.heads {
            self.tile::<L, M, 1>(lanes, rows, key, head);
            head += 1;
        }
    }

    /// `M` keys against `N` heads.
    #[inline(always)]
    fn tile<L: Lanes, const M: usize, const N: usize>(
        &mut self,
        lanes: L,
        rows: [*const f32; M],
        key: usize,
        head: usize,
    ) {
        let n = self.offsets.len();
        // SAFETY: `gather_scores` checked that `q` and `out` have all heads and that every row lies in the pool.
        unsafe {
            let q = strided::<f32, N>(self.q.as_ptr().add(head * self.d), self.d);
            let scores = tile(lanes, rows, q, self.d);
            let out = self.out.as_mut_ptr().add(head * n + key);
            for j in 0..N {
                for (m, scores) in scores.iter().enumerate() {
                    *out.add(j * n + m) = scores[j];
                }
            }
        }
    }
}

struct Accumulate<'a> {
    p: &'a [f32],
    heads: usize,
    d: usize,
    pool: &'a [f32],
    offsets: &'a [usize],
    out: &'a mut [f32],
}

impl Kernel for Accumulate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let block = (BLOCK_BYTES / size_of::<f32>() / self.d.max(1)).clamp(8, 64);
        for first in (0..self.offsets.len()).step_by(block) {
            let rows = first..self.offsets.len().min(first + block);
            let mut head = 0;
            while head + HEADS <= self.heads {
                self.heads::<L, HEADS>(lanes, head, rows.clone());
                head += HEADS;
            }
            while head < self.heads {
                self.heads::<L, 1>(lanes, head, rows.clone());
                head += 1;
            }
        }
    }
}

impl Accumulate<'_> {
    /// All channels of `M` heads over a block of rows.
    #[inline(always)]
    fn heads<L: Lanes, const M: usize>(&mut self, lanes: L, head: usize, rows: std::ops::Range<usize>) {
        let vectors = self.d / LANES;
        // Two vectors for four heads: three would need all sixteen registers, and compilers then move values about.
        for v in (0..vectors - vectors % 2).step_by(2) {
            self.tile::<L, M, 2>(lanes, head, v * LANES, rows.clone());
        }
        if vectors % 2 == 1 {
            self.tile::<L, M, 1>(lanes, head, (vectors - 1) * LANES, rows.clone());
        }
        for head in head..head + M {
            for channel in vectors * LANES..self.d {
                let sum = &mut self.out[head * self.d + channel];
                for j in rows.clone() {
                    *sum = self.p[head * self.offsets.len() + j]
                        .mul_add(self.pool[self.offsets[j] + channel], *sum);
                }
            }
        }
    }

    /// `M` heads times `8 N` channels in registers.
    #[inline(always)]
    fn tile<L: Lanes, const M: usize, const N: usize>(
        &mut self,
        lanes: L,
        head: usize,
        channel: usize,
        rows: std::ops::Range<usize>,
    ) {
        let n = self.offsets.len();
        let mut sums = [[lanes.splat(0.0); N]; M];
        // SAFETY: `gather_accumulate` checked that `p` and `out` have all heads and that every row lies in the
        // pool; the caller keeps `channel + 8 N` within the row.
        unsafe {
            let p = strided::<f32, M>(self.p.as_ptr().add(head * n), n);
            let out = self.out.as_mut_ptr().add(head * self.d + channel);
            for m in 0..M {
                for c in 0..N {
                    sums[m][c] = lanes.load(out.add(m * self.d + c * LANES));
                }
            }
            let (pool, offsets) = (self.pool.as_ptr().add(channel), self.offsets.as_ptr());
            let (mut j, end) = (rows.start, rows.end);
            while j < end {
                let row = pool.add(*offsets.add(j));
                let mut values = [lanes.splat(0.0); N];
                for c in 0..N {
                    values[c] = lanes.load(row.add(c * LANES));
                }
                for m in 0..M {
                    let weight = lanes.splat(*p[m].add(j));
                    for c in 0..N {
                        sums[m][c] = lanes.fma(weight, values[c], sums[m][c]);
                    }
                }
                j += 1;
            }
            for m in 0..M {
                for c in 0..N {
                    lanes.store(sums[m][c], out.add(m * self.d + c * LANES));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::testing::{Random, bits};
    use crate::{axpy, dot};

    /// Heads, channels and rows around every tile edge.
    fn cases() -> impl Iterator<Item = (usize, usize, usize)> {
        [0, 1, 3, 4, 5, 8].into_iter().flat_map(|heads| {
            [0, 1, 7, 8, 24, 33, 64]
                .into_iter()
                .flat_map(move |d| [0, 1, 2, 3, 4, 15, 16, 17, 35].into_iter().map(move |n| (heads, d, n)))
        })
    }

    #[test]
    fn scores_have_the_bits_of_dot() {
        let mut random = Random::new(11);
        for (heads, d, n) in cases() {
            let pool = random.normals(64 * 70 + d);
            let offsets: Vec<usize> = (0..n).map(|_| random.below(64 * 70)).collect();
            let q = random.normals(heads * d);
            let expected: Vec<f32> = (0..heads * n)
                .map(|i| {
                    let (head, at) = (i / n, offsets[i % n]);
                    dot(&q[head * d..][..d], &pool[at..][..d])
                })
                .collect();
            let mut fast = vec![f32::NAN; heads * n];
            gather_scores(&q, heads, d, &pool, &offsets, &mut fast);
            assert_eq!(bits(&fast), bits(&expected), "heads {heads}, d {d}, n {n}");
            for (isa, run) in Isa::all() {
                let mut out = vec![f32::NAN; heads * n];
                run.run(Scores { q: &q, heads, d, pool: &pool, offsets: &offsets, out: &mut out });
                assert_eq!(bits(&out), bits(&expected), "{isa}, heads {heads}, d {d}, n {n}");
            }
        }
    }

    #[test]
    fn accumulation_has_the_bits_of_axpy_row_by_row() {
        let mut random = Random::new(12);
        for (heads, d, n) in cases() {
            let pool = random.normals(64 * 70 + d);
            let offsets: Vec<usize> = (0..n).map(|_| random.below(64 * 70)).collect();
            let p = random.normals(heads * n);
            let start = random.normals(heads * d);
            let mut expected = start.clone();
            for (head, p) in p.chunks(n.max(1)).enumerate() {
                for (&p, &at) in p.iter().zip(&offsets) {
                    axpy(p, &pool[at..][..d], &mut expected[head * d..][..d]);
                }
            }
            let mut fast = start.clone();
            gather_accumulate(&p, heads, d, &pool, &offsets, &mut fast);
            assert_eq!(bits(&fast), bits(&expected), "heads {heads}, d {d}, n {n}");
            for (isa, run) in Isa::all() {
                let mut out = start.clone();
                run.run(Accumulate { p: &p, heads, d, pool: &pool, offsets: &offsets, out: &mut out });
                assert_eq!(bits(&out), bits(&expected), "{isa}, heads {heads}, d {d}, n {n}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "offset 1 is 9, a row of 8 values ends outside the pool of 16")]
    fn an_offset_outside_the_pool_is_named() {
        gather_scores(&[0.0; 8], 1, 8, &[0.0; 16], &[8, 9], &mut [0.0; 2]);
    }
}
