//! Eight lanes in plain Rust: the definition of what the vector implementations must reproduce.

use super::{LANES, Lanes, NibbleTable};

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
    type Pair = [[f32; LANES]; 2];
    const WIDE: bool = false;
    const E4M3_RAW_PLACES: u8 = 8;

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
    unsafe fn load_e4m3(self, at: *const u8) -> Self::V {
        // SAFETY: the caller promises eight readable bytes.
        let codes = unsafe { at.cast::<[u8; LANES]>().read() };
        codes.map(|code| crate::e4m3::decode(code) * (1.0 / 256.0))
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

    #[inline(always)]
    fn pair(self, a: Self::V, b: Self::V) -> Self::Pair {
        [a, b]
    }

    #[inline(always)]
    fn split(self, a: Self::Pair) -> [Self::V; 2] {
        a
    }

    #[inline(always)]
    fn fma_pair(self, a: Self::Pair, b: Self::Pair, c: Self::Pair) -> Self::Pair {
        [self.fma(a[0], b[0], c[0]), self.fma(a[1], b[1], c[1])]
    }

    #[inline(always)]
    fn mul_pair(self, a: Self::Pair, b: Self::Pair) -> Self::Pair {
        [self.mul(a[0], b[0]), self.mul(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn fma_column<const M: usize>(
        self,
        x: &[Self::Pair; M],
        at: *const f32,
        mut sums: [Self::Pair; M],
    ) -> [Self::Pair; M] {
        for half in 0..2 {
            // SAFETY: the caller promises sixteen readable f32.
            let w = unsafe { self.load(at.add(half * 8)) };
            for m in 0..M {
                sums[m][half] = self.fma(x[m][half], w, sums[m][half]);
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn load_pair(self, at: *const f32) -> Self::Pair {
        // SAFETY: the caller promises sixteen readable f32.
        unsafe { [self.load(at), self.load(at.add(LANES))] }
    }

    #[inline(always)]
    unsafe fn store_pair(self, value: Self::Pair, at: *mut f32) {
        // SAFETY: the caller promises sixteen writable f32.
        unsafe {
            self.store(value[0], at);
            self.store(value[1], at.add(LANES));
        }
    }

    #[inline(always)]
    unsafe fn load_twice(self, at: *const f32) -> Self::Pair {
        // SAFETY: the caller promises eight readable f32.
        [unsafe { self.load(at) }; 2]
    }

    #[inline(always)]
    unsafe fn load_bf16_pair(self, at: [*const u16; 2]) -> Self::Pair {
        // SAFETY: the caller promises eight readable u16 at each.
        at.map(|at| unsafe { self.load_bf16(at) })
    }

    #[inline(always)]
    unsafe fn load_e4m3_pair(self, at: [*const u8; 2]) -> Self::Pair {
        // SAFETY: the caller promises eight readable bytes at each.
        at.map(|at| unsafe { self.load_e4m3(at) })
    }

    #[inline(always)]
    unsafe fn load_e4m3_raw(self, at: [*const u8; 2]) -> Self::Pair {
        // SAFETY: as promised by the caller.
        unsafe { self.load_e4m3_pair(at) }
    }

    #[inline(always)]
    unsafe fn load_nibbles32(self, at: [*const u8; 2], tables: [&NibbleTable; 2]) -> [Self::Pair; 4] {
        // SAFETY: the caller promises sixteen readable bytes at each.
        let codes = at.map(|at| unsafe { at.cast::<[u8; 16]>().read() });
        std::array::from_fn(|v| std::array::from_fn(|j| nibbles(&codes[j][4 * v..][..4], tables[j])))
    }

    #[inline(always)]
    unsafe fn load_nibbles16(self, at: [*const u8; 2], tables: [&NibbleTable; 2]) -> [Self::Pair; 2] {
        // SAFETY: the caller promises eight readable bytes at each.
        let codes = at.map(|at| unsafe { at.cast::<[u8; 8]>().read() });
        std::array::from_fn(|v| std::array::from_fn(|j| nibbles(&codes[j][4 * v..][..4], tables[j])))
    }

    #[inline(always)]
    fn nibble_order(self, a: Self::V) -> Self::V {
        [0, 2, 4, 6, 1, 3, 5, 7].map(|i| a[i])
    }

    #[inline(always)]
    fn natural_order(self, a: Self::V) -> Self::V {
        [0, 4, 1, 5, 2, 6, 3, 7].map(|i| a[i])
    }
}

/// The values of the eight codes of four bytes: the low nibbles, then the high nibbles.
#[inline(always)]
fn nibbles(bytes: &[u8], table: &NibbleTable) -> [f32; LANES] {
    std::array::from_fn(|i| table.value(bytes[i % 4] >> (i / 4 * 4)))
}
