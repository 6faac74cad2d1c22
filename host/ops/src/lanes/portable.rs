//! Eight lanes in plain Rust: the definition of what the vector implementations must reproduce.

use super::{LANES, Lanes};

/// Plain Rust lanes; works everywhere.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Applies a binary operation to each lane.
#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], op: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| op(a[i], b[i]))
}

impl Lanes for Portable {
    type V = [f32; LANES];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> Self::V {
        // SAFETY: the caller promises eight readable f32.
        unsafe { at.cast::<[f32; LANES]>().read() }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u16) -> Self::V {
        // SAFETY: the caller promises eight readable u16.
        let bits = unsafe { at.cast::<[u16; LANES]>().read() };
        bits.map(crate::bf16::to_f32)
    }

    #[inline(always)]
    unsafe fn store(self, value: Self::V, at: *mut f32) {
        // SAFETY: the caller promises eight writable f32.
        unsafe { at.cast::<[f32; LANES]>().write(value) }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        a.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn exp2_int(self, a: Self::V) -> Self::V {
        a.map(|a| f32::from_bits((a as i32).wrapping_add(127).cast_unsigned() << 23))
    }

    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }

    #[inline(always)]
    fn sum4(self, a: [Self::V; 4]) -> [f32; 4] {
        a.map(|a| self.sum(a))
    }
}
