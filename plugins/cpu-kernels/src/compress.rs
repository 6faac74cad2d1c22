//! `attention.compress` and `indexer.compress`: one function, because only dimension and layout differ.

use crate::scratch;
use hotseam_sdk::ops::{Parallel, exp_in_place, rms_norm, rope};
use hotseam_sdk::views::{Compress, Source};
use hotseam_sdk::{Error, Result, SharedMut};

/// Source tokens that are worth a thread.
const GRAIN_TOKENS: usize = 128;
/// Rows whose state is worth a thread: a copy each.
const GRAIN_ROWS: usize = 128;

/// Closes groups of tokens into entries, and keeps the rows that later groups need.
///
/// Per channel the sum runs over the sources in their order; absent sources are left out, which gives the bits of a
/// zero that is added. An entry whose sources are all absent is NaN, as the softmax of nothing is.
///
/// # Errors
/// If an entry has no position; nothing is written then.
pub fn compress(par: &dyn Parallel, a: &mut Compress<'_>) -> Result<()> {
    if let Some(entry) = a.entry_positions.iter().position(|position| *position < 0) {
        let position = a.entry_positions[entry];
        return Err(Error::argument(format!("entry_positions[{entry}] is {position}, expected 0 or more")));
    }
    write_entries(par, a);
    write_states(par, a);
    Ok(())
}

fn write_entries(par: &dyn Parallel, a: &mut Compress<'_>) {
    let (dim, width) = (a.dim, a.width());
    let mut pool = a.pool.take();
    {
        let pool = pool.shared();
        let view = &*a;
        par.run(a.n_entries(), (GRAIN_TOKENS / width).max(1), &|entries| {
            let (mut pooled, mut entry) = (scratch::lease::<f32>(dim), scratch::lease::<f32>(dim));
            let mut scores = scratch::lease::<f32>(width * dim);
            for e in entries {
                pool_sources(view, e, &mut scores, &mut pooled);
                rms_norm(&pooled, Some(view.norm_weight), view.norm_eps, &mut entry);
                let (cos, sin) = view.rope.row(view.entry_positions[e] as usize);
                rope(&mut entry, cos, sin, false);
                // SAFETY: slots are distinct by the contract.
                unsafe { pool.encode(view.out_slots[e] as usize, &mut entry) };
            }
        });
    }
    a.pool = pool;
}

/// `out = sum over sources of softmax(score) * kv`, per channel. `scores` has room for `[width, dim]`.
fn pool_sources(a: &Compress<'_>, entry: usize, scores: &mut [f32], out: &mut [f32]) {
    let (dim, channels) = (a.dim, a.channels);
    let present = || (0..a.width()).filter(|i| a.source(entry, *i) != Source::Absent);
    // With overlap the closing group gives the second half of its channels.
    let half = |i: usize| if a.overlap && i >= a.ratio { dim } else { 0 };
    let mut n = 0;
    for (i, scores) in present().zip(scores.chunks_exact_mut(dim)) {
        match a.source(entry, i) {
            Source::Row(row) => {
                let ape = &a.ape[phase(a, row) * channels + half(i)..][..dim];
                add(&a.gate[row * channels + half(i)..][..dim], ape, scores);
            }
            Source::State(row) => {
                scores.copy_from_slice(&a.state[(2 * row + 1) * channels + half(i)..][..dim])
            }
            Source::Absent => {}
        }
        n += 1;
    }
    let scores = &mut scores[..n * dim];
    subtract_max(scores, out);
    exp_in_place(scores);
    let mut sum = scratch::lease::<f32>(dim);
    sum.fill(0.0);
    out.fill(0.0);
    for (i, weights) in present().zip(scores.chunks_exact(dim)) {
        let kv = match a.source(entry, i) {
            Source::Row(row) => &a.kv[row * channels + half(i)..][..dim],
            Source::State(row) => &a.state[2 * row * channels + half(i)..][..dim],
            Source::Absent => continue,
        };
        accumulate(weights, kv, &mut sum, out);
    }
    for (out, sum) in out.iter_mut().zip(&*sum) {
        *out /= sum;
    }
}

/// Place of a row in its group.
fn phase(a: &Compress<'_>, row: usize) -> usize {
    // A padded row is never a source; position 0 keeps the index inside the table.
    a.rows.positions[row].max(0) as usize % a.ratio
}

fn write_states(par: &dyn Parallel, a: &mut Compress<'_>) {
    let channels = a.channels;
    let state = std::mem::take(&mut a.state);
    {
        let rows = SharedMut::new(&mut *state);
        let view = &*a;
        par.run(view.rows.len(), GRAIN_ROWS, &|range| {
            for row in range.filter(|row| view.state_dst[*row] >= 0 && view.rows.positions[*row] >= 0) {
                let at = view.state_dst[row] as usize * 2 * channels;
                // SAFETY: state rows that are written are distinct by the contract.
                let (kv, score) = unsafe { rows.slice(at..at + 2 * channels) }.split_at_mut(channels);
                kv.copy_from_slice(&view.kv[row * channels..][..channels]);
                add(
                    &view.gate[row * channels..][..channels],
                    &view.ape[phase(view, row) * channels..][..channels],
                    score,
                );
            }
        });
    }
    a.state = state;
}

/// `out = a + b`.
fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}

/// Subtracts from each row of `scores [n, most.len()]` the largest value of its column; NaN stay NaN.
fn subtract_max(scores: &mut [f32], most: &mut [f32]) {
    most.fill(f32::NEG_INFINITY);
    for row in scores.chunks_exact(most.len()) {
        for (most, score) in most.iter_mut().zip(row) {
            *most = if *score > *most { *score } else { *most };
        }
    }
    for row in scores.chunks_exact_mut(most.len()) {
        for (score, most) in row.iter_mut().zip(&*most) {
            *score -= *most;
        }
    }
}

/// `sum += weights` and `out += weights * kv`, the latter with two roundings.
fn accumulate(weights: &[f32], kv: &[f32], sum: &mut [f32], out: &mut [f32]) {
    for (((w, kv), sum), out) in weights.iter().zip(kv).zip(sum).zip(out) {
        *sum += w;
        *out += w * kv;
    }
}
