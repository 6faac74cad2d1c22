//! The products of attention over decoded entries: scores, the softmax, and the weighted sum.
//!
//! All heads share the entries, so both products are matrix products of `heads` rows. They go over blocks of entries that
//! fit the L2 cache, and in a block over register tiles of 12 accumulators: enough to hide the latency of the multiply-add,
//! and few enough that none of the 16 registers spills.

use hotseam_sdk::ops::lanes::{LANES, Lanes};
use hotseam_sdk::ops::{Kernel, exp};

/// Entries that are scored and summed together: with 512 dimensions 128 KiB, so that a block stays in the L2 cache.
pub(super) const BLOCK: usize = 64;
/// Entries of a tile of scores.
const KEYS: usize = 3;
/// Heads of a tile of scores.
const HEADS: usize = 4;

/// Decoded entries.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) values: &'a [f32],
    /// First value of each entry.
    pub(super) offsets: &'a [usize],
}

impl<'a> Keys<'a> {
    /// Refuses offsets whose entries of `dim` values end outside the values.
    #[inline(always)]
    fn check(&self, dim: usize) {
        let inside = self.offsets.iter().all(|offset| offset + dim <= self.values.len());
        assert!(inside, "an entry lies outside the {} values", self.values.len());
    }

    /// Entry `j`.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn at(&self, j: usize) -> *const f32 {
        // SAFETY: the caller's contract; offsets were checked.
        unsafe { self.values.as_ptr().add(*self.offsets.get_unchecked(j)) }
    }

    /// A range of the entries.
    pub(super) fn range(&self, range: std::ops::Range<usize>) -> Keys<'a> {
        Keys { offsets: &self.offsets[range], ..*self }
    }
}

/// Asks for the line at an address, which need not be readable.
#[inline(always)]
fn prefetch(at: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Distance of decoded entries: a line more than they need, because with a power of two all of them would fall into the
/// same few sets of the caches.
pub(super) fn stride(dim: usize) -> usize {
    dim.next_multiple_of(LANES) + 2 * LANES
}

/// `out[h, j] = q[h] . key j`, each summed as [`hotseam_sdk::ops::dot`] sums.
pub(super) struct Scores<'a> {
    /// `[heads, dim]`, scaled.
    pub(super) q: &'a [f32],
    pub(super) dim: usize,
    pub(super) keys: Keys<'a>,
    /// `[heads, keys]`.
    pub(super) out: &'a mut [f32],
}

impl Kernel for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let (n, heads) = (self.keys.offsets.len(), self.q.len() / self.dim.max(1));
        self.keys.check(self.dim);
        assert!(self.q.len() == heads * self.dim && self.out.len() == heads * n, "whole heads");
        let mut head = 0;
        while head + HEADS <= heads {
            self.heads::<L, HEADS>(lanes, head);
            head += HEADS;
        }
        while head < heads {
            self.heads::<L, 1>(lanes, head);
            head += 1;
        }
    }
}

