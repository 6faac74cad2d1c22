//! Eight lanes in one 256-bit register (AVX2, FMA and F16C).

use std::arch::x86_64::*;

use super::{Lanes, NibbleTable};

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Asks the processor.
    pub(crate) fn detect() -> Option<Self> {
        let found = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }
}

impl Lanes for Avx2 {
    type V = __m256;
    type Pair = [__m256; 2];
    const WIDE: bool = false;
    /// Between the exponent biases of E4M3 and f32.
    const E4M3_RAW_PLACES: u8 = 120;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: self proves AVX2 and FMA.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> __m256 {
        // SAFETY: self proves AVX2; the caller promises eight readable f32.
        unsafe { _mm256_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u16) -> __m256 {
        // SAFETY: self proves AVX2; the caller promises eight readable u16.
        unsafe {
            // Both halves of the register get all eight numbers; one shuffle then moves four of them into the
            // upper halves of the lanes. Widening and shifting would take two or three operations.
            let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(at.cast()));
            let spread = _mm256_setr_epi8(
                -1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, //
                -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15,
            );
            _mm256_castsi256_ps(_mm256_shuffle_epi8(both, spread))
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, at: *const u8) -> __m256 {
        // SAFETY: self proves AVX2 and F16C; the caller promises eight readable bytes.
        unsafe {
            let words = _mm_cvtepi8_epi16(_mm_loadl_epi64(at.cast()));
            // Exponent and mantissa move to their places in an f16; of the two copies of the sign the lower goes.
            let halves = _mm_and_si128(_mm_slli_epi16::<7>(words), _mm_set1_epi16(0xbfff_u16.cast_signed()));
            _mm256_cvtph_ps(halves)
        }
    }

    #[inline(always)]
    unsafe fn store(self, value: __m256, at: *mut f32) {
        // SAFETY: self proves AVX2; the caller promises eight writable f32.
        unsafe { _mm256_storeu_ps(at, value) }
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: self proves AVX2 and FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: self proves AVX2.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: self proves AVX2.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: self proves AVX2.
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: self proves AVX2.
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: self proves AVX2.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        // SAFETY: self proves AVX2.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }

    #[inline(always)]
    fn exp2_int(self, a: __m256) -> __m256 {
        // SAFETY: self proves AVX2.
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvttps_epi32(a), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        // SAFETY: self proves AVX2.
        unsafe {
            let quad = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    fn sum4(self, a: [__m256; 4]) -> [f32; 4] {
        // SAFETY: self proves AVX2; the last store writes the sixteen bytes of `out`.
        unsafe {
            // Lane i of a half is i + (i + 4): the first level of the tree, for two sums at once.
            let ab = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(a[0], a[1]),
                _mm256_permute2f128_ps::<0x31>(a[0], a[1]),
            );
            let cd = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(a[2], a[3]),
                _mm256_permute2f128_ps::<0x31>(a[2], a[3]),
            );
            // Second level 0+2, 1+3: halves hold (a, c) and (b, d).
            let pairs = _mm256_add_ps(
                _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
            );
            // Third level: even lanes plus odd lanes; [a a c c | b b d d].
            let whole = _mm256_add_ps(pairs, _mm256_movehdup_ps(pairs));
            let (ac, bd) = (_mm256_castps256_ps128(whole), _mm256_extractf128_ps::<1>(whole));
            let mixed = _mm_blend_ps::<0b1010>(ac, _mm_moveldup_ps(bd));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), mixed);
            out
        }
    }

    #[inline(always)]
    fn pair(self, a: __m256, b: __m256) -> Self::Pair {
        [a, b]
    }

    #[inline(always)]
    fn split(self, a: Self::Pair) -> [__m256; 2] {
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
        unsafe { [self.load(at), self.load(at.add(8))] }
    }

    #[inline(always)]
    unsafe fn store_pair(self, value: Self::Pair, at: *mut f32) {
        // SAFETY: the caller promises sixteen writable f32.
        unsafe {
            self.store(value[0], at);
            self.store(value[1], at.add(8));
        }
    }

