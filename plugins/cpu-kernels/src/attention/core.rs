//! `attention.core`.
//!
//! A row attends its window entries by position, then its compressed entries by number, with one softmax. The order of
//! every sum is that order, so neither the order of `ids` nor the place of the pages matters. Entries are decoded to f32
//! once for a run of rows that follow each other: such rows share nearly all of their window, and while the context is
//! short or attended whole, their compressed entries as well.

use super::products::{BLOCK, Keys, Scores, Softmax, WeightedSum, stride};
use crate::runs::cut;
use crate::scratch::{self, Lease};
use hotseam_sdk::ops::{Parallel, Serial, dispatch};
use hotseam_sdk::views::{Core, Pool};
use hotseam_sdk::{Result, SharedMut};
use std::ops::Range;

/// Most rows of a run.
const ROWS: usize = 16;
/// Entries whose decoding is worth a thread.
const GRAIN: usize = 32;
/// Heads whose softmax is worth a thread.
const GRAIN_HEADS: usize = 4;
/// Channels of a weighted sum that are worth a thread.
const CHANNELS: usize = 64;
/// Products of a row that are worth more than one thread.
const SMALL: usize = 1 << 19;

/// `attention.core`. Padded rows give zeros.
///
/// # Errors
/// None: the view has checked the pools.
pub fn core(par: &dyn Parallel, a: &mut Core<'_>) -> Result<()> {
    let (n, threads) = (a.rows.len(), par.threads());
    let mut ends = scratch::lease::<usize>(n);
    let runs = cut(&a.rows, (n / (2 * threads)).clamp(1, ROWS), &mut ends);
    let run = |i: usize| if i == 0 { 0..ends[0] } else { ends[i - 1]..ends[i] };
    let out = std::mem::take(&mut a.out);
    {
        let shared = SharedMut::new(&mut *out);
        let view = &*a;
        match runs {
            // Fewer runs than threads: the threads share each row instead.
            few if few < threads => (0..few).for_each(|i| attend(par, view, run(i), &shared)),
            many => par.run(many, 1, &|runs| runs.for_each(|i| attend(&Serial, view, run(i), &shared))),
        }
    }
    a.out = out;
    Ok(())
}

/// A run of rows; writes only their outputs.
fn attend(par: &dyn Parallel, a: &Core<'_>, rows: Range<usize>, out: &SharedMut<'_, f32>) {
    let width = a.heads * a.dim;
    // SAFETY: runs do not overlap.
    let out_of = |row: usize| unsafe { out.slice(row * width..(row + 1) * width) };
    if a.rows.positions[rows.start] < 0 {
        rows.for_each(|row| out_of(row).fill(0.0));
        return;
    }
    let (last, seq) = (rows.end - 1, a.rows.seq(rows.start));
    let most = a.window + a.ids_of(last).map_or(a.complete(last), <[i32]>::len);
    let par: &dyn Parallel = if width * most < SMALL { &Serial } else { par };
    let union = a.window_of(rows.start).start..a.window_of(last).end;
    let near = Decoded::new(par, &a.swa, seq, union.len(), |i| union.start + i);
    let shared = Shared::of(par, a, rows.clone());
    for row in rows {
        let window = a.window_of(row);
        let near = near.keys().range(window.start - union.start..window.end - union.start);
        let Some(pool) = &a.entries else {
            attend_row(par, a, row, [near, Keys { values: &[], offsets: &[] }], out_of(row));
            continue;
        };
        let mut numbers = far_entries(a, row);
        match &shared {
            Some(shared) => {
                numbers.iter_mut().for_each(|number| *number = shared.offset(*number, a.dim));
                let far = Keys { values: &shared.entries.values, offsets: &numbers };
                attend_row(par, a, row, [near, far], out_of(row));
            }
            None => {
                let own = Decoded::new(par, pool, seq, numbers.len(), |i| numbers[i]);
                attend_row(par, a, row, [near, own.keys()], out_of(row));
            }
        }
    }
}

/// Entries in f32.
struct Decoded {
    values: Lease<f32>,
    offsets: Lease<usize>,
}

impl Decoded {
    /// `n` entries of a sequence; `entry(i)` is the number of the `i`-th.
    fn new(
        par: &dyn Parallel,
        pool: &Pool<'_>,
        seq: usize,
        n: usize,
        entry: impl Fn(usize) -> usize + Sync,
    ) -> Self {
        let (dim, stride) = (pool.form.shape.dim, stride(pool.form.shape.dim));
        let mut new = Self { values: scratch::lease(n * stride), offsets: scratch::lease(n) };
        let values = SharedMut::new(&mut new.values);
        par.run(n, GRAIN, &|entries| {
            for i in entries {
                // SAFETY: entries do not overlap.
                let values = unsafe { values.slice(i * stride..i * stride + dim) };
                pool.decode(pool.slot(seq, entry(i)), values);
            }
        });
        new.offsets.iter_mut().enumerate().for_each(|(i, offset)| *offset = i * stride);
        new
    }

    fn keys(&self) -> Keys<'_> {
        Keys { values: &self.values, offsets: &self.offsets }
    }
}

/// The compressed entries of all rows of a run.
struct Shared {
    entries: Decoded,
    /// One more than the place of each entry by its number, 0 where it has none; empty if its place is its number.
    places: Lease<u32>,
}

