//! The arithmetic on the streams themselves: memory-bound sums of a few rows.

use hotseam_sdk::ops::Kernel;
use hotseam_sdk::ops::lanes::{LANES, Lanes};

/// Streams that the views allow.
const MOST: usize = 16;
/// Values of a cache line.
const LINE: usize = 16;

/// `x = sum_i pre[i] * streams[i]`, a chain of fused multiply-adds in the order of the streams.
pub(super) struct Collapse<'a> {
    /// `[hc, hidden]`.
    pub(super) streams: &'a [f32],
    /// `[hc]`.
    pub(super) pre: &'a [f32],
    /// `[hidden]`.
    pub(super) x: &'a mut [f32],
}

impl Kernel for Collapse<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { streams, pre, x } = self;
        // The usual number of streams as a constant, so that loops over them are unrolled.
        if pre.len() == 4 {
            collapse(lanes, 4, streams, pre, x)
        } else {
            collapse(lanes, pre.len(), streams, pre, x)
        }
    }
}

#[inline(always)]
fn collapse<L: Lanes>(lanes: L, hc: usize, streams: &[f32], pre: &[f32], x: &mut [f32]) {
    let hidden = x.len();
    assert!(streams.len() == hc * hidden && pre.len() == hc, "whole streams");
    let pre = &pre[..hc];
    let whole = hidden / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: eight columns from `at` on are inside every stream and `x`.
        unsafe {
            let from = streams.as_ptr().add(at);
            let mut sum = lanes.mul(lanes.splat(pre[0]), lanes.load(from));
            for (i, pre) in pre.iter().enumerate().skip(1) {
                sum = lanes.fma(lanes.splat(*pre), lanes.load(from.add(i * hidden)), sum);
            }
            lanes.store(sum, x.as_mut_ptr().add(at));
        }
    }
    for at in whole..hidden {
        let rest = (1..hc).fold(pre[0] * streams[at], |sum, i| pre[i].mul_add(streams[i * hidden + at], sum));
        x[at] = rest;
    }
}

/// `streams[k] = post[k] * f + sum_i comb[i, k] * streams[i]` in place; the chain starts with `f`.
pub(super) struct Mix<'a> {
    /// `[hc, hidden]`.
    pub(super) streams: &'a mut [f32],
    /// `[hidden]`.
    pub(super) f: &'a [f32],
    /// `[hc]`.
    pub(super) post: &'a [f32],
    /// `[hc, hc]`.
    pub(super) comb: &'a [f32],
}

impl Kernel for Mix<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        if self.post.len() == 4 { mix(lanes, 4, self) } else { mix(lanes, self.post.len(), self) }
    }
}

/// Asks for the cache line at `at`, which may lie outside of all memory. Rows follow each other, but a row is too short
/// for the processor to see that.
#[inline(always)]
fn prefetch(at: *const f32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[inline(always)]
fn mix<L: Lanes>(lanes: L, hc: usize, m: Mix<'_>) {
    let hidden = m.f.len();
    let sizes = m.streams.len() == hc * hidden && m.post.len() == hc && m.comb.len() == hc * hc && hc <= MOST;
    assert!(sizes, "whole streams, a gate and a row of the mix for each");
    let whole = hidden / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: eight columns from `at` on are inside every stream and `f`.
        unsafe {
            let streams = m.streams.as_mut_ptr().add(at);
            if at.is_multiple_of(LINE) {
                (0..hc).for_each(|i| prefetch(streams.wrapping_add((hc + i) * hidden)));
            }
            let mut old = [lanes.splat(0.0); MOST];
            for (i, old) in old.iter_mut().enumerate().take(hc) {
                *old = lanes.load(streams.add(i * hidden));
            }
            let f = lanes.load(m.f.as_ptr().add(at));
            for k in 0..hc {
                let mut sum = lanes.mul(lanes.splat(m.post[k]), f);
                for (i, old) in old.iter().enumerate().take(hc) {
                    sum = lanes.fma(lanes.splat(m.comb[i * hc + k]), *old, sum);
                }
                lanes.store(sum, streams.add(k * hidden));
            }
        }
    }
    for at in whole..hidden {
        let mut old = [0.0f32; MOST];
        (0..hc).for_each(|i| old[i] = m.streams[i * hidden + at]);
        for k in 0..hc {
            let start = m.post[k] * m.f[at];
            m.streams[k * hidden + at] =
                (0..hc).fold(start, |sum, i| m.comb[i * hc + k].mul_add(old[i], sum));
        }
    }
}
