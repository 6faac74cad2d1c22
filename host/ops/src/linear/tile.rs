//! Register tiles: `M x N` sums at once, vectors along `k`.
//!
//! 3 x 4 sums use 12 of the 16 vector registers, 3 for `x` and 1 for the weights: 12 multiply-adds for 7 loads.
//! 1 x 8 hides the latency of the multiply-add when there is one row.
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed in two arrays at once")]

use crate::lanes::{LANES, Lanes, padded};

/// A number that widens to f32.
pub(crate) trait Element: Copy {
    /// The type needs widening: it takes a register, which a tile of three rows does not have, and it takes time,
    /// which many rows should share.
    const WIDENS: bool;
    /// The value as f32.
    fn widen(self) -> f32;
    /// Reads and widens eight numbers.
    ///
    /// # Safety
    /// `at` is valid for reads of eight numbers.
    unsafe fn load<L: Lanes>(lanes: L, at: *const Self) -> L::V;
}

impl Element for f32 {
    const WIDENS: bool = false;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, at: *const Self) -> L::V {
        // SAFETY: as promised by the caller.
        unsafe { lanes.load(at) }
    }
}

/// bf16 bits.
impl Element for u16 {
    const WIDENS: bool = true;

    #[inline(always)]
    fn widen(self) -> f32 {
        crate::bf16::to_f32(self)
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, at: *const Self) -> L::V {
        // SAFETY: as promised by the caller.
        unsafe { lanes.load_bf16(at) }
    }
}

/// Reads `count < 8` numbers and pads them with zeros.
///
/// # Safety
/// `at` is valid for reads of `count` numbers.
#[inline(always)]
pub(crate) unsafe fn load_tail<L: Lanes, T: Element>(lanes: L, at: *const T, count: usize) -> L::V {
    // SAFETY: as promised by the caller.
    let numbers = unsafe { std::slice::from_raw_parts(at, count) };
    let mut wide = [0.0; LANES];
    for (wide, &number) in wide.iter_mut().zip(numbers) {
        *wide = number.widen();
    }
    lanes.get(&padded(&wide[..count]))
}

/// `N` vectors that are multiplied with every row of a tile.
pub(crate) trait Columns<const N: usize>: Copy {
    /// Elements `i..i + 8` of column `j`.
    ///
    /// # Safety
    /// They exist.
    unsafe fn load<L: Lanes>(&self, lanes: L, j: usize, i: usize) -> L::V;
    /// The last `count < 8` elements of column `j`, from `i` on, padded with zeros.
    ///
    /// # Safety
    /// They exist.
    unsafe fn load_tail<L: Lanes>(&self, lanes: L, j: usize, i: usize, count: usize) -> L::V;
}

/// Columns where they lie: a pointer to each.
#[derive(Clone, Copy)]
pub(crate) struct Direct<T, const N: usize>(pub(crate) [*const T; N]);

impl<T: Element, const N: usize> Columns<N> for Direct<T, N> {
    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, lanes: L, j: usize, i: usize) -> L::V {
        // SAFETY: as promised by the caller.
        unsafe { T::load(lanes, self.0[j].add(i)) }
    }

    #[inline(always)]
    unsafe fn load_tail<L: Lanes>(&self, lanes: L, j: usize, i: usize, count: usize) -> L::V {
        // SAFETY: as promised by the caller.
        unsafe { load_tail(lanes, self.0[j].add(i), count) }
    }
}

/// `N` columns interleaved by eights, the last step padded with zeros: `[ceil(k / 8), N, 8]`.
#[derive(Clone, Copy)]
pub(crate) struct Packed(pub(crate) *const f32);

impl<const N: usize> Columns<N> for Packed {
    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, lanes: L, j: usize, i: usize) -> L::V {
        // SAFETY: as promised by the caller.
        unsafe { lanes.load(self.0.add(i * N + j * LANES)) }
    }

    #[inline(always)]
    unsafe fn load_tail<L: Lanes>(&self, lanes: L, j: usize, i: usize, _count: usize) -> L::V {
        // SAFETY: the padding is part of the panel.
        unsafe { <Self as Columns<N>>::load(self, lanes, j, i) }
    }
}

/// The `M x N` dot products of `M` rows and `N` columns of length `k`.
///
/// # Safety
/// Every row is valid for reads of `k` f32, and every column has `k` elements.
#[inline(always)]
pub(crate) unsafe fn tile<L: Lanes, C: Columns<N>, const M: usize, const N: usize>(
    lanes: L,
    rows: [*const f32; M],
    columns: C,
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
                let w = columns.load(lanes, j, i);
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
            for j in 0..N {
                let w = columns.load_tail(lanes, j, whole, k - whole);
                for m in 0..M {
                    let x = load_tail(lanes, rows[m].add(whole), k - whole);
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