impl Scores<'_> {
    /// `N` heads against all keys: their queries stay in the L1 cache.
    #[inline(always)]
    fn heads<L: Lanes, const N: usize>(&mut self, lanes: L, head: usize) {
        let n = self.keys.offsets.len();
        let mut key = 0;
        while key + KEYS <= n {
            self.tile::<L, KEYS, N>(lanes, key, head);
            key += KEYS;
        }
        while key < n {
            self.tile::<L, 1, N>(lanes, key, head);
            key += 1;
        }
    }

    /// `M` keys against `N` heads.
    #[inline(always)]
    fn tile<L: Lanes, const M: usize, const N: usize>(&mut self, lanes: L, key: usize, head: usize) {
        let (dim, n) = (self.dim, self.keys.offsets.len());
        let mut sums = [[lanes.splat(0.0); N]; M];
        // SAFETY: `run` checked that keys and heads have `dim` values, and that there is a place for each result.
        unsafe {
            let keys: [*const f32; M] = std::array::from_fn(|m| self.keys.at(key + m));
            let q: [*const f32; N] = std::array::from_fn(|h| self.q.as_ptr().add((head + h) * dim));
            let whole = dim / LANES * LANES;
            let mut d = 0;
            while d < whole {
                let keys: [L::V; M] = std::array::from_fn(|m| lanes.load(keys[m].add(d)));
                for h in 0..N {
                    let q = lanes.load(q[h].add(d));
                    for m in 0..M {
                        sums[m][h] = lanes.fma(q, keys[m], sums[m][h]);
                    }
                }
                d += LANES;
            }
            if whole < dim {
                let tail = |at: *const f32| {
                    let mut padded = [0.0; LANES];
                    std::ptr::copy_nonoverlapping(at.add(whole), padded.as_mut_ptr(), dim - whole);
                    lanes.get(&padded)
                };
                for m in 0..M {
                    let key = tail(keys[m]);
                    for h in 0..N {
                        sums[m][h] = lanes.fma(tail(q[h]), key, sums[m][h]);
                    }
                }
            }
            for (m, sums) in sums.iter().enumerate() {
                let out = self.out.as_mut_ptr().add(head * n + key + m);
                match sums.as_chunks::<4>() {
                    ([four], []) => {
                        for (h, sum) in lanes.sum4(*four).into_iter().enumerate() {
                            *out.add(h * n) = sum;
                        }
                    }
                    _ => {
                        for (h, sum) in sums.iter().enumerate() {
                            *out.add(h * n) = lanes.sum(*sum);
                        }
                    }
                }
            }
        }
    }
}

/// Turns scores into exponentials relative to the largest of a head, the sink included, and gives the factor that makes
/// them weights: one over their sum, the sink included. Without keys the factor is 0.
pub(super) struct Softmax<'a> {
    /// `[heads, keys]`.
    pub(super) scores: &'a mut [f32],
    /// `[heads]`.
    pub(super) sinks: &'a [f32],
    /// `[heads]`.
    pub(super) factors: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let n = self.scores.len() / self.sinks.len().max(1);
        if n == 0 {
            return self.factors.fill(0.0);
        }
        for ((scores, sink), factor) in self.scores.chunks_exact_mut(n).zip(self.sinks).zip(self.factors) {
            let most = greatest(lanes, scores, *sink);
            let mut last = [f32::NEG_INFINITY; LANES];
            last[0] = *sink;
            let total = exponentials(lanes, scores, most, lanes.splat(0.0));
            let total = exponentials(lanes, &mut last, most, total);
            *factor = 1.0 / lanes.sum(total);
        }
    }
}

/// The greatest of `start` and the values; NaN are skipped.
#[inline(always)]
fn greatest<L: Lanes>(lanes: L, x: &[f32], start: f32) -> f32 {
    let (eights, rest) = x.as_chunks::<LANES>();
    let mut most = lanes.splat(start);
    for x in eights {
        most = lanes.max(lanes.get(x), most);
    }
    let mut last = [start; LANES];
    lanes.put(most, &mut last);
    last.iter().chain(rest).fold(start, |most, x| if *x > most { *x } else { most })
}

/// Replaces each value by `exp(value - most)`; returns `sum` plus them, lane by lane.
#[inline(always)]
fn exponentials<L: Lanes>(lanes: L, x: &mut [f32], most: f32, mut sum: L::V) -> L::V {
    let minus = lanes.splat(-most);
    let (eights, rest) = x.as_chunks_mut::<LANES>();
    for x in eights {
        let e = exp(lanes, lanes.add(lanes.get(x), minus));
        lanes.put(e, x);
        sum = lanes.add(e, sum);
    }
    if !rest.is_empty() {
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        let e = exp(lanes, lanes.add(lanes.get(&last), minus));
        lanes.put(e, &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
        sum = lanes.add(e, sum);
    }
    sum
}

/// `sums[h, c] += sum of weights[h, first + j] * entry j [channel + c]`, each channel a chain of fused multiply-adds in the
/// order of the entries.
pub(super) struct WeightedSum<'a> {
    pub(super) keys: Keys<'a>,
    /// `[heads, width]`.
    pub(super) weights: &'a [f32],
    pub(super) width: usize,
    /// Weight of entry 0.
    pub(super) first: usize,
    /// First channel.
    pub(super) channel: usize,
    /// `[heads, channels]`.
    pub(super) sums: &'a mut [f32],
}