    #[inline(always)]
    unsafe fn load_twice(self, at: *const f32) -> Self::Pair {
        // SAFETY: the caller promises eight readable f32.
        let value = unsafe { self.load(at) };
        [value, value]
    }

    #[inline(always)]
    unsafe fn load_bf16_pair(self, at: [*const u16; 2]) -> Self::Pair {
        // SAFETY: the caller promises eight readable u16 at each.
        unsafe { [self.load_bf16(at[0]), self.load_bf16(at[1])] }
    }

    #[inline(always)]
    unsafe fn load_e4m3_pair(self, at: [*const u8; 2]) -> Self::Pair {
        // SAFETY: the caller promises eight readable bytes at each.
        unsafe { [self.load_e4m3(at[0]), self.load_e4m3(at[1])] }
    }

    #[inline(always)]
    unsafe fn load_e4m3_raw(self, at: [*const u8; 2]) -> Self::Pair {
        // SAFETY: self proves AVX2; the caller promises eight readable bytes at each.
        unsafe {
            at.map(|at| {
                // Exponent and mantissa move to their places in an f32; of the copies of the sign the highest stays.
                let words = _mm256_slli_epi32::<20>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())));
                let places = _mm256_set1_epi32(0x87f0_0000_u32.cast_signed());
                _mm256_castsi256_ps(_mm256_and_si256(words, places))
            })
        }
    }

    #[inline(always)]
    unsafe fn load_nibbles32(self, at: [*const u8; 2], tables: [&NibbleTable; 2]) -> [Self::Pair; 4] {
        // SAFETY: self proves AVX2; the caller promises sixteen readable bytes at each.
        let [a, b] = unsafe {
            [
                self.nibbles32(_mm256_broadcastsi128_si256(_mm_loadu_si128(at[0].cast())), tables[0]),
                self.nibbles32(_mm256_broadcastsi128_si256(_mm_loadu_si128(at[1].cast())), tables[1]),
            ]
        };
        [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]], [a[3], b[3]]]
    }

    #[inline(always)]
    unsafe fn load_nibbles16(self, at: [*const u8; 2], tables: [&NibbleTable; 2]) -> [Self::Pair; 2] {
        // SAFETY: self proves AVX2; the caller promises eight readable bytes at each. Only the vectors that come
        // from these bytes are used, so the others are not computed.
        let [a, b] = unsafe {
            [
                self.nibbles32(_mm256_set1_epi64x(at[0].cast::<i64>().read_unaligned()), tables[0]),
                self.nibbles32(_mm256_set1_epi64x(at[1].cast::<i64>().read_unaligned()), tables[1]),
            ]
        };
        [[a[0], b[0]], [a[1], b[1]]]
    }

    #[inline(always)]
    fn nibble_order(self, a: __m256) -> __m256 {
        // SAFETY: self proves AVX2.
        unsafe { _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)) }
    }

    #[inline(always)]
    fn natural_order(self, a: __m256) -> __m256 {
        // SAFETY: self proves AVX2.
        unsafe { _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)) }
    }
}

impl Avx2 {
    /// The values of the codes in sixteen bytes, which are in both halves of `bytes`, in the order of nibbles.
    #[inline(always)]
    fn nibbles32(self, bytes: __m256i, table: &NibbleTable) -> [__m256; 4] {
        // SAFETY: self proves AVX2; both halves of the table are sixteen readable bytes.
        unsafe {
            // The low half works on the low nibbles, the high half on the high ones: from here on, every step stays
            // within the halves.
            let codes = _mm256_and_si256(
                _mm256_srlv_epi32(bytes, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)),
                _mm256_set1_epi8(15),
            );
            let half = |bytes: &[u8; 16]| _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()));
            let high = _mm256_shuffle_epi8(half(&table.high), codes);
            let low = _mm256_shuffle_epi8(half(&table.low), codes);
            let zero = _mm256_setzero_si256();
            let words = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
            [
                _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, words[0])),
                _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, words[0])),
                _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, words[1])),
                _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, words[1])),
            ]
        }
    }
}