impl Shared {
    /// Those of a run, if it attends few more than one of its rows does.
    fn of(par: &dyn Parallel, a: &Core<'_>, rows: Range<usize>) -> Option<Self> {
        let pool = a.entries.as_ref().filter(|_| rows.len() > 1)?;
        let (seq, complete) = (a.rows.seq(rows.start), a.complete(rows.end - 1));
        let Some(ids) = a.ids_of(rows.start) else {
            let entries = Decoded::new(par, pool, seq, complete, |i| i);
            return Some(Self { entries, places: scratch::lease(0) });
        };
        let most = 2 * ids.len();
        let (mut places, mut numbers) = (scratch::lease::<u32>(complete), scratch::lease::<usize>(most));
        places.fill(0);
        let mut n = 0;
        for id in rows.filter_map(|row| a.ids_of(row)).flatten().filter_map(|id| usize::try_from(*id).ok()) {
            if places[id] == 0 {
                *numbers.get_mut(n)? = id;
                n += 1;
                places[id] = n as u32;
            }
        }
        let entries = Decoded::new(par, pool, seq, n, |i| numbers[i]);
        Some(Self { entries, places })
    }

    /// Where an entry begins.
    fn offset(&self, number: usize, dim: usize) -> usize {
        let place = if self.places.is_empty() { number } else { self.places[number] as usize - 1 };
        place * stride(dim)
    }
}

/// One row over its window and its compressed entries.
fn attend_row(par: &dyn Parallel, a: &Core<'_>, row: usize, keys: [Keys<'_>; 2], out: &mut [f32]) {
    let (heads, dim, near) = (a.heads, a.dim, keys[0].offsets.len());
    let width = near + keys[1].offsets.len();
    let mut q = scratch::lease::<f32>(heads * dim);
    let all = &a.q[row * heads * dim..][..heads * dim];
    q.iter_mut().zip(all).for_each(|(scaled, q)| *scaled = q * a.scale);
    let (mut weights, mut factors) = (scratch::lease::<f32>(heads * width), scratch::lease::<f32>(heads));
    let shared = SharedMut::new(&mut weights);
    for (keys, first) in keys.into_iter().zip([0, near]) {
        let n = keys.offsets.len();
        par.run(n.div_ceil(BLOCK), 1, &|blocks| {
            let mut scores = scratch::lease::<f32>(heads * BLOCK);
            for block in blocks.map(|block| block * BLOCK..n.min((block + 1) * BLOCK)) {
                let out = &mut scores[..heads * block.len()];
                dispatch(Scores { q: &q, dim, keys: keys.range(block.clone()), out });
                for (h, scores) in out.chunks_exact(block.len()).enumerate() {
                    let at = h * width + first + block.start;
                    // SAFETY: blocks do not overlap.
                    unsafe { shared.slice(at..at + block.len()) }.copy_from_slice(scores);
                }
            }
        });
    }
    let shared_factors = SharedMut::new(&mut factors);
    par.run(heads, GRAIN_HEADS, &|heads| {
        // SAFETY: heads do not overlap.
        let (scores, factors) = unsafe {
            (shared.slice(heads.start * width..heads.end * width), shared_factors.slice(heads.clone()))
        };
        dispatch(Softmax { scores, sinks: &a.sinks[heads], factors });
    });
    sum_up(par, keys, &weights, &factors, dim, out);
}

/// `out[h] = factors[h] * (sum over the window, then over the compressed entries, of weights[h, j] * entry j)`.
fn sum_up(
    par: &dyn Parallel,
    keys: [Keys<'_>; 2],
    weights: &[f32],
    factors: &[f32],
    dim: usize,
    out: &mut [f32],
) {
    let (heads, firsts) = (factors.len(), [0, keys[0].offsets.len()]);
    let width = weights.len() / heads.max(1);
    let sum = |channel: usize, sums: &mut [f32]| {
        sums.fill(0.0);
        for (keys, first) in keys.into_iter().zip(firsts) {
            dispatch(WeightedSum { keys, weights, width, first, channel, sums });
        }
        for (sums, factor) in sums.chunks_exact_mut(sums.len() / heads).zip(factors) {
            sums.iter_mut().for_each(|sum| *sum *= factor);
        }
    };
    if heads == 0 {
        return;
    }
    if par.threads() == 1 {
        // All channels at once: entries are then read from end to end.
        return sum(0, out);
    }
    let shared = SharedMut::new(out);
    par.run(dim.div_ceil(CHANNELS), 1, &|pieces| {
        for channels in pieces.map(|piece| piece * CHANNELS..dim.min((piece + 1) * CHANNELS)) {
            let mut sums = scratch::lease::<f32>(heads * channels.len());
            sum(channels.start, &mut sums);
            for (h, sums) in sums.chunks_exact(channels.len()).enumerate() {
                // SAFETY: pieces do not overlap.
                unsafe { shared.slice(h * dim + channels.start..h * dim + channels.end) }
                    .copy_from_slice(sums);
            }
        }
    });
}

/// Numbers of the compressed entries of a row, rising.
fn far_entries(a: &Core<'_>, row: usize) -> Lease<usize> {
    let Some(ids) = a.ids_of(row) else {
        let mut entries = scratch::lease::<usize>(a.complete(row));
        entries.iter_mut().enumerate().for_each(|(number, entry)| *entry = number);
        return entries;
    };
    let mut entries = scratch::lease::<usize>(ids.iter().filter(|id| **id >= 0).count());
    for (entry, id) in entries.iter_mut().zip(ids.iter().filter(|id| **id >= 0)) {
        *entry = *id as usize;
    }
    if !entries.is_sorted() {
        entries.sort_unstable();
    }
    entries
}
