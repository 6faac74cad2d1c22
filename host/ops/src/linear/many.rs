//! Many rows: weights are unpacked into a panel of f32 that fits the L1 cache, and the panel is multiplied with a
//! block of rows. Where `k` is longer than a panel, the lanes of unfinished sums wait in memory.

use std::cell::RefCell;

use super::source::{Source, load_tail};
use super::tile::strided;
use super::{Area, Product};
use crate::lanes::{LANES, Lanes, padded};

/// Columns of a panel.
const COLS: usize = 8;
/// Pairs of columns of a panel.
const PAIRS: usize = COLS / 2;
/// Longest step along `k`: a panel takes half of the L1 cache of 32 KiB.
const K_STEP: usize = 512;
/// Most rows of a block: a step of them takes less than half of an L2 cache of 1 MiB, or of 512 KiB nearly all.
const MOST_ROWS: usize = 192;
/// Values of a pair.
const PAIR: usize = 2 * LANES;

thread_local! {
    /// Panel and unfinished sums of this thread; grow to the largest seen.
    static SCRATCH: RefCell<[Vec<Line>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// One cache line, so that pairs are aligned to it.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "storage, accessed through a pointer")] [f32; PAIR]);

/// Room for `pairs` pairs.
fn room(lines: &mut Vec<Line>, pairs: usize) -> *mut f32 {
    if lines.len() < pairs {
        lines.resize(pairs, Line([0.0; PAIR]));
    }
    lines.as_mut_ptr().cast()
}

/// Columns that a piece of work should have a multiple of.
pub(super) const COLUMNS: usize = COLS;

/// Rows of `x` that are multiplied with a panel before the next one is unpacked.
pub(super) fn row_block(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(MOST_ROWS)).next_multiple_of(6)
}

/// Computes an area of `y`.
///
/// # Safety
/// The area is in bounds of all operands, and nobody else touches it in `y`.
#[inline(always)]
pub(super) unsafe fn multiply<const S: usize, L: Lanes, W: Source<S>>(
    lanes: L,
    p: &Product,
    w: W,
    area: Area,
) {
    let mut scratch = SCRATCH.take();
    let [panel, sums] = &mut scratch;
    let panel = room(panel, PAIRS * K_STEP.min(p.k).div_ceil(LANES));
    let sums = room(sums, if p.k > K_STEP { PAIRS * area.rows } else { 0 });
    for first in (0..area.cols).step_by(COLS) {
        let part = Area { col: area.col + first, cols: COLS.min(area.cols - first), ..area };
        let mut from = 0;
        loop {
            let step = Step { from, to: p.k.min(from + K_STEP), panel, sums };
            // SAFETY: the columns and numbers are part of the area and the matrix; the scratch has room for both.
            unsafe {
                unpack(lanes, w, part, step);
                block(lanes, p, part, step);
            }
            from = step.to;
            if from == p.k {
                break;
            }
        }
    }
    SCRATCH.set(scratch);
}

/// A range of numbers along `k`.
#[derive(Clone, Copy)]
struct Step {
    from: usize,
    to: usize,
    /// `[ceil((to - from) / 8), 4, 2, 8]`: columns interleaved by eights, the last eight padded with zeros. A
    /// processor with narrow registers has `[2, ceil(..), 2, 2, 8]` instead: what one tile reads is contiguous.
    panel: *mut f32,
    /// `[rows, 4, 2, 8]` if `k` takes more than one step.
    sums: *mut f32,
}

impl Step {
    /// Pairs of a tile.
    #[inline(always)]
    fn tile<L: Lanes>() -> usize {
        if L::WIDE { PAIRS } else { PAIRS / 2 }
    }

    /// Where the numbers of a pair from `from` on start; the next eight are `tile` pairs further.
    #[inline(always)]
    fn column<L: Lanes>(self, pair: usize) -> usize {
        let tile = Self::tile::<L>();
        (pair / tile * tile * (self.to - self.from).div_ceil(LANES) + pair % tile) * PAIR
    }
}

/// Unpacks the numbers of a step of up to eight columns; the last column fills the places of missing ones.
///
/// # Safety
/// The columns exist, and the panel has room.
#[inline(always)]
unsafe fn unpack<const S: usize, L: Lanes, W: Source<S>>(lanes: L, w: W, part: Area, step: Step) {
    let Step { from, to, panel, .. } = step;
    let whole = to - (to - from) % (S * LANES);
    let gap = Step::tile::<L>() * PAIR;
    for pair in 0..PAIRS {
        // SAFETY: numbers from..to of the columns exist; the panel has a place for each eight of each pair.
        unsafe {
            let row = |side: usize| w.row(part.col + (2 * pair + side).min(part.cols - 1));
            let rows = [row(0), row(1)];
            let mut at = panel.add(step.column::<L>(pair));
            let mut i = from;
            while i < whole {
                let scale = w.scale(lanes, rows, i);
                let end = whole.min(i.saturating_add(W::BLOCK));
                while i < end {
                    for values in W::load(lanes, rows, i, scale) {
                        let [a, b] = lanes.split(values);
                        let values = if W::NIBBLES {
                            lanes.pair(lanes.from_nibbles(a), lanes.from_nibbles(b))
                        } else {
                            values
                        };
                        lanes.store_pair(values, at);
                        at = at.add(gap);
                    }
                    i += S * LANES;
                }
            }
            if whole < to {
                lanes.store_pair(load_tail(lanes, w, rows, whole, to - whole), at);
            }
        }
    }
}

/// Multiplies the rows of a part with the panel.
///
/// # Safety
/// The part is in bounds and ours; the panel holds its columns.
#[inline(always)]
unsafe fn block<L: Lanes>(lanes: L, p: &Product, part: Area, step: Step) {
    let end = part.row + part.rows;
    let mut row = part.row;
    // SAFETY: the rows are those of the part.
    unsafe {
        if L::WIDE {
            while end - row >= 6 {
                stripe::<L, 6, PAIRS>(lanes, p, part, step, row);
                row += 6;
            }
            match end - row {
                5 => stripe::<L, 5, PAIRS>(lanes, p, part, step, row),
                4 => stripe::<L, 4, PAIRS>(lanes, p, part, step, row),
                3 => stripe::<L, 3, PAIRS>(lanes, p, part, step, row),
                2 => stripe::<L, 2, PAIRS>(lanes, p, part, step, row),
                1 => stripe::<L, 1, PAIRS>(lanes, p, part, step, row),
                _ => {}
            }
        } else {
            while end - row >= 3 {
                stripe::<L, 3, { PAIRS / 2 }>(lanes, p, part, step, row);
                row += 3;
            }
            match end - row {
                2 => stripe::<L, 2, { PAIRS / 2 }>(lanes, p, part, step, row),
                1 => stripe::<L, 1, { PAIRS / 2 }>(lanes, p, part, step, row),
                _ => {}
            }
        }
    }
}

/// `M` rows times all columns of the panel, in tiles of `P` pairs.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn stripe<L: Lanes, const M: usize, const P: usize>(
    lanes: L,
    p: &Product,
    part: Area,
    step: Step,
    row: usize,
) {
    let count = step.to - step.from;
    let whole = count - count % LANES;
    // SAFETY: as promised by the caller; the panel and the sums have a place for every pair.
    unsafe {
        let x = strided::<f32, M>(p.x.add(row * p.x_stride + step.from), p.x_stride);
        for first in (0..PAIRS).step_by(P) {
            if 2 * first >= part.cols {
                break;
            }
            let panel = step.panel.add(step.column::<L>(first)).cast_const();
            let waiting = |m: usize, pair: usize| {
                step.sums.wrapping_add(((row - part.row + m) * PAIRS + first + pair) * PAIR)
            };
            let mut sums = [[lanes.pair(lanes.splat(0.0), lanes.splat(0.0)); P]; M];
            if step.from > 0 {
                for (m, sums) in sums.iter_mut().enumerate() {
                    for (pair, sum) in sums.iter_mut().enumerate() {
                        *sum = lanes.load_pair(waiting(m, pair));
                    }
                }
            }
            let mut i = 0;
            while i < whole {
                multiply_add(lanes, x.map(|x| lanes.load_twice(x.add(i))), panel.add(2 * P * i), &mut sums);
                i += LANES;
            }
            if whole < count {
                let x = x.map(|x| {
                    let x = std::slice::from_raw_parts(x.add(whole), count - whole);
                    let x = lanes.get(&padded(x));
                    lanes.pair(x, x)
                });
                multiply_add(lanes, x, panel.add(2 * P * whole), &mut sums);
            }
            for (m, sums) in sums.into_iter().enumerate() {
                if step.to == p.k {
                    let cols = (2 * P).min(part.cols - 2 * first);
                    p.store::<L, P>(lanes, row + m, part.col + 2 * first, cols, sums, false);
                } else {
                    for (pair, sum) in sums.into_iter().enumerate() {
                        lanes.store_pair(sum, waiting(m, pair));
                    }
                }
            }
        }
    }
}

/// Eight numbers of `M` rows times those of `P` pairs of columns.
///
/// # Safety
/// The panel is valid for reads of `P` pairs.
#[inline(always)]
unsafe fn multiply_add<L: Lanes, const M: usize, const P: usize>(
    lanes: L,
    x: [L::Pair; M],
    panel: *const f32,
    sums: &mut [[L::Pair; P]; M],
) {
    for pair in 0..P {
        // SAFETY: as promised by the caller.
        let w = unsafe { lanes.load_pair(panel.add(pair * PAIR)) };
        for m in 0..M {
            sums[m][pair] = lanes.fma_pair(x[m], w, sums[m][pair]);
        }
    }
}
