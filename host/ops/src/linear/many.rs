//! Many rows: weights are unpacked into a panel of f32 that fits the L1 cache, and the panel is multiplied with a
//! block of rows, which is packed so that it is read in order and fits the L2 cache. Where `k` is longer than a panel,
//! the lanes of unfinished sums wait in memory.
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed in two arrays at once")]

use std::cell::RefCell;

use super::source::{Source, load_tail};
use super::{Area, Product, Weight, with_source};
use crate::isa::{Isa, Kernel};
use crate::lanes::{LANES, Lanes, padded};

/// Columns of a panel.
const COLS: usize = 8;
/// Pairs of columns of a panel.
const PAIRS: usize = COLS / 2;
/// Longest step along `k`: a panel takes half of the L1 cache of 32 KiB.
const K_STEP: usize = 512;
/// Most rows of a block: a step of them takes less than half of an L2 cache of 1 MiB, or of 512 KiB nearly all.
const MOST_ROWS: usize = 192;
/// Columns that share a packed block of rows where `k` takes several steps: sums of so many wait in memory, and
/// packing a number takes little beside so many multiply-adds.
const WAITING: usize = 256;
/// Values of a pair.
const PAIR: usize = 2 * LANES;

thread_local! {
    /// Panel, block of rows and unfinished sums of this thread; grow to the largest seen.
    static SCRATCH: RefCell<[Vec<Line>; 3]> = const { RefCell::new([Vec::new(), Vec::new(), Vec::new()]) };
}

/// One cache line, so that pairs are aligned to it.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "storage, accessed through a pointer")] [f32; PAIR]);

/// Room for some numbers.
fn room(lines: &mut Vec<Line>, numbers: usize) -> *mut f32 {
    let count = numbers.div_ceil(PAIR);
    if lines.len() < count {
        lines.resize(count, Line([0.0; PAIR]));
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
pub(super) unsafe fn multiply(isa: Isa, p: &Product, data: Weight<'_>, area: Area) {
    let mut scratch = SCRATCH.take();
    let [panel, x, sums] = &mut scratch;
    let longest = K_STEP.min(p.k).next_multiple_of(LANES);
    // Sums of one step go to `y` at once, so that the next columns may take their place.
    let (together, waiting) = if p.k <= K_STEP {
        (area.cols, COLS)
    } else {
        (WAITING, WAITING.min(area.cols).next_multiple_of(COLS))
    };
    let panel = room(panel, COLS * longest);
    let x = room(x, area.rows * longest);
    let sums = room(sums, waiting * area.rows * LANES);
    for first in (0..area.cols).step_by(together) {
        let group = Area { col: area.col + first, cols: together.min(area.cols - first), ..area };
        let mut from = 0;
        loop {
            let to = p.k.min(from + K_STEP);
            isa.run(Pack { p, area, from, to, x });
            for col in (0..group.cols).step_by(COLS) {
                let part = Area { col: group.col + col, cols: COLS.min(group.cols - col), ..group };
                // SAFETY: there is room for the sums of all columns that wait.
                let sums = if waiting == COLS { sums } else { unsafe { sums.add(col * area.rows * LANES) } };
                let step = Step { from, to, panel, x, sums };
                isa.run(Unpack { data, k: p.k, part, step });
                isa.run(Block { p, part, step });
            }
            from = to;
            if from == p.k {
                break;
            }
        }
    }
    SCRATCH.set(scratch);
}

/// Rows of a tile.
const fn tile_rows<L: Lanes>() -> usize {
    if L::WIDE { 6 } else { 3 }
}

/// Kernel: numbers `from..to` of a block of rows, packed tile by tile: `[ceil((to - from) / 8), rows of the tile, 8]`,
/// the last eight padded with zeros. Made by [`multiply`] only, for rows that exist and with room for them.
struct Pack<'a> {
    p: &'a Product,
    area: Area,
    from: usize,
    to: usize,
    x: *mut f32,
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { p, area, from, to, x } = self;
        let length = (to - from).next_multiple_of(LANES);
        for first in (0..area.rows).step_by(tile_rows::<L>()) {
            let count = tile_rows::<L>().min(area.rows - first);
            for m in 0..count {
                // SAFETY: the row exists.
                let row = unsafe { &p.row(area.row + first + m)[from..to] };
                let (whole, tail) = row.as_chunks::<LANES>();
                let mut at = first * length + m * LANES;
                for eight in whole {
                    // SAFETY: a block has room for `length` numbers of each of its rows.
                    unsafe { lanes.store(lanes.get(eight), x.add(at)) };
                    at += count * LANES;
                }
                if !tail.is_empty() {
                    // SAFETY: as above.
                    unsafe { lanes.store(lanes.get(&padded(tail)), x.add(at)) };
                }
            }
        }
    }
}

