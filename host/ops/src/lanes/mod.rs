//! Eight f32 lanes: the one vector type in which every kernel of this crate is written.
//!
//! **Order of sums.** A sum over `k` products runs over `k` in steps of 8 with one fused multiply-add per lane.
//! A last step of `k % 8` products is padded with zeros and treated like any other. The lanes are then added as
//! `((0+4) + (2+6)) + ((1+5) + (3+7))`. Nothing else may decide the order.
//!
//! A [pair](Lanes::Pair) holds the lanes of two sums side by side, so that a processor with wider registers can work
//! on two sums at once: the order of each stays the same.
//!
//! An implementation is a token: a value of it proves that the processor can execute its operations.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod nibble;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub use nibble::NibbleTable;
pub(crate) use portable::Portable;

/// Number of lanes.
pub const LANES: usize = 8;

/// Operations on eight f32 lanes. Every implementation gives the same bits (NaN payloads aside).
pub trait Lanes: Copy {
    /// Eight f32 values.
    type V: Copy;

    /// Two vectors of eight lanes.
    type Pair: Copy;
    /// A pair is one register, and there are 32 of them; otherwise it is two of 16.
    const WIDE: bool;
    /// Binary places by which [`Self::load_e4m3_raw`] makes values too small.
    const E4M3_RAW_PLACES: u8;

