//! Weights as tiles of bf16.

use super::Plan;
use super::unit::{DEPTH, SIDE, TILE};
use crate::isa::Kernel;
use crate::lanes::{LANES, Lanes};
use crate::linear::source::{Source, load_tail};
use crate::linear::{Area, Weight, with_source};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a row of a tile.
const ROW: usize = 2 * DEPTH;

/// Kernel: numbers `from..to` of the columns of a part as tiles, `[columns / 16, ceil((to - from) / 32), 16, 32]` bf16; zeros
/// where columns or numbers are missing. Made by [`super::run`] only, for columns that exist and with room for the tiles.
pub(super) struct PackWeights<'a> {
    pub data: Weight<'a>,
    pub k: usize,
    pub part: Area,
    pub from: usize,
    pub to: usize,
    pub plan: Plan,
    pub out: *mut u8,
}

impl Kernel for PackWeights<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { data, k, .. } = self;
        // SAFETY: the part and the step are in bounds, and there is room for the tiles.
        with_source!(data, k, w => unsafe { pack(lanes, w, &self) });
    }
}

/// See [`PackWeights`].
///
/// # Safety
/// The columns and numbers exist, and there is room.
#[inline(always)]
unsafe fn pack<const S: usize, L: Lanes, W: Source<S>>(lanes: L, w: W, step: &PackWeights<'_>) {
    let &PackWeights { k, part, from, to, plan, out, .. } = step;
    let count = (to - from).div_ceil(DEPTH);
    // The same columns one step further, or else the first step of the next ones. More rows take longer than memory.
    let ahead = match () {
        () if plan.columns < 4 => None,
        () if to < k => Some(plan.k_step),
        () => Some(plan.columns * SIDE * k - from),
    };
    for first in (0..plan.columns * SIDE).step_by(2) {
        // SAFETY: the column is one of the part's tiles.
        let to_row = |column: usize| unsafe { out.add((column / SIDE * count * SIDE + column % SIDE) * ROW) };
        let rows = [to_row(first), to_row(first + 1)];
        if first >= part.cols {
            for (row, tile) in rows.into_iter().flat_map(|row| (0..count).map(move |tile| (row, tile))) {
                // SAFETY: a row of a tile.
                unsafe { row.add(tile * TILE).write_bytes(0, ROW) };
            }
            continue;
        }
        // SAFETY: the columns exist: the last one stands in for one that is missing.
        unsafe {
            let from_row = |column: usize| w.row(part.col + column.min(part.cols - 1));
            pack_two(lanes, w, [from_row(first), from_row(first + 1)], (from, to), ahead, rows);
            if first + 1 == part.cols {
                (0..count).for_each(|tile| rows[1].add(tile * TILE).write_bytes(0, ROW));
            }
        }
    }
}

/// Packs numbers of two columns into a row each of tiles that follow each other.
///
/// # Safety
/// The numbers exist, and there is room.
#[inline(always)]
unsafe fn pack_two<const S: usize, L: Lanes, W: Source<S>>(
    lanes: L,
    w: W,
    columns: [W::Row; 2],
    (from, to): (usize, usize),
    ahead: Option<usize>,
    rows: [*mut u8; 2],
) {
    let whole = to - (to - from) % (S * LANES);
    // SAFETY: numbers from..to exist, and each has a place in its tile.
    unsafe {
        let at = |i: usize| {
            rows.map(|row| row.add((i - from) / DEPTH * TILE + (i - from) % DEPTH * 2).cast::<u16>())
        };
        let mut i = from;
        while i < whole {
            let scale = w.scale(lanes, columns, i);
            if let Some(ahead) = ahead {
                for column in columns {
                    W::prefetch(column, (i + ahead) * LINE / W::BLOCK);
                }
            }
            let end = whole.min(i + W::BLOCK);
            while i < end {
                for (v, values) in W::load(lanes, columns, i, scale).into_iter().enumerate() {
                    let [a, b] = lanes.split(values);
                    let values = if W::NIBBLES {
                        lanes.pair(lanes.natural_order(a), lanes.natural_order(b))
                    } else {
                        values
                    };
                    lanes.store_upper(values, at(i + v * LANES));
                }
                i += S * LANES;
            }
        }
        if whole < to {
            lanes.store_upper(load_tail(lanes, w, columns, whole, to - whole), at(whole));
        }
        // What is left of the last tile.
        let written = (to - from).next_multiple_of(LANES);
        let left = written.next_multiple_of(DEPTH) - written;
        if left > 0 {
            for at in at(from + written) {
                at.write_bytes(0, left);
            }
        }
    }
}
