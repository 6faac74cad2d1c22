//! The products of attention: scores of the window, the softmax, and the weighted sum of entries.

use hotseam_sdk::ops::lanes::{LANES, Lanes};
use hotseam_sdk::ops::{Kernel, exp};

/// Keys of a score tile: two vectors.
const TILE: usize = 2 * LANES;
/// Heads of a register tile: with two vectors 8 accumulators, enough to hide the latency of the multiply-add.
const HEADS: usize = 4;

/// Entries of a pool.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) pool: &'a [f32],
    /// First element of each entry.
    pub(super) offsets: &'a [usize],
}

impl Keys<'_> {
    /// Refuses offsets whose entries of `dim` values end outside the pool.
    #[inline(always)]
    fn check(&self, dim: usize) {
        let inside = self.offsets.iter().all(|offset| offset + dim <= self.pool.len());
        assert!(inside, "an entry lies outside its pool of {} values", self.pool.len());
    }
}

/// Weights of a head for `keys` window entries, padded to whole tiles.
pub(super) fn padded_width(keys: usize) -> usize {
    keys.next_multiple_of(TILE)
}

/// Row length of a panel of `keys` keys: a tile may start at any of them.
pub(super) fn panel_stride(keys: usize) -> usize {
    keys + TILE
}

/// Fills `panel [dim, stride]` with key `j` as column `j`; other columns keep what they held.
pub(super) fn fill_panel(keys: Keys<'_>, dim: usize, stride: usize, panel: &mut [f32]) {
    let mut column = 0;
    let (fours, rest) = keys.offsets.as_chunks::<4>();
    for [a, b, c, d] in fours {
        let row = |offset: &usize| keys.pool[*offset..offset + dim].as_chunks::<4>();
        let ((a, a_rest), (b, b_rest), (c, c_rest), (d, d_rest)) = (row(a), row(b), row(c), row(d));
        let mut lines = panel[column..].chunks_mut(stride);
        for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
            // The square comes first: a zip takes from its left side before it finds its right side empty.
            for (four, line) in transposed([*a, *b, *c, *d]).iter().zip(lines.by_ref()) {
                line[..4].copy_from_slice(four);
            }
        }
        for ((((a, b), c), d), line) in a_rest.iter().zip(b_rest).zip(c_rest).zip(d_rest).zip(lines) {
            line[..4].copy_from_slice(&[*a, *b, *c, *d]);
        }
        column += 4;
    }
    for offset in rest {
        for (value, line) in keys.pool[*offset..offset + dim].iter().zip(panel.chunks_exact_mut(stride)) {
            line[column] = *value;
        }
        column += 1;
    }
}

/// The square with rows and columns exchanged.
#[inline(always)]
fn transposed(square: [[f32; 4]; 4]) -> [[f32; 4]; 4] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128, _MM_TRANSPOSE4_PS};
        // SAFETY: four f32 and a vector of four f32 have the same size and any bits are valid; SSE is part of x86-64.
        unsafe {
            let [mut a, mut b, mut c, mut d] = std::mem::transmute::<[[f32; 4]; 4], [__m128; 4]>(square);
            _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
            std::mem::transmute::<[__m128; 4], [[f32; 4]; 4]>([a, b, c, d])
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::array::from_fn(|i| std::array::from_fn(|j| square[j][i]))
}

/// `out[h, j] = q[h] . key j`, each a chain of fused multiply-adds over the channels, and minus infinity in the padding.
pub(super) struct NearScores<'a> {
    /// `[heads, dim]`, scaled.
    pub(super) q: &'a [f32],
    pub(super) dim: usize,
    /// Panel from the first key on: `[dim, stride]` less the columns before it.
    pub(super) panel: &'a [f32],
    pub(super) stride: usize,
    /// Number of keys.
    pub(super) keys: usize,
    /// `[heads, padded_width(keys)]`.
    pub(super) out: &'a mut [f32],
}

