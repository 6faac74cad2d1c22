//! Register tiles of f32 vectors: `M x N` sums at once, vectors along `k`.
//!
//! 3 x 4 sums use 12 of the 16 vector registers, 3 for `x` and 1 for the weights: 12 multiply-adds for 7 loads.
//! 1 x 8 hides the latency of the multiply-add when there is one row.
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed in two arrays at once")]

use crate::lanes::{LANES, Lanes, padded};

/// The `M x N` dot products of `M` rows and `N` columns of length `k`.
///
/// # Safety
/// Every row and every column is valid for reads of `k` f32.
#[inline(always)]
pub(crate) unsafe fn tile<L: Lanes, const M: usize, const N: usize>(
    lanes: L,
    rows: [*const f32; M],
    columns: [*const f32; N],
    k: usize,
) -> [[f32; N]; M] {
    let zero = lanes.splat(0.0);
    let mut sums = [[zero; N]; M];
    let whole = k - k % LANES;
    let mut i = 0;
    while i < whole {
        // SAFETY: i + 8 <= k.
        unsafe {
            let mut x = [zero; M];
            for m in 0..M {
                x[m] = lanes.load(rows[m].add(i));
            }
            for j in 0..N {
                let w = lanes.load(columns[j].add(i));
                for m in 0..M {
                    sums[m][j] = lanes.fma(x[m], w, sums[m][j]);
                }
            }
        }
        i += LANES;
    }
    if whole < k {
        // SAFETY: k - whole elements are left.
        unsafe {
            let tail =
                |at: *const f32| lanes.get(&padded(std::slice::from_raw_parts(at.add(whole), k - whole)));
            for j in 0..N {
                let w = tail(columns[j]);
                for m in 0..M {
                    let x = tail(rows[m]);
                    sums[m][j] = lanes.fma(x, w, sums[m][j]);
                }
            }
        }
    }
    let mut out = [[0.0; N]; M];
    for m in 0..M {
        out[m] = reduce(lanes, sums[m]);
    }
    out
}

/// Sums the lanes of `N` vectors.
#[inline(always)]
fn reduce<L: Lanes, const N: usize>(lanes: L, sums: [L::V; N]) -> [f32; N] {
    let mut out = [0.0; N];
    let mut j = 0;
    while j + 4 <= N {
        out[j..j + 4].copy_from_slice(&lanes.sum4([sums[j], sums[j + 1], sums[j + 2], sums[j + 3]]));
        j += 4;
    }
    while j < N {
        out[j] = lanes.sum(sums[j]);
        j += 1;
    }
    out
}

/// Runs a body for tiles that cover `rows` rows from `first` on: tiles of 3 if `threes`, and what is left as 2 + 2,
/// 2 or 1, because a single row cannot keep the multiply-add units busy. The body sees the first row of its tile
/// and the constant size.
macro_rules! for_row_tiles {
    ($row:ident in $first:expr, $rows:expr, threes: $threes:expr; $m:ident => $body:expr) => {{
        let mut $row: usize = $first;
        let end = $row + $rows;
        while $threes && end - $row >= 3 && end - $row != 4 {
            const $m: usize = 3;
            $body;
            $row += 3;
        }
        while end - $row >= 2 {
            const $m: usize = 2;
            $body;
            $row += 2;
        }
        if end > $row {
            const $m: usize = 1;
            $body;
        }
    }};
}
pub(crate) use for_row_tiles;

/// `N` pointers that start every `stride` values.
///
/// # Safety
/// All of them lie within one allocation.
#[inline(always)]
pub(crate) unsafe fn strided<T, const N: usize>(first: *const T, stride: usize) -> [*const T; N] {
    let mut at = [first; N];
    for (j, at) in at.iter_mut().enumerate() {
        // SAFETY: as promised by the caller.
        *at = unsafe { first.add(j * stride) };
    }
    at
}
