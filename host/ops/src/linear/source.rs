//! How the kernels read weights: a few numbers of two rows at once, widened to f32.
//!
//! Every format gives exactly the numbers of [`super::Mat::row_f32`].

use super::weight::{FP8_BLOCK, MXFP4_BLOCK, NVFP4_BLOCK};
use crate::formats::ue8m0;
use crate::lanes::nibble::{self, NibbleTable};
use crate::lanes::{LANES, Lanes};
use crate::{bf16, e4m3};

/// A weight matrix whose numbers are read `8 S` at a time. Only a source with `S` = 1 may have a `k` that is no
/// multiple of `8 S`.
pub(super) trait Source<const S: usize>: Copy {
    /// Numbers of a row that lie in a cache line, so that they share what [`Self::scale`] gives.
    const BLOCK: usize;
    /// One row is widened at about the speed of memory: without prefetching, the two would take turns.
    const ASKS_AHEAD: bool = false;
    /// Vectors come in the order of nibbles, see [`Lanes::nibble_order`].
    const NIBBLES: bool;
    /// From this number of rows of `x` on, it is faster to unpack the weights into a panel.
    const MANY_ROWS: usize;
    /// Where a row lies.
    type Row: Copy;
    /// What scales a block of numbers of two rows.
    type Scale<L: Lanes>: Copy;

    /// Finds a row.
    ///
    /// # Safety
    /// The row exists.
    unsafe fn row(self, row: usize) -> Self::Row;
    /// Number of rows from `row` on, itself included, that have the same scales.
    fn alike(self, _row: usize) -> usize {
        usize::MAX
    }
    /// What scales number `i` and the rest of its block, for two rows.
    ///
    /// # Safety
    /// Number `i` exists.
    unsafe fn scale<L: Lanes>(self, lanes: L, rows: [Self::Row; 2], i: usize) -> Self::Scale<L>;
    /// Numbers `i .. i + 8 S` of two rows; `scale` belongs to the block of `i`.
    ///
    /// # Safety
    /// They exist, and `i` is a multiple of `8 S`.
    unsafe fn load<L: Lanes>(lanes: L, rows: [Self::Row; 2], i: usize, scale: Self::Scale<L>)
    -> [L::Pair; S];
    /// Eight numbers of `x` as they are multiplied with what [`Self::load`] gives.
    #[inline(always)]
    fn scale_x<L: Lanes>(_lanes: L, x: L::Pair, _scale: Self::Scale<L>) -> L::Pair {
        x
    }
    /// Number `i` of a row.
    ///
    /// # Safety
    /// It exists.
    unsafe fn number(self, row: Self::Row, i: usize) -> f32;
    /// Asks for the cache line that lies, or would lie, so many bytes after the start of a row: it need not exist.
    fn prefetch(row: Self::Row, bytes: usize);
}

/// The last `count < 8` numbers of two rows, from `i` on, padded with zeros.
///
/// # Safety
/// They exist.
#[inline(always)]
pub(super) unsafe fn load_tail<const S: usize, L: Lanes, W: Source<S>>(
    lanes: L,
    w: W,
    rows: [W::Row; 2],
    i: usize,
    count: usize,
) -> L::Pair {
    let mut tail = [[0.0; LANES]; 2];
    for (row, tail) in rows.into_iter().zip(&mut tail) {
        for (at, tail) in tail[..count].iter_mut().enumerate() {
            // SAFETY: as promised by the caller.
            *tail = unsafe { w.number(row, i + at) };
        }
    }
    lanes.pair(lanes.get(&tail[0]), lanes.get(&tail[1]))
}

/// Asks for a cache line.
#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed, and SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Numbers without scales, row after row.
#[derive(Clone, Copy)]
pub(super) struct Plain<T> {
    pub(super) data: *const T,
    pub(super) k: usize,
}

impl Source<1> for Plain<f32> {
    const BLOCK: usize = 16;
    const NIBBLES: bool = false;
    const MANY_ROWS: usize = 16;
    type Row = *const f32;
    type Scale<L: Lanes> = ();

    #[inline(always)]
    unsafe fn row(self, row: usize) -> *const f32 {
        // SAFETY: as promised by the caller.
        unsafe { self.data.add(row * self.k) }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes>(self, _lanes: L, _rows: [*const f32; 2], _i: usize) {}

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, rows: [*const f32; 2], i: usize, _scale: ()) -> [L::Pair; 1] {
        // SAFETY: as promised by the caller.
        unsafe { [lanes.pair(lanes.load(rows[0].add(i)), lanes.load(rows[1].add(i)))] }
    }

    #[inline(always)]
    unsafe fn number(self, row: *const f32, i: usize) -> f32 {
        // SAFETY: as promised by the caller.
        unsafe { *row.add(i) }
    }

    #[inline(always)]
    fn prefetch(row: *const f32, bytes: usize) {
        prefetch(row.cast::<u8>().wrapping_add(bytes));
    }
}

/// bf16 bits.
impl Source<1> for Plain<u16> {
    const BLOCK: usize = 32;
    const NIBBLES: bool = false;
    const MANY_ROWS: usize = 8;
    type Row = *const u16;
    type Scale<L: Lanes> = ();