/// Kernel: weights into the panel. Made by [`multiply`] only, for columns and numbers that exist.
struct Unpack<'a> {
    data: Weight<'a>,
    k: usize,
    part: Area,
    step: Step,
}

impl Kernel for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { data, k, part, step } = self;
        // SAFETY: the part and the step are in bounds, and the panel has room for them.
        with_source!(data, k, w => unsafe { unpack(lanes, w, part, step) });
    }
}

/// Kernel: the panel times a block of rows. Made by [`multiply`] only, for a part of `y` that is ours.
struct Block<'a> {
    p: &'a Product,
    part: Area,
    step: Step,
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        // SAFETY: the part is in bounds and ours, and the panel holds its columns.
        unsafe { block(lanes, self.p, self.part, self.step) }
    }
}

/// A range of numbers along `k`.
#[derive(Clone, Copy)]
struct Step {
    from: usize,
    to: usize,
    /// `[ceil((to - from) / 8), 4, 2, 8]`: columns interleaved by eights, the last eight padded with zeros. A
    /// processor with narrow registers has `[2, ceil(..), 2, 2, 8]` instead: what one tile reads is contiguous.
    panel: *mut f32,
    /// The block of rows, see [`Pack`].
    x: *const f32,
    /// Lanes of the sums so far, `[rows, 4, 2, 8]`.
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
                let end = whole.min(i + W::BLOCK);
                while i < end {
                    for values in W::load(lanes, rows, i, scale) {
                        let [a, b] = lanes.split(values);
                        let values = if W::NIBBLES {
                            lanes.pair(lanes.natural_order(a), lanes.natural_order(b))
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
/// As [`block`]; the rows are a tile of the packed block.
#[inline(always)]
unsafe fn stripe<L: Lanes, const M: usize, const P: usize>(
    lanes: L,
    p: &Product,
    part: Area,
    step: Step,
    row: usize,
) {
    // SAFETY: as promised by the caller; the panel and the sums have a place for every pair.
    unsafe {
        let length = (step.to - step.from).next_multiple_of(LANES);
        let x = step.x.add((row - part.row) * length);
        let sums = step.sums.add((row - part.row) * PAIRS * PAIR);
        for first in (0..PAIRS).step_by(P) {
            if 2 * first < part.cols {
                let panel = step.panel.add(step.column::<L>(first));
                tile::<L, M, P>(lanes, x, panel, sums.add(first * PAIR), length, step.from > 0);
            }
        }
        if step.to == p.k {
            for m in 0..M {
                let sum = |pair: usize| lanes.load_pair(sums.add((m * PAIRS + pair) * PAIR));
                p.store::<L, PAIRS>(
                    lanes,
                    row + m,
                    part.col,
                    part.cols,
                    [sum(0), sum(1), sum(2), sum(3)],
                    false,
                );
            }
        }
    }
}

/// Adds `count` products, a multiple of eight, to each lane of `M x P` pairs of sums, which lie at `sums`, [`PAIRS`] pairs
/// a row; they start at zero unless `more`. Every loop over registers must be simple enough to be unrolled.
///
/// # Safety
/// `x` is valid for reads of `count` times `M` f32, `panel` for `count / 8` times `P` pairs, and `sums` for reads and
/// writes.
#[inline(always)]
unsafe fn tile<L: Lanes, const M: usize, const P: usize>(
    lanes: L,
    x: *const f32,
    panel: *const f32,
    at: *mut f32,
    count: usize,
    more: bool,
) {
    let zero = lanes.pair(lanes.splat(0.0), lanes.splat(0.0));
    let mut sums = [[zero; M]; P];
    // SAFETY: as promised by the caller.
    unsafe {
        if more {
            for pair in 0..P {
                for m in 0..M {
                    sums[pair][m] = lanes.load_pair(at.add((m * PAIRS + pair) * PAIR));
                }
            }
        }
        let mut i = 0;
        while i < count {
            let mut now = [zero; M];
            for m in 0..M {
                now[m] = lanes.load_twice(x.add(M * i + m * LANES));
            }
            for pair in 0..P {
                sums[pair] = lanes.fma_column(&now, panel.add(2 * P * i + pair * PAIR), sums[pair]);
            }
            i += LANES;
        }
        for pair in 0..P {
            for m in 0..M {
                lanes.store_pair(sums[pair][m], at.add((m * PAIRS + pair) * PAIR));
            }
        }
    }
}
