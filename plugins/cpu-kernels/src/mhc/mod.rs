//! Hyper-connections: the gates of the residual streams, the collapse before a block, the mix after it.

mod gates;
mod post;
mod streams;

pub use post::post;

use crate::scratch;
use gates::{GROUP, MixGates, head_gates};
use hotseam_sdk::ops::{Mat, Parallel, Serial, Weight, dispatch, dot, linear};
use hotseam_sdk::views::{MhcHead, MhcPre};
use hotseam_sdk::{Result, SharedMut};
use std::ops::Range;
use streams::Collapse;

/// Bytes of a block of rows: half of a usual L2 cache, because a block is read three times.
const BLOCK_BYTES: usize = 256 * 1024;

/// The mixing product of a block: `(threads, streams [rows, hc * hidden], rows, m [rows, n])`, without the norm, which is
/// a factor per row and is applied to `m` afterwards.
pub type Mixing<'a> = &'a (dyn Fn(&dyn Parallel, &[f32], usize, &mut [f32]) + Sync);

/// `mhc.pre` with an f32 mixing product.
pub fn pre(par: &dyn Parallel, a: &mut MhcPre<'_>) -> Result<()> {
    let weight = Mat { data: Weight::F32(a.fn_weight), n: (2 + a.hc) * a.hc, k: a.hc * a.hidden };
    pre_with(par, a, &|par, streams, rows, m| linear(par, streams, rows, weight, m))
}

/// `mhc.pre` with a mixing product of the caller's.
pub fn pre_with(par: &dyn Parallel, a: &mut MhcPre<'_>, mixing: Mixing<'_>) -> Result<()> {
    let (hc, hidden, n) = (a.hc, a.hidden, a.rows.len());
    let (width, mix) = (hc * hidden, (2 + hc) * hc);
    let gates = MixGates { hc, iters: a.iters, hc_eps: a.hc_eps, base: a.base, scale: a.scale };
    let (x, post, comb) =
        (SharedMut::new(&mut *a.x), SharedMut::new(&mut *a.post), SharedMut::new(&mut *a.comb));
    let (all, norm_eps) = (a.streams, a.norm_eps);
    for_each_block(par, n, width, &|par, rows| {
        let (first, count) = (rows.start, rows.len());
        let streams = &all[first * width..rows.end * width];
        let (mut m, mut pre) = (scratch::lease::<f32>(count * mix), scratch::lease::<f32>(count * hc));
        mixing(par, streams, count, &mut m);
        normalise(streams, &mut m, width, mix, norm_eps);
        // SAFETY: blocks do not overlap.
        let (x, post, comb) = unsafe {
            (
                x.slice(first * hidden..rows.end * hidden),
                post.slice(first * hc..rows.end * hc),
                comb.slice(first * hc * hc..rows.end * hc * hc),
            )
        };
        gates.apply(&m, &mut pre, post, comb);
        for (row, x) in x.chunks_exact_mut(hidden).enumerate() {
            dispatch(Collapse { streams: &streams[row * width..][..width], pre: &pre[row * hc..][..hc], x });
        }
    });
    Ok(())
}

/// `mhc.head`.
pub fn head(par: &dyn Parallel, a: &mut MhcHead<'_>) -> Result<()> {
    let (hc, hidden, n) = (a.hc, a.hidden, a.rows.len());
    let width = hc * hidden;
    let weight = Mat { data: Weight::F32(a.fn_weight), n: hc, k: width };
    let x = SharedMut::new(&mut *a.x);
    let (all, norm_eps) = (a.streams, a.norm_eps);
    let (base, scale, hc_eps) = (a.base, a.scale[0], a.hc_eps);
    for_each_block(par, n, width, &|par, rows| {
        let (first, count) = (rows.start, rows.len());
        let streams = &all[first * width..rows.end * width];
        let mut pre = scratch::lease::<f32>(count * hc);
        linear(par, streams, count, weight, &mut pre);
        normalise(streams, &mut pre, width, hc, norm_eps);
        head_gates(&mut pre, base, scale, hc_eps);
        // SAFETY: blocks do not overlap.
        let x = unsafe { x.slice(first * hidden..rows.end * hidden) };
        for (row, x) in x.chunks_exact_mut(hidden).enumerate() {
            dispatch(Collapse { streams: &streams[row * width..][..width], pre: &pre[row * hc..][..hc], x });
        }
    });
    Ok(())
}

/// Runs `body` over blocks of rows that fit the cache: each on one thread, or, where there are fewer blocks than threads,
/// one after the other with all threads in each.
fn for_each_block(
    par: &dyn Parallel,
    n: usize,
    width: usize,
    body: &(dyn Fn(&dyn Parallel, Range<usize>) + Sync),
) {
    let fits = BLOCK_BYTES / size_of::<f32>() / width;
    let shared = n.div_ceil(par.threads());
    let block = fits.min(shared).clamp(1, 64).next_multiple_of(GROUP);
    let rows = |i: usize| i * block..n.min((i + 1) * block);
    match n.div_ceil(block) {
        few if few < par.threads() => (0..few).for_each(|i| body(par, rows(i))),
        many => par.run(many, 1, &|blocks| blocks.for_each(|i| body(&Serial, rows(i)))),
    }
}

/// Multiplies each row of `m` by `rsqrt(mean(streams^2) + eps)`.
fn normalise(streams: &[f32], m: &mut [f32], width: usize, mix: usize, eps: f32) {
    for (row, m) in streams.chunks_exact(width).zip(m.chunks_exact_mut(mix)) {
        let r = 1.0 / (dot(row, row) / width as f32 + eps).sqrt();
        m.iter_mut().for_each(|m| *m *= r);
    }
}
