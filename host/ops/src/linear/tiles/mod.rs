//! Products on matrix tiles: weights as bf16, exactly; each number of `x` as three bf16 that add up to it; sums in f32.
//!
//! Weights are the left operand, so they keep their order in memory, also for one row of `x`: [`weights`]. A sum goes along
//! `k` in steps of 32, and in each of them the parts of `x` follow each other, the least first; nothing else decides its
//! order. So results do not depend on the batch, but they are not those of [`crate::lanes`].
//!
//! Bounds, of the [manual](super::super::amx): numbers below 2^-126 count as zero, of weights, of parts of `x` and of sums.
//! An infinity in `x` gives NaN, because its second part does not exist.

mod rows;
mod unit;
mod weights;

use std::cell::RefCell;

use self::rows::{PackRows, StoreRows};
use self::unit::{DEPTH, PARTS, SIDE, Shape, Stripe, TILE, Unit};
use self::weights::PackWeights;
use super::{Area, Product, Weight};
use crate::amx::Amx;
use crate::isa::Isa;

/// Rows of a piece of work: with fewer, packing weights takes as long as multiplying them; a step along `k` of more does not fit
/// the L2 cache of 2 MiB.
const ROWS: std::ops::RangeInclusive<usize> = 128..=256;
/// Columns whose sums wait in memory between the steps along `k`.
const WAITING: usize = 2048;

thread_local! {
    /// Weights, rows and sums of this thread; grow to the largest seen.
    static SCRATCH: RefCell<[Vec<Bytes>; 3]> = const { RefCell::new([Vec::new(), Vec::new(), Vec::new()]) };
}

/// One cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bytes(#[expect(dead_code, reason = "storage, accessed through a pointer")] [u8; 64]);

/// Room for some bytes.
fn room(lines: &mut Vec<Bytes>, bytes: usize) -> *mut u8 {
    let count = bytes.div_ceil(64);
    if lines.len() < count {
        lines.resize(count, Bytes([0; 64]));
    }
    lines.as_mut_ptr().cast()
}

/// Whether tiles hold these weights exactly.
pub(super) fn fits(data: Weight<'_>) -> bool {
    !matches!(data, Weight::F32(_))
}

/// Columns that a piece of work should have a multiple of.
pub(super) const COLUMNS: usize = 2 * SIDE;

/// Rows of a piece of work, if so many pieces are wanted.
pub(super) fn row_block(rows: usize, wanted: usize) -> usize {
    let most = rows.div_ceil(wanted).clamp(*ROWS.start(), *ROWS.end());
    rows.div_ceil(rows.div_ceil(most)).next_multiple_of(2 * SIDE)
}

/// How an area is cut into tiles.
#[derive(Clone, Copy)]
struct Plan {
    /// Rows of `x` in a tile. Up to 16 rows make one narrow tile; of more, the last tile is filled with zeros.
    width: usize,
    /// Tiles of rows.
    tiles: usize,
    /// Tiles of columns that are multiplied at once.
    columns: usize,
    /// Longest step along `k`: the weights of a step fit the L1 cache of 48 KiB.
    k_step: usize,
}

impl Plan {
    fn new(rows: usize) -> Self {
        if rows <= SIDE {
            Self { width: rows, tiles: 1, columns: 4, k_step: 256 }
        } else {
            Self { width: SIDE, tiles: rows.div_ceil(SIDE), columns: 2, k_step: 512 }
        }
    }

    /// Bytes of a tile of rows.
    fn row_tile(self) -> usize {
        64 * self.width
    }
}

/// Computes an area of `y` with weights that [`fits`].
///
/// # Safety
/// The area is in bounds of all operands, and nobody else touches it in `y`.
pub(super) unsafe fn multiply(isa: Isa, amx: Amx, p: &Product, data: Weight<'_>, area: Area) {
    // SAFETY: as promised by the caller.
    unsafe { run(isa, amx, p, data, area) }
}

/// [`multiply`] on any unit.
///
/// # Safety
/// As [`multiply`].
unsafe fn run<U: Unit>(isa: Isa, unit: U, p: &Product, data: Weight<'_>, area: Area) {
    let plan = Plan::new(area.rows);
    // One scale of a whole matrix is left to the end, for its products with the others are no bf16.
    let (data, factor) = match data {
        Weight::Nvfp4 { codes, scales, global } => (Weight::Nvfp4 { codes, scales, global: 1.0 }, global),
        data => (data, 1.0),
    };
    let mut scratch = SCRATCH.take();
    let [weights, rows, sums] = &mut scratch;
    let deep = plan.k_step.min(p.k).div_ceil(DEPTH);
    let waiting = WAITING.min(area.cols).next_multiple_of(plan.columns * SIDE);
    let weights = room(weights, plan.columns * deep * TILE);
    let rows = room(rows, plan.tiles * deep * PARTS * plan.row_tile());
    let sums_step = plan.tiles * TILE;
    let sums = room(sums, waiting / SIDE * sums_step).cast::<f32>();
    unit.start(plan.width);
    for first in (0..area.cols).step_by(WAITING) {
        let group = Area { col: area.col + first, cols: WAITING.min(area.cols - first), ..area };
        let mut from = 0;
        // Without numbers along `k` there is one step of none, which gives zeros.
        loop {
            let to = p.k.min(from + plan.k_step);
            let count = (to - from).div_ceil(DEPTH);
            isa.run(PackRows { p, area: group, from, to, plan, out: rows });
            for col in (0..group.cols).step_by(plan.columns * SIDE) {
                let part =
                    Area { col: group.col + col, cols: (plan.columns * SIDE).min(group.cols - col), ..group };
                // SAFETY: there is room for the sums of all columns that wait.
                let sums = unsafe { sums.byte_add(col / SIDE * sums_step) };
                if count == 0 {
                    // SAFETY: these are the sums of the part.
                    unsafe { sums.write_bytes(0, plan.columns * sums_step / 4) };
                } else {
                    isa.run(PackWeights { data, k: p.k, part, from, to, plan, out: weights });
                    let stripe = Stripe {
                        w: weights,
                        w_step: count * TILE,
                        x: rows,
                        x_step: count * PARTS * plan.row_tile(),
                        sums,
                        sums_step,
                        count,
                        more: from > 0,
                    };
                    // SAFETY: weights, rows and sums were given room for these tiles, and the first two were packed.
                    unsafe { stripes(unit, plan, stripe) };
                }
                if to == p.k {
                    isa.run(StoreRows { p, part, plan, sums, sums_step, factor });
                }
            }
            from = to;
            if from == p.k {
                break;
            }
        }
    }
    unit.end();
    SCRATCH.set(scratch);
}

/// All rows times the columns of packed weights.
///
/// # Safety
/// As [`Unit::multiply`], for all tiles of the plan.
unsafe fn stripes<U: Unit>(unit: U, plan: Plan, first: Stripe) {
    let mut tile = 0;
    while tile < plan.tiles {
        let shape = match (plan.columns, plan.tiles - tile) {
            (4, _) => Shape::Columns,
            (_, 1) => Shape::Half,
            _ => Shape::Square,
        };
        // SAFETY: as promised by the caller: the tile exists.
        unsafe {
            let x = first.x.add(tile * first.x_step);
            let sums = first.sums.byte_add(tile * TILE);
            unit.multiply(plan.width, shape, Stripe { x, sums, ..first });
        }
        tile += shape.tiles().1;
    }
}

#[cfg(test)]
mod tests;
