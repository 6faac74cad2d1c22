//! Rows of `x` as tiles of three bf16 parts, and sums back into rows of `y`.

use super::Plan;
use super::unit::{DEPTH, PARTS, SIDE};
use crate::isa::Kernel;
use crate::lanes::Lanes;
use crate::linear::{Area, Product};

/// Two bf16 of a row, the first one in the lower half.
type Line = [u32; SIDE];

/// Kernel: numbers `from..to` of a block of rows as tiles, `[tiles, ceil((to - from) / 32), 3, 16, width, 2]` bf16, the least
/// part first; zeros where rows or numbers are missing. Made by [`super::run`] only, for rows that exist and with room for
/// the tiles.
pub(super) struct PackRows<'a> {
    pub p: &'a Product,
    pub area: Area,
    pub from: usize,
    pub to: usize,
    pub plan: Plan,
    pub out: *mut u8,
}

impl Kernel for PackRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { p, area, from, to, plan, out } = self;
        let mut out = out.cast::<u32>();
        for first in (0..plan.tiles * plan.width).step_by(plan.width) {
            let rows = plan.width.min(area.rows - first);
            for at in (from..to).step_by(DEPTH) {
                let mut parts = [[[0; SIDE]; SIDE]; PARTS];
                for m in 0..rows {
                    // SAFETY: the row exists.
                    let row = unsafe { &p.row(area.row + first + m)[at..to.min(at + DEPTH)] };
                    let mut padded = [0.0; DEPTH];
                    let numbers = row.first_chunk().unwrap_or_else(|| {
                        padded[..row.len()].copy_from_slice(row);
                        &padded
                    });
                    for (part, line) in parts.iter_mut().zip(cut(numbers)) {
                        part[m] = line;
                    }
                }
                for part in &parts {
                    // SAFETY: there is room for each part of each tile.
                    unsafe {
                        if plan.width == SIDE {
                            lanes.transpose16(part, out);
                        } else {
                            for (m, line) in part.iter().enumerate().take(plan.width) {
                                for (pair, &two) in line.iter().enumerate() {
                                    *out.add(pair * plan.width + m) = two;
                                }
                            }
                        }
                        out = out.add(SIDE * plan.width);
                    }
                }
            }
        }
    }
}

/// Cuts numbers into three parts of at most eight significant bits, the least first: their sum is the number.
#[inline(always)]
pub(super) fn cut(numbers: &[f32; DEPTH]) -> [Line; PARTS] {
    /// The upper half of a number.
    #[inline(always)]
    fn upper(x: f32) -> f32 {
        f32::from_bits(x.to_bits() & 0xffff_0000)
    }
    let mut parts = [[0; SIDE]; PARTS];
    for pair in 0..SIDE {
        let two = [numbers[2 * pair], numbers[2 * pair + 1]];
        let high = two.map(upper);
        let rest = [two[0] - high[0], two[1] - high[1]];
        let middle = rest.map(upper);
        let low = [rest[0] - middle[0], rest[1] - middle[1]];
        for (part, [a, b]) in [low, middle, high].into_iter().enumerate() {
            parts[part][pair] = a.to_bits() >> 16 | b.to_bits() & 0xffff_0000;
        }
    }
    parts
}

/// Kernel: sums of a part, tile by tile, times a factor into `y`. Made by [`super::run`] only, for a part of `y` that is ours.
pub(super) struct StoreRows<'a> {
    pub p: &'a Product,
    pub part: Area,
    pub plan: Plan,
    pub sums: *const f32,
    pub sums_step: usize,
    pub factor: f32,
}

impl Kernel for StoreRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { p, part, plan, sums, sums_step, factor } = self;
        for (column, row) in (0..part.cols.div_ceil(SIDE)).flat_map(|c| (0..plan.tiles).map(move |r| (c, r)))
        {
            // SAFETY: the tile of sums exists.
            let tile = unsafe {
                &*sums.byte_add(column * sums_step).add(row * SIDE * SIDE).cast::<[[u32; SIDE]; SIDE]>()
            };
            let mut turned = [[0; SIDE]; SIDE];
            if plan.width > 4 {
                // SAFETY: there is room for the tile.
                unsafe { lanes.transpose16(tile, turned.as_mut_ptr().cast()) };
            } else {
                for (m, turned) in turned.iter_mut().enumerate().take(plan.width) {
                    *turned = tile.map(|line| line[m]);
                }
            }
            let cols = SIDE.min(part.cols - column * SIDE);
            let rows = plan.width.min(part.rows - row * plan.width);
            for (m, sums) in turned.iter().enumerate().take(rows) {
                let at = (part.row + row * plan.width + m) * p.y_stride + part.col + column * SIDE;
                // SAFETY: these numbers of `y` are in bounds and ours.
                let y = unsafe { std::slice::from_raw_parts_mut(p.y.add(at), cols) };
                for (y, &sum) in y.iter_mut().zip(sums) {
                    *y = f32::from_bits(sum) * factor;
                }
            }
        }
    }
}