impl Kernel for NearScores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let width = padded_width(self.keys);
        let heads = self.q.len() / self.dim;
        assert!(self.out.len() == heads * width, "room for the scores");
        // The last tile reads a full tile of columns of the last channel.
        assert!(self.keys == 0 || (self.dim - 1) * self.stride + width <= self.panel.len(), "a whole panel");
        for first in (0..width).step_by(TILE) {
            let mut head = 0;
            while head + HEADS <= heads {
                self.tile::<L, HEADS>(lanes, head, first, width);
                head += HEADS;
            }
            while head < heads {
                self.tile::<L, 1>(lanes, head, first, width);
                head += 1;
            }
        }
        for scores in self.out.chunks_exact_mut(width.max(1)) {
            scores[self.keys..].fill(f32::NEG_INFINITY);
        }
    }
}

impl NearScores<'_> {
    /// `M` heads against the tile of keys at `first`.
    #[inline(always)]
    fn tile<L: Lanes, const M: usize>(&mut self, lanes: L, head: usize, first: usize, width: usize) {
        let mut sums = [[lanes.splat(0.0); 2]; M];
        // SAFETY: `run` checked panel and output; heads `head .. head + M` are in `q`.
        unsafe {
            let q = self.q.as_ptr().add(head * self.dim);
            let mut keys = self.panel.as_ptr().add(first);
            for d in 0..self.dim {
                let (a, b) = (lanes.load(keys), lanes.load(keys.add(LANES)));
                for (m, sums) in sums.iter_mut().enumerate() {
                    let q = lanes.splat(*q.add(m * self.dim + d));
                    sums[0] = lanes.fma(q, a, sums[0]);
                    sums[1] = lanes.fma(q, b, sums[1]);
                }
                keys = keys.wrapping_add(self.stride);
            }
            for (m, sums) in sums.iter().enumerate() {
                let out = self.out.as_mut_ptr().add((head + m) * width + first);
                lanes.store(sums[0], out);
                lanes.store(sums[1], out.add(LANES));
            }
        }
    }
}

/// Turns scores into exponentials relative to the largest of a head, the sink included, and gives the factor that makes
/// them weights: one over their sum, the sink included. Without keys the factor is 0.
pub(super) struct Softmax<'a> {
    /// `[heads, padded width]`.
    pub(super) near: &'a mut [f32],
    /// `[heads, keys]`.
    pub(super) far: &'a mut [f32],
    /// `[heads]`.
    pub(super) sinks: &'a [f32],
    /// `[heads]`.
    pub(super) factors: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let heads = self.sinks.len();
        let (near, far) = (self.near.len() / heads.max(1), self.far.len() / heads.max(1));
        for (h, (sink, factor)) in self.sinks.iter().zip(self.factors).enumerate() {
            if near + far == 0 {
                *factor = 0.0;
                continue;
            }
            let near = &mut self.near[h * near..(h + 1) * near];
            let far = &mut self.far[h * far..(h + 1) * far];
            let most = greatest(lanes, near, greatest(lanes, far, *sink));
            let mut sum = [0.0; LANES];
            lanes.put(
                exponentials(lanes, far, most, exponentials(lanes, near, most, lanes.splat(0.0))),
                &mut sum,
            );
            let mut last = [f32::NEG_INFINITY; LANES];
            last[0] = *sink;
            let mut total = lanes.get(&sum);
            total = exponentials(lanes, &mut last, most, total);
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

/// `out[h] = factors[h] * (sum over the window, then over the far entries, of weights[h, j] * entry j)`, each channel a
/// chain of fused multiply-adds.
pub(super) struct WeightedSum<'a> {
    pub(super) near: Keys<'a>,
    /// `[heads, padded width]`.
    pub(super) near_weights: &'a [f32],
    pub(super) far: Keys<'a>,
    /// `[heads, keys]`.
    pub(super) far_weights: &'a [f32],
    /// `[heads]`.
    pub(super) factors: &'a [f32],
    pub(super) dim: usize,
    /// `[heads, dim]`.
    pub(super) out: &'a mut [f32],
}

