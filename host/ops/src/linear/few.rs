//! Few rows: the weights are read once and used straight from where they lie.
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed in two arrays at once")]

use super::source::{Source, load_tail};
use super::tile::strided;
use super::{Area, Product};
use crate::lanes::{LANES, Lanes, padded};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Computes an area of `y`. If the source gives vectors in the order of nibbles, so does `x`.
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
    let end = area.col + area.cols;
    let mut col = area.col;
    // SAFETY: columns col..end and the rows of the area are in bounds.
    unsafe {
        while col < end {
            let stop = end.min(col.saturating_add(w.alike(col)));
            // Eight columns stay in the L1 cache for all rows.
            let count = (stop - col).min(8);
            let (mut row, end) = (area.row, area.row + area.rows);
            while row < end {
                // One row cannot keep the multiply-add units busy, so the last tile is not a single one if it need not.
                let left = end - row;
                match left {
                    1 => columns::<S, L, W, 1, 4>(lanes, p, w, row, col, count),
                    2 => columns::<S, L, W, 2, 2>(lanes, p, w, row, col, count),
                    3 | 5 | 6 if L::WIDE => columns::<S, L, W, 3, 2>(lanes, p, w, row, col, count),
                    3 | 5 | 6 => columns::<S, L, W, 3, 1>(lanes, p, w, row, col, count),
                    _ if L::WIDE => columns::<S, L, W, 4, 2>(lanes, p, w, row, col, count),
                    _ => columns::<S, L, W, 4, 1>(lanes, p, w, row, col, count),
                }
                row += if matches!(left, 3 | 5 | 6) { 3 } else { left.min(4) };
            }
            col += count;
        }
    }
}

/// `M` rows times up to eight columns from `col` on, `P` pairs at a time.
///
/// # Safety
/// As [`multiply`]; the columns have the same scales.
#[inline(always)]
unsafe fn columns<const S: usize, L: Lanes, W: Source<S>, const M: usize, const P: usize>(
    lanes: L,
    p: &Product,
    w: W,
    row: usize,
    col: usize,
    count: usize,
) {
    let mut first = 0;
    while first < count {
        // SAFETY: as promised by the caller. An empty place repeats the last column.
        unsafe {
            let x = strided::<f32, M>(p.x.add(row * p.x_stride), p.x_stride);
            let mut rows = [[w.row(col); 2]; P];
            for pair in 0..P {
                for side in 0..2 {
                    rows[pair][side] = w.row(col + (first + 2 * pair + side).min(count - 1));
                }
            }
            let sums = tile(lanes, x, w, rows, p.k, (w.row(col), first));
            for (m, sums) in sums.into_iter().enumerate() {
                p.store::<L, P>(lanes, row + m, col + first, (count - first).min(2 * P), sums, W::NIBBLES);
            }
        }
        first += 2 * P;
    }
}

/// The lanes of the dot products of `M` rows of `x` and `2 P` columns.
///
/// # Safety
/// Every row of `x` is valid for reads of `k` f32, and the columns exist and have the same scales.
#[inline(always)]
unsafe fn tile<const S: usize, L: Lanes, W: Source<S>, const M: usize, const P: usize>(
    lanes: L,
    x: [*const f32; M],
    w: W,
    rows: [[W::Row; 2]; P],
    k: usize,
    (group, first): (W::Row, usize),
) -> [[L::Pair; P]; M] {
    let zero = lanes.pair(lanes.splat(0.0), lanes.splat(0.0));
    let mut sums = [[zero; P]; M];
    let step = S * LANES;
    let whole = k - k % step;
    let mut i = 0;
    // SAFETY: i + step <= k in the loop, and k - whole numbers are left after it.
    unsafe {
        while i < whole {
            let scale = w.scale(lanes, [rows[0][0]; 2], i);
            let end = whole.min(i + W::BLOCK);
            // The next eight columns, which follow these. One row is quicker without where it reads as fast as the
            // processor fetches by itself; else one place is asked for, since there are no registers for eight.
            if M > 1 {
                for pair in 0..P {
                    for side in 0..2 {
                        W::prefetch(rows[pair][side], (8 * k + i) * LINE / W::BLOCK);
                    }
                }
            } else if W::ASKS_AHEAD {
                for line in first..first + 2 * P {
                    W::prefetch(group, 8 * (k + i) * LINE / W::BLOCK + LINE * line);
                }
            }
            while i < end {
                if S == 1 {
                    let mut now = [zero; M];
                    for m in 0..M {
                        now[m] = W::scale_x(lanes, lanes.load_twice(x[m].add(i)), scale);
                    }
                    for pair in 0..P {
                        let values = W::load(lanes, rows[pair], i, scale);
                        for m in 0..M {
                            sums[m][pair] = lanes.fma_pair(now[m], values[0], sums[m][pair]);
                        }
                    }
                } else {
                    // There are not enough registers for so many vectors of `x`: they come from memory.
                    for pair in 0..P {
                        let values = W::load(lanes, rows[pair], i, scale);
                        for m in 0..M {
                            for v in 0..S {
                                let x = lanes.load_twice(x[m].add(i + v * LANES));
                                let x = W::scale_x(lanes, x, scale);
                                sums[m][pair] = lanes.fma_pair(x, values[v], sums[m][pair]);
                            }
                        }
                    }
                }
                i += step;
            }
        }
        if whole < k {
            for pair in 0..P {
                let values = load_tail(lanes, w, rows[pair], whole, k - whole);
                for m in 0..M {
                    let x = lanes.get(&padded(std::slice::from_raw_parts(x[m].add(whole), k - whole)));
                    sums[m][pair] = lanes.fma_pair(lanes.pair(x, x), values, sums[m][pair]);
                }
            }
        }
    }
    sums
}

impl Product {
    /// Adds the lanes of sums in the fixed order and writes the first `count` of them to a row of `y`.
    ///
    /// # Safety
    /// They are in bounds of `y` and ours.
    #[inline(always)]
    pub(super) unsafe fn store<L: Lanes, const P: usize>(
        &self,
        lanes: L,
        row: usize,
        col: usize,
        count: usize,
        sums: [L::Pair; P],
        nibbles: bool,
    ) {
        // SAFETY: as promised by the caller.
        let y = unsafe { std::slice::from_raw_parts_mut(self.y.add(row * self.y_stride + col), count) };
        let natural =
            |pair: L::Pair| lanes.split(pair).map(|sum| if nibbles { lanes.natural_order(sum) } else { sum });
        if P.is_multiple_of(2) && count == 2 * P {
            for (two, y) in sums.chunks_exact(2).zip(y.chunks_exact_mut(4)) {
                let ([a, b], [c, d]) = (natural(two[0]), natural(two[1]));
                y.copy_from_slice(&lanes.sum4([a, b, c, d]));
            }
        } else {
            for (pair, y) in sums.into_iter().zip(y.chunks_mut(2)) {
                for (sum, y) in natural(pair).into_iter().zip(y) {
                    *y = lanes.sum(sum);
                }
            }
        }
    }
}
