//! `indexer.select`.
//!
//! Scores are made tile by tile for a few rows of one sequence, which share the decoded keys, and only those that may still
//! be among the best of their row are kept.

use super::queries::{MOST_DIM, Queries};
use super::score::{FOUR, TILE, TileScores, load_tile};
use super::topk::{Best, choose};
use crate::runs::cut;
use crate::scratch;
use hotseam_sdk::ops::{Parallel, Serial, dispatch};
use hotseam_sdk::views::Select;
use hotseam_sdk::{Error, Result, SharedMut};
use std::ops::Range;

/// Rows of one sequence that share a decoded tile of keys.
const ROWS: usize = 16;
/// Tiles that are worth a thread.
const TILES: usize = 4;
/// Rows without scores that are worth a thread.
const GRAIN: usize = 256;

/// `indexer.select`. Ids are written in rising order; ties go to the lower entry. A row that keeps all its entries is
/// not scored, unless the tap is wanted.
///
/// # Errors
/// If keys have more dimensions than are served; nothing is written then.
pub fn select(par: &dyn Parallel, a: &mut Select<'_>) -> Result<()> {
    if a.dim > MOST_DIM {
        return Err(Error::argument(format!("keys of {} dimensions, expected at most {MOST_DIM}", a.dim)));
    }
    let (ids, taps) = (std::mem::take(&mut a.ids), std::mem::take(&mut a.scores));
    let out =
        Outputs { tap: !taps.is_empty(), ids: SharedMut::new(&mut *ids), taps: SharedMut::new(&mut *taps) };
    fill(par, a, &out);
    (a.ids, a.scores) = (ids, taps);
    Ok(())
}

/// What the rows write, each its own part.
struct Outputs<'a> {
    ids: SharedMut<'a, i32>,
    taps: SharedMut<'a, f32>,
    /// Whether all scores are wanted.
    tap: bool,
}

fn fill(par: &dyn Parallel, a: &Select<'_>, out: &Outputs<'_>) {
    let scored = |row: usize| a.complete(row) > if out.tap { 0 } else { a.topk };
    let n = a.rows.len();
    if !(0..n).any(scored) {
        par.run(n, GRAIN, &|rows| rows.for_each(|row| keep_all(a, row, out)));
        return;
    }
    let queries = Queries::new(par, a);
    let mut ends = scratch::lease::<usize>(n);
    let count = cut(&a.rows, ROWS, &mut ends);
    let block = |i: usize| if i == 0 { 0..ends[0] } else { ends[i - 1]..ends[i] };
    let run = |par: &dyn Parallel, rows: Range<usize>| run(par, a, &queries, rows, out);
    match count {
        // Fewer blocks than threads: the threads share the keys of each block instead.
        few if few < par.threads() => (0..few).for_each(|i| run(par, block(i))),
        many => par.run(many, 1, &|blocks| blocks.for_each(|i| run(&Serial, block(i)))),
    }
}

/// Some rows of one sequence.
fn run(par: &dyn Parallel, a: &Select<'_>, queries: &Queries, rows: Range<usize>, out: &Outputs<'_>) {
    let scored = |row: usize| out.tap || a.complete(row) > a.topk;
    let complete = rows.clone().filter(|row| scored(*row)).map(|row| a.complete(row)).max().unwrap_or(0);
    let tiles = complete.div_ceil(TILE);
    // Every slice of the keys has candidates of its own for every row.
    let slices = (tiles / TILES).clamp(1, par.threads());
    let words = Best::words(a.topk, TILE);
    let mut candidates = scratch::lease::<u64>(rows.len() * slices * words);
    for words in candidates.chunks_exact_mut(words) {
        Best::begin(words, a.topk);
    }
    let shared = SharedMut::new(&mut candidates);
    par.run(slices, 1, &|pieces| {
        let (mut keys, mut tile) = (scratch::lease::<f32>(a.dim * FOUR), scratch::lease::<f32>(a.dim * TILE));
        for slice in pieces {
            for first in (slice * tiles / slices..(slice + 1) * tiles / slices).map(|tile| tile * TILE) {
                let here = TILE.min(complete - first);
                load_tile(&a.keys, a.rows.seq(rows.start), first, here, &mut keys, &mut tile);
                let visible = |row: usize| scored(row) && a.complete(row) > first;
                for (i, row) in rows.clone().enumerate().filter(|(_, row)| visible(*row)) {
                    let mut scores = [0.0; TILE];
                    queries.score(row, &tile, &mut scores);
                    let scores = &scores[..TILE.min(a.complete(row) - first)];
                    out.tap(a, row, first, scores);
                    let at = (i * slices + slice) * words;
                    // SAFETY: a piece has its own slices, and a slice its own candidates.
                    Best::resume(unsafe { shared.slice(at..at + words) }, a.topk).take(first, scores);
                }
            }
        }
    });
    let mut all = scratch::lease::<u64>(slices * words);
    for (row, candidates) in rows.zip(candidates.chunks_exact_mut(slices * words)) {
        if a.complete(row) <= a.topk {
            keep_all(a, row, out);
            continue;
        }
        let mut n = 0;
        for words in candidates.chunks_exact_mut(words) {
            let best = Best::resume(words, a.topk);
            all[n..n + best.keys().len()].copy_from_slice(best.keys());
            n += best.keys().len();
        }
        choose(&mut all[..n], out.ids(a, row));
    }
}

/// A row that keeps all its entries.
fn keep_all(a: &Select<'_>, row: usize, out: &Outputs<'_>) {
    let (kept, unused) = out.ids(a, row).split_at_mut(a.complete(row));
    for (entry, id) in kept.iter_mut().enumerate() {
        *id = entry as i32;
    }
    unused.fill(-1);
}

impl Outputs<'_> {
    /// The ids of a row.
    #[allow(clippy::mut_from_ref, reason = "every row has its own part, and is finished once")]
    fn ids(&self, a: &Select<'_>, row: usize) -> &mut [i32] {
        // SAFETY: as the reason says.
        unsafe { self.ids.slice(row * a.topk..(row + 1) * a.topk) }
    }

    /// Gives scores of a row to the tap, if there is one.
    fn tap(&self, a: &Select<'_>, row: usize, first: usize, scores: &[f32]) {
        if !self.tap || first >= a.scores_width {
            return;
        }
        let n = scores.len().min(a.scores_width - first);
        let at = row * a.scores_width + first;
        // SAFETY: every score is made once, and has its own place.
        unsafe { self.taps.slice(at..at + n) }.copy_from_slice(&scores[..n]);
    }
}

impl Queries {
    /// Scores of a row with the keys of a tile.
    fn score(&self, row: usize, tile: &[f32], out: &mut [f32; TILE]) {
        let (width, heads) = (self.heads * self.dim, self.heads);
        let (q, weights) = (&self.q[row * width..][..width], &self.weights[row * heads..][..heads]);
        dispatch(TileScores { q, weights, tile, out });
    }
}