    #[inline(always)]
    unsafe fn row(self, row: usize) -> *const u16 {
        // SAFETY: as promised by the caller.
        unsafe { self.data.add(row * self.k) }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes>(self, _lanes: L, _rows: [*const u16; 2], _i: usize) {}

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, rows: [*const u16; 2], i: usize, _scale: ()) -> [L::Pair; 1] {
        // SAFETY: as promised by the caller.
        unsafe { [lanes.load_bf16_pair([rows[0].add(i), rows[1].add(i)])] }
    }

    #[inline(always)]
    unsafe fn number(self, row: *const u16, i: usize) -> f32 {
        // SAFETY: as promised by the caller.
        bf16::to_f32(unsafe { *row.add(i) })
    }

    #[inline(always)]
    fn prefetch(row: *const u16, bytes: usize) {
        prefetch(row.cast::<u8>().wrapping_add(bytes));
    }
}

/// Where the codes and the scales of a packed row lie.
#[derive(Clone, Copy)]
pub(super) struct PackedRow {
    codes: *const u8,
    scales: *const u8,
}

/// FP8 with UE8M0 scales that [`fp8_fits`]. If `TO_X`, the scales go to `x`, for which [`fp8_exact`] must hold.
#[derive(Clone, Copy)]
pub(super) struct Fp8<const TO_X: bool> {
    pub(super) codes: *const u8,
    pub(super) scales: *const u8,
    pub(super) skip: usize,
    pub(super) k: usize,
}

/// Steps of UE8M0 by which [`Lanes::load_e4m3`] makes values too small.
const E4M3_STEPS: u8 = 8;

/// Every weight is an f32, and so is 2^8 times every scale. Greater scales are beyond what real weights have: 2^120
/// and more.
pub(super) fn fp8_fits(scales: &[u8]) -> bool {
    scales.iter().all(|&scale| scale <= u8::MAX - 1 - E4M3_STEPS)
}

/// [`exponents`] of nothing.
pub(super) const NO_NUMBERS: (u32, u32) = (255, 0);

/// The least and the greatest exponent of numbers, as f32 holds them, zeros aside: subnormal numbers have 0,
/// infinities and NaN 255. `seen` is what came before.
#[inline(always)]
pub(super) fn exponents(x: &[f32], seen: (u32, u32)) -> (u32, u32) {
    let (mut least, mut greatest) = (seen.0 << 23, seen.1 << 23);
    for x in x {
        let bits = x.to_bits() & 0x7fff_ffff;
        least = least.min(if bits == 0 { u32::MAX } else { bits });
        greatest = greatest.max(bits);
    }
    (least >> 23, greatest >> 23)
}

/// Whether numbers with these [`exponents`] stay exact if they are multiplied with any of the scales and 2^`places`.
/// Then `(x * scale) * code` is the same product as `x * (code * scale)`, which a multiply-add takes without rounding.
/// All factors are f32, too.
pub(super) fn fp8_exact((least, greatest): (u32, u32), scales: &[u8], places: u8) -> bool {
    let (low, high) = scales.iter().fold((u8::MAX, 0), |(a, b), &s| (a.min(s), b.max(s)));
    if high > u8::MAX - 1 - places {
        return false;
    }
    let product = |exponent: u32, scale: u8| i64::from(exponent) + i64::from(scale + places) - 127;
    // Subnormal numbers may lose bits, and so may results that are not normal numbers.
    least > 0 && greatest < 255 && product(least, low) >= 1 && product(greatest, high) <= 254
}

impl<const TO_X: bool> Source<1> for Fp8<TO_X> {
    const BLOCK: usize = 64;
    const ASKS_AHEAD: bool = true;
    const NIBBLES: bool = false;
    const MANY_ROWS: usize = 8;
    type Row = PackedRow;
    type Scale<L: Lanes> = L::Pair;

    #[inline(always)]
    unsafe fn row(self, row: usize) -> PackedRow {
        // SAFETY: as promised by the caller.
        unsafe {
            PackedRow {
                codes: self.codes.add(row * self.k),
                scales: self.scales.add((self.skip + row) / FP8_BLOCK * self.k.div_ceil(FP8_BLOCK)),
            }
        }
    }

