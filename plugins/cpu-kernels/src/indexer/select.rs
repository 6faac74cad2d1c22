//! `indexer.select`.

use super::queries::{MOST_DIM, Queries};
use super::score::{TILE, TileScores, load_tile};
use super::topk::largest;
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
        par.run(n, GRAIN, &|rows| rows.for_each(|row| finish(a, row, &[], out)));
        return;
    }
    let queries = Queries::new(par, a);
    let mut ends = scratch::lease::<usize>(n);
    let count = cut(&a.rows, ROWS, &mut ends);
    let block = |i: usize| if i == 0 { 0..ends[0] } else { ends[i - 1]..ends[i] };
    let run = |par: &dyn Parallel, rows: Range<usize>| {
        let complete = rows.clone().filter(|row| scored(*row)).map(|row| a.complete(row)).max().unwrap_or(0);
        let width = complete.next_multiple_of(TILE);
        let mut scores = scratch::lease::<f32>(rows.len() * width);
        let shared = SharedMut::new(&mut scores);
        par.run(complete.div_ceil(TILE), TILES, &|tiles| {
            let (mut key, mut tile) = (scratch::lease::<f32>(a.dim), scratch::lease::<f32>(a.dim * TILE));
            for first in tiles.map(|tile| tile * TILE) {
                let here = TILE.min(complete - first);
                load_tile(&a.keys, a.rows.seq(rows.start), first, here, &mut key, &mut tile);
                for row in rows.clone().filter(|row| scored(*row) && a.complete(*row) > first) {
                    let at = (row - rows.start) * width + first;
                    // SAFETY: a piece has its own tiles, so its own columns of each row.
                    queries.score(row, &tile, unsafe { shared.slice(at..at + TILE) });
                }
            }
        });
        for row in rows.clone() {
            let scores =
                if scored(row) { &scores[(row - rows.start) * width..][..a.complete(row)] } else { &[] };
            finish(a, row, scores, out);
        }
    };
    match count {
        // Fewer blocks than threads: the threads share the keys of each block instead.
        few if few < par.threads() => (0..few).for_each(|i| run(par, block(i))),
        many => par.run(many, 1, &|blocks| blocks.for_each(|i| run(&Serial, block(i)))),
    }
}

/// Writes the outputs of a row from its scores; without scores the row keeps all its entries.
fn finish(a: &Select<'_>, row: usize, scores: &[f32], out: &Outputs<'_>) {
    let (complete, topk, width) = (a.complete(row), a.topk, a.scores_width);
    // SAFETY: every row is finished once, and has its own part.
    let ids = unsafe { out.ids.slice(row * topk..(row + 1) * topk) };
    if out.tap {
        let n = scores.len().min(width);
        // SAFETY: as above.
        unsafe { out.taps.slice(row * width..row * width + n) }.copy_from_slice(&scores[..n]);
    }
    if complete > topk {
        largest(scores, ids);
        return;
    }
    let (kept, unused) = ids.split_at_mut(complete);
    for (entry, id) in kept.iter_mut().enumerate() {
        *id = entry as i32;
    }
    unused.fill(-1);
}

impl Queries {
    /// Scores of a row with the keys of a tile.
    fn score(&self, row: usize, tile: &[f32], out: &mut [f32]) {
        let (width, heads) = (self.heads * self.dim, self.heads);
        let (q, weights) = (&self.q[row * width..][..width], &self.weights[row * heads..][..heads]);
        dispatch(TileScores { q, weights, tile, out });
    }
}