impl Kernel for WeightedSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let (n, heads) = (self.keys.offsets.len(), self.weights.len() / self.width.max(1));
        if n == 0 || heads == 0 {
            return;
        }
        let channels = self.sums.len() / heads;
        self.keys.check(self.channel + channels);
        assert!(self.first + n <= self.width && self.weights.len() == heads * self.width, "a weight each");
        assert!(self.sums.len() == heads * channels, "whole heads");
        for block in (0..n).step_by(BLOCK) {
            let block = block..n.min(block + BLOCK);
            let mut c = 0;
            while c + 2 * LANES <= channels {
                self.vectors::<L, 2>(lanes, block.clone(), c, channels, heads);
                c += 2 * LANES;
            }
            if c + LANES <= channels {
                self.vectors::<L, 1>(lanes, block.clone(), c, channels, heads);
                c += LANES;
            }
            for h in 0..heads {
                for c in c..channels {
                    let sum = &mut self.sums[h * channels + c];
                    for j in block.clone() {
                        let weight = self.weights[h * self.width + self.first + j];
                        *sum =
                            weight.mul_add(self.keys.values[self.keys.offsets[j] + self.channel + c], *sum);
                    }
                }
            }
        }
    }
}

impl WeightedSum<'_> {
    /// `8 N` channels of all heads over a block.
    #[inline(always)]
    fn vectors<L: Lanes, const N: usize>(
        &mut self,
        lanes: L,
        block: std::ops::Range<usize>,
        c: usize,
        channels: usize,
        heads: usize,
    ) {
        let mut head = 0;
        while head < heads {
            // Eight heads are two tiles of four rather than one of six and two of one.
            head += match heads - head {
                8 | 4 | 5 => self.tile::<L, 4, N>(lanes, block.clone(), head, c, channels),
                6.. => self.tile::<L, 6, N>(lanes, block.clone(), head, c, channels),
                _ => self.tile::<L, 1, N>(lanes, block.clone(), head, c, channels),
            };
        }
    }

    /// `M` heads times `8 N` channels in registers; returns `M`.
    #[inline(always)]
    fn tile<L: Lanes, const M: usize, const N: usize>(
        &mut self,
        lanes: L,
        block: std::ops::Range<usize>,
        head: usize,
        c: usize,
        channels: usize,
    ) -> usize {
        // SAFETY: `run` checked that every entry has the channels, that every head has a weight for each entry and sums
        // for each channel; the tile lies within both.
        unsafe {
            let places: [*mut f32; M] =
                std::array::from_fn(|m| self.sums.as_mut_ptr().add((head + m) * channels + c));
            let mut sums: [[L::V; N]; M] =
                std::array::from_fn(|m| std::array::from_fn(|v| lanes.load(places[m].add(v * LANES))));
            let weights: [*const f32; M] =
                std::array::from_fn(|m| self.weights.as_ptr().add((head + m) * self.width + self.first));
            for j in block {
                let entry = self.keys.at(j).add(self.channel + c);
                if head == 0 {
                    // The next channels: no processor guesses a walk down the entries.
                    prefetch(entry.wrapping_add(2 * N * LANES));
                }
                let values: [L::V; N] = std::array::from_fn(|v| lanes.load(entry.add(v * LANES)));
                for m in 0..M {
                    let weight = lanes.splat(*weights[m].add(j));
                    for v in 0..N {
                        sums[m][v] = lanes.fma(weight, values[v], sums[m][v]);
                    }
                }
            }
            for (place, sums) in places.iter().zip(sums) {
                for (v, sum) in sums.into_iter().enumerate() {
                    lanes.store(sum, place.add(v * LANES));
                }
            }
        }
        M
    }
}