    #[inline(always)]
    fn alike(self, row: usize) -> usize {
        FP8_BLOCK - (self.skip + row) % FP8_BLOCK
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes>(self, lanes: L, rows: [PackedRow; 2], i: usize) -> L::Pair {
        let scale = |row: PackedRow| {
            // SAFETY: as promised by the caller.
            let code = unsafe { *row.scales.add(i / FP8_BLOCK) };
            lanes.splat(ue8m0::decode(code + if TO_X { L::E4M3_RAW_PLACES } else { E4M3_STEPS }))
        };
        lanes.pair(scale(rows[0]), scale(rows[1]))
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, rows: [PackedRow; 2], i: usize, scale: L::Pair) -> [L::Pair; 1] {
        // SAFETY: as promised by the caller.
        unsafe {
            let at = [rows[0].codes.add(i), rows[1].codes.add(i)];
            [if TO_X { lanes.load_e4m3_raw(at) } else { lanes.mul_pair(lanes.load_e4m3_pair(at), scale) }]
        }
    }

    #[inline(always)]
    fn scale_x<L: Lanes>(lanes: L, x: L::Pair, scale: L::Pair) -> L::Pair {
        if TO_X { lanes.mul_pair(x, scale) } else { x }
    }

    #[inline(always)]
    unsafe fn number(self, row: PackedRow, i: usize) -> f32 {
        // SAFETY: as promised by the caller.
        unsafe { e4m3::decode(*row.codes.add(i)) * ue8m0::decode(*row.scales.add(i / FP8_BLOCK)) }
    }

    #[inline(always)]
    fn prefetch(row: PackedRow, bytes: usize) {
        prefetch(row.codes.wrapping_add(bytes));
    }
}

/// MXFP4.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4 {
    pub(super) codes: *const u8,
    pub(super) scales: *const u8,
    pub(super) k: usize,
}

impl Source<4> for Mxfp4 {
    const BLOCK: usize = 128;
    const NIBBLES: bool = true;
    const MANY_ROWS: usize = 6;
    type Row = PackedRow;
    type Scale<L: Lanes> = ();

    #[inline(always)]
    unsafe fn row(self, row: usize) -> PackedRow {
        // SAFETY: as promised by the caller.
        unsafe {
            PackedRow {
                codes: self.codes.add(row * (self.k / 2)),
                scales: self.scales.add(row * (self.k / MXFP4_BLOCK)),
            }
        }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes>(self, _lanes: L, _rows: [PackedRow; 2], _i: usize) {}

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, rows: [PackedRow; 2], i: usize, _scale: ()) -> [L::Pair; 4] {
        // SAFETY: as promised by the caller: i starts a block of 32 numbers, which are 16 bytes.
        unsafe {
            let table = |row: PackedRow| &nibble::UE8M0[usize::from(*row.scales.add(i / MXFP4_BLOCK))];
            let codes = [rows[0].codes.add(i / 2), rows[1].codes.add(i / 2)];
            lanes.load_nibbles32(codes, [table(rows[0]), table(rows[1])])
        }
    }

    #[inline(always)]
    unsafe fn number(self, row: PackedRow, i: usize) -> f32 {
        // SAFETY: as promised by the caller.
        unsafe { number(row, i, &nibble::UE8M0[usize::from(*row.scales.add(i / MXFP4_BLOCK))]) }
    }

    #[inline(always)]
    fn prefetch(row: PackedRow, bytes: usize) {
        prefetch(row.codes.wrapping_add(bytes));
    }
}

/// NVFP4.
#[derive(Clone, Copy)]
pub(super) struct Nvfp4 {
    pub(super) codes: *const u8,
    pub(super) scales: *const u8,
    pub(super) global: f32,
    pub(super) k: usize,
}

impl Source<2> for Nvfp4 {
    const BLOCK: usize = 128;
    const NIBBLES: bool = true;
    const MANY_ROWS: usize = 6;
    type Row = PackedRow;
    type Scale<L: Lanes> = L::Pair;

    #[inline(always)]
    unsafe fn row(self, row: usize) -> PackedRow {
        // SAFETY: as promised by the caller.
        unsafe {
            PackedRow {
                codes: self.codes.add(row * (self.k / 2)),
                scales: self.scales.add(row * (self.k / NVFP4_BLOCK)),
            }
        }
    }

    #[inline(always)]
    unsafe fn scale<L: Lanes>(self, lanes: L, _rows: [PackedRow; 2], _i: usize) -> L::Pair {
        let global = lanes.splat(self.global);
        lanes.pair(global, global)
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, rows: [PackedRow; 2], i: usize, global: L::Pair) -> [L::Pair; 2] {
        // SAFETY: as promised by the caller: i starts a block of 16 numbers, which are 8 bytes.
        unsafe {
            let table = |row: PackedRow| &nibble::E4M3[usize::from(*row.scales.add(i / NVFP4_BLOCK))];
            let codes = [rows[0].codes.add(i / 2), rows[1].codes.add(i / 2)];
            let [a, b] = lanes.load_nibbles16(codes, [table(rows[0]), table(rows[1])]);
            [lanes.mul_pair(a, global), lanes.mul_pair(b, global)]
        }
    }

    #[inline(always)]
    unsafe fn number(self, row: PackedRow, i: usize) -> f32 {
        // SAFETY: as promised by the caller.
        unsafe { number(row, i, &nibble::E4M3[usize::from(*row.scales.add(i / NVFP4_BLOCK))]) * self.global }
    }

    #[inline(always)]
    fn prefetch(row: PackedRow, bytes: usize) {
        prefetch(row.codes.wrapping_add(bytes));
    }
}

/// Number `i` of a row of nibbles.
///
/// # Safety
/// It exists.
#[inline(always)]
unsafe fn number(row: PackedRow, i: usize, table: &NibbleTable) -> f32 {
    // SAFETY: as promised by the caller.
    table.value(unsafe { *row.codes.add(i / 2) } >> (i % 2 * 4))
}
