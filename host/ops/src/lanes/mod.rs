//! Eight f32 lanes: the one vector type in which every kernel of this crate is written.
//!
//! **Order of sums.** A sum over `k` products runs over `k` in steps of 8 with one fused multiply-add per lane.
//! A last step of `k % 8` products is padded with zeros and treated like any other. The lanes are then added as
//! `((0+4) + (2+6)) + ((1+5) + (3+7))`. Nothing else may decide the order.
//!
//! An implementation is a token: a value of it proves that the processor can execute its operations.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
pub(crate) use portable::Portable;

/// Number of lanes.
pub const LANES: usize = 8;

/// Operations on eight f32 lanes. Every implementation gives the same bits (NaN payloads aside).
pub trait Lanes: Copy {
    /// Eight f32 values.
    type V: Copy;

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