    /// The same value in all lanes.
    fn splat(self, value: f32) -> Self::V;
    /// Reads eight values.
    ///
    /// # Safety
    /// `at` is valid for reads of eight f32, of any alignment that f32 allows.
    unsafe fn load(self, at: *const f32) -> Self::V;
    /// Reads and widens eight bf16 values.
    ///
    /// # Safety
    /// `at` is valid for reads of eight u16.
    unsafe fn load_bf16(self, at: *const u16) -> Self::V;
    /// Reads eight E4M3 codes: 2^-8 times their values. The factor comes free: it is between the exponent biases
    /// of E4M3 and the f16 that processors can widen.
    ///
    /// # Safety
    /// `at` is valid for reads of eight bytes.
    unsafe fn load_e4m3(self, at: *const u8) -> Self::V;
    /// Writes eight values.
    ///
    /// # Safety
    /// `at` is valid for writes of eight f32.
    unsafe fn store(self, value: Self::V, at: *mut f32);

    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`: a NaN in either gives `b`.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: a NaN in either gives `b`.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// 2 to the power of lanes that hold integers in -126..=127; anything for other values.
    fn exp2_int(self, a: Self::V) -> Self::V;
    /// Sum of the lanes in the fixed order.
    fn sum(self, a: Self::V) -> f32;
    /// Four sums at once, each in the fixed order.
    fn sum4(self, a: [Self::V; 4]) -> [f32; 4];

    /// Two vectors as a pair.
    fn pair(self, a: Self::V, b: Self::V) -> Self::Pair;
    /// The two vectors of a pair.
    fn split(self, a: Self::Pair) -> [Self::V; 2];
    /// `a * b + c` with one rounding, in all lanes of a pair.
    fn fma_pair(self, a: Self::Pair, b: Self::Pair, c: Self::Pair) -> Self::Pair;
    /// `a * b` in all lanes of a pair.
    fn mul_pair(self, a: Self::Pair, b: Self::Pair) -> Self::Pair;
    /// One pair of weights times `M` pairs: `sums[m] + x[m] * at`, the weights read from `at`. An implementation
    /// keeps the number of values that are alive at once as low as it can: tiles fill all registers.
    ///
    /// # Safety
    /// `at` is valid for reads of sixteen f32.
    unsafe fn fma_column<const M: usize>(
        self,
        x: &[Self::Pair; M],
        at: *const f32,
        sums: [Self::Pair; M],
    ) -> [Self::Pair; M];
    /// Reads sixteen values.
    ///
    /// # Safety
    /// `at` is valid for reads of sixteen f32.
    unsafe fn load_pair(self, at: *const f32) -> Self::Pair;
    /// Writes sixteen values.
    ///
    /// # Safety
    /// `at` is valid for writes of sixteen f32.
    unsafe fn store_pair(self, value: Self::Pair, at: *mut f32);
    /// Reads eight values into both vectors of a pair.
    ///
    /// # Safety
    /// `at` is valid for reads of eight f32.
    unsafe fn load_twice(self, at: *const f32) -> Self::Pair;
    /// [`Self::load_bf16`] for both vectors of a pair.
    ///
    /// # Safety
    /// Each of `at` is valid for reads of eight u16.
    unsafe fn load_bf16_pair(self, at: [*const u16; 2]) -> Self::Pair;
    /// [`Self::load_e4m3`] for both vectors of a pair.
    ///
    /// # Safety
    /// Each of `at` is valid for reads of eight bytes.
    unsafe fn load_e4m3_pair(self, at: [*const u8; 2]) -> Self::Pair;
    /// Reads eight E4M3 codes twice over as fast as this processor can: 2^-[`Self::E4M3_RAW_PLACES`] times their
    /// values, exactly, which may be subnormal.
    ///
    /// # Safety
    /// Each of `at` is valid for reads of eight bytes.
    unsafe fn load_e4m3_raw(self, at: [*const u8; 2]) -> Self::Pair;
    /// The values of 32 four-bit codes, the low nibble first, for both vectors of four pairs. Each vector holds its
    /// eight values in the order of nibbles: `0 2 4 6 1 3 5 7`.
    ///
    /// # Safety
    /// Each of `at` is valid for reads of sixteen bytes.
    unsafe fn load_nibbles32(self, at: [*const u8; 2], tables: [&NibbleTable; 2]) -> [Self::Pair; 4];
    /// [`Self::load_nibbles32`] for 16 codes.
    ///
    /// # Safety
    /// Each of `at` is valid for reads of eight bytes.
    unsafe fn load_nibbles16(self, at: [*const u8; 2], tables: [&NibbleTable; 2]) -> [Self::Pair; 2];
    /// Puts eight lanes into the order of nibbles: `0 2 4 6 1 3 5 7`.
    fn nibble_order(self, a: Self::V) -> Self::V;
    /// Undoes [`Self::nibble_order`].
    fn natural_order(self, a: Self::V) -> Self::V;

    /// Writes the upper halves of eight numbers each: bf16, cut off.
    ///
    /// # Safety
    /// Each of `at` is valid for writes of eight u16.
    #[inline(always)]
    unsafe fn store_upper(self, value: Self::Pair, at: [*mut u16; 2]) {
        for (value, at) in self.split(value).into_iter().zip(at) {
            let mut numbers = [0.0; LANES];
            self.put(value, &mut numbers);
            // SAFETY: as promised by the caller.
            unsafe { at.cast::<[u16; LANES]>().write_unaligned(numbers.map(|x| (x.to_bits() >> 16) as u16)) };
        }
    }
    /// Writes 16 x 16 numbers with rows and columns exchanged.
    ///
    /// # Safety
    /// `to` is valid for writes of 256 u32.
    #[inline(always)]
    unsafe fn transpose16(self, from: &[[u32; 16]; 16], to: *mut u32) {
        for (row, line) in from.iter().enumerate() {
            for (column, &number) in line.iter().enumerate() {
                // SAFETY: as promised by the caller.
                unsafe { *to.add(column * 16 + row) = number };
            }
        }
    }

    /// Reads an array.
    #[inline(always)]
    fn get(self, from: &[f32; LANES]) -> Self::V {
        // SAFETY: an array of eight f32 is readable.
        unsafe { self.load(from.as_ptr()) }
    }

    /// Writes an array.
    #[inline(always)]
    fn put(self, value: Self::V, to: &mut [f32; LANES]) {
        // SAFETY: an array of eight f32 is writable.
        unsafe { self.store(value, to.as_mut_ptr()) }
    }
}

/// Up to eight values followed by zeros: the padded last step of a sum.
#[inline(always)]
pub(crate) fn padded(tail: &[f32]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    out[..tail.len()].copy_from_slice(tail);
    out
}