impl Kernel for WeightedSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let (heads, dim) = (self.factors.len(), self.dim);
        self.near.check(dim);
        self.far.check(dim);
        let width = padded_width(self.near.offsets.len());
        assert!(self.near_weights.len() == heads * width && self.out.len() == heads * dim, "whole rows");
        assert!(self.far_weights.len() == heads * self.far.offsets.len(), "a weight for each far entry");
        let mut channel = 0;
        while channel + TILE <= dim {
            self.channels::<L, 2>(lanes, channel);
            channel += TILE;
        }
        while channel + LANES <= dim {
            self.channels::<L, 1>(lanes, channel);
            channel += LANES;
        }
        for h in 0..heads {
            for c in channel..dim {
                let mut sum = 0.0f32;
                for (j, offset) in self.near.offsets.iter().enumerate() {
                    sum = self.near_weights[h * width + j].mul_add(self.near.pool[offset + c], sum);
                }
                for (j, offset) in self.far.offsets.iter().enumerate() {
                    let weight = self.far_weights[h * self.far.offsets.len() + j];
                    sum = weight.mul_add(self.far.pool[offset + c], sum);
                }
                self.out[h * dim + c] = sum * self.factors[h];
            }
        }
    }
}

impl WeightedSum<'_> {
    /// `8 N` channels of all heads.
    #[inline(always)]
    fn channels<L: Lanes, const N: usize>(&mut self, lanes: L, channel: usize) {
        let heads = self.factors.len();
        let mut head = 0;
        while head + HEADS <= heads {
            self.tile::<L, HEADS, N>(lanes, head, channel);
            head += HEADS;
        }
        while head < heads {
            self.tile::<L, 1, N>(lanes, head, channel);
            head += 1;
        }
    }

    /// `M` heads times `8 N` channels in registers.
    #[inline(always)]
    fn tile<L: Lanes, const M: usize, const N: usize>(&mut self, lanes: L, head: usize, channel: usize) {
        let mut sums = [[lanes.splat(0.0); N]; M];
        let (width, far) = (padded_width(self.near.offsets.len()), self.far.offsets.len());
        // SAFETY: `run` checked that every entry has `dim` values inside its pool, and that weights and output have all
        // heads; the tile lies within `dim` channels and the heads.
        unsafe {
            let weights = self.near_weights.as_ptr().add(head * width);
            add_entries(lanes, self.near, weights, width, channel, &mut sums);
            let weights = self.far_weights.as_ptr().wrapping_add(head * far);
            add_entries(lanes, self.far, weights, far, channel, &mut sums);
            for (m, sums) in sums.iter().enumerate() {
                let factor = lanes.splat(self.factors[head + m]);
                let out = self.out.as_mut_ptr().add((head + m) * self.dim + channel);
                for (c, sum) in sums.iter().enumerate() {
                    lanes.store(lanes.mul(*sum, factor), out.add(c * LANES));
                }
            }
        }
    }
}

/// Adds `weight * entry` for every entry to `M x N` sums.
///
/// # Safety
/// Every entry has `8 N` values from `channel` on; `weights` holds `M` rows that start every `stride` values, with a
/// weight for every entry.
#[inline(always)]
unsafe fn add_entries<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    keys: Keys<'_>,
    weights: *const f32,
    stride: usize,
    channel: usize,
    sums: &mut [[L::V; N]; M],
) {
    let pool = keys.pool.as_ptr().wrapping_add(channel);
    for (j, offset) in keys.offsets.iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let entry = pool.wrapping_add(*offset);
            let mut values = [lanes.splat(0.0); N];
            for (c, value) in values.iter_mut().enumerate() {
                *value = lanes.load(entry.add(c * LANES));
            }
            for (m, sums) in sums.iter_mut().enumerate() {
                let weight = lanes.splat(*weights.add(m * stride + j));
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = lanes.fma(weight, value, *sum);
                }
            }
        }
    }
}
