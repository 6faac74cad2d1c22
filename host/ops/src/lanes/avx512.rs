//! Eight lanes in a 256-bit register, pairs in a 512-bit register.

use std::arch::x86_64::*;

use super::{Avx2, Lanes, NibbleTable};

/// Proof that the processor has AVX-512 F, BW, DQ and VL, and all that [`Avx2`] needs.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(Avx2);

impl Avx512 {
    /// Asks the processor.
    pub(crate) fn detect() -> Option<Self> {
        let found = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512dq")
            && std::is_x86_feature_detected!("avx512vl");
        Avx2::detect().filter(|_| found).map(Self)
    }
}

/// Two 128-bit vectors as the halves of a 256-bit one.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn halves(a: __m128i, b: __m128i) -> __m256i {
    // SAFETY: as promised by the caller.
    unsafe { _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b) }
}

/// Two 128-bit vectors, each twice: `a a b b`.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn quarters(a: __m128i, b: __m128i) -> __m512i {
    // SAFETY: as promised by the caller.
    unsafe {
        let a = _mm512_castsi256_si512(_mm256_broadcastsi128_si256(a));
        _mm512_inserti64x4::<1>(a, _mm256_broadcastsi128_si256(b))
    }
}

impl Lanes for Avx512 {
    type V = __m256;
    type Pair = __m512;
    const WIDE: bool = true;
    /// As [`Lanes::load_e4m3`]: subnormal operands slow down the processors that have AVX-512.
    const E4M3_RAW_PLACES: u8 = 8;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        self.0.splat(value)
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> __m256 {
        // SAFETY: as promised by the caller.
        unsafe { self.0.load(at) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u16) -> __m256 {
        // SAFETY: as promised by the caller.
        unsafe { self.0.load_bf16(at) }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, at: *const u8) -> __m256 {
        // SAFETY: as promised by the caller.
        unsafe { self.0.load_e4m3(at) }
    }

    #[inline(always)]
    unsafe fn store(self, value: __m256, at: *mut f32) {
        // SAFETY: as promised by the caller.
        unsafe { self.0.store(value, at) }
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        self.0.fma(a, b, c)
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        self.0.add(a, b)
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        self.0.mul(a, b)
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        self.0.div(a, b)
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        self.0.min(a, b)
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        self.0.max(a, b)
    }

    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        self.0.round(a)
    }

    #[inline(always)]
    fn exp2_int(self, a: __m256) -> __m256 {
        self.0.exp2_int(a)
    }

    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        self.0.sum(a)
    }

    #[inline(always)]
    fn sum4(self, a: [__m256; 4]) -> [f32; 4] {
        self.0.sum4(a)
    }

    #[inline(always)]
    fn pair(self, a: __m256, b: __m256) -> __m512 {
        // SAFETY: self proves AVX-512 DQ.
        unsafe { _mm512_insertf32x8::<1>(_mm512_castps256_ps512(a), b) }
    }

    #[inline(always)]
    fn split(self, a: __m512) -> [__m256; 2] {
        // SAFETY: self proves AVX-512 DQ.
        unsafe { [_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)] }
    }

    #[inline(always)]
    fn fma_pair(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: self proves AVX-512 F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn mul_pair(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: self proves AVX-512 F.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma_column<const M: usize>(
        self,
        x: &[Self::Pair; M],
        at: *const f32,
        mut sums: [Self::Pair; M],
    ) -> [Self::Pair; M] {
        // SAFETY: the caller promises sixteen readable f32.
        let w = unsafe { self.load_pair(at) };
        for m in 0..M {
            sums[m] = self.fma_pair(x[m], w, sums[m]);
        }
        sums
    }

    #[inline(always)]
    unsafe fn load_pair(self, at: *const f32) -> __m512 {
        // SAFETY: self proves AVX-512 F; the caller promises sixteen readable f32.
        unsafe { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn store_pair(self, value: __m512, at: *mut f32) {
        // SAFETY: self proves AVX-512 F; the caller promises sixteen writable f32.
        unsafe { _mm512_storeu_ps(at, value) }
    }

    #[inline(always)]
    unsafe fn load_twice(self, at: *const f32) -> __m512 {
        // SAFETY: self proves AVX-512 DQ; the caller promises eight readable f32.
        unsafe { _mm512_broadcast_f32x8(_mm256_loadu_ps(at)) }
    }

    #[inline(always)]
    unsafe fn load_bf16_pair(self, at: [*const u16; 2]) -> __m512 {
        // SAFETY: self proves AVX-512 F; the caller promises eight readable u16 at each.
        unsafe {
            let both = halves(_mm_loadu_si128(at[0].cast()), _mm_loadu_si128(at[1].cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(both)))
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3_pair(self, at: [*const u8; 2]) -> __m512 {
        // SAFETY: self proves AVX-512 F; the caller promises eight readable bytes at each.
        unsafe {
            let both = _mm_unpacklo_epi64(_mm_loadl_epi64(at[0].cast()), _mm_loadl_epi64(at[1].cast()));
            // As in `Avx2::load_e4m3`.
            let words = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(both));
            _mm512_cvtph_ps(_mm256_and_si256(words, _mm256_set1_epi16(0xbfff_u16.cast_signed())))
        }
    }

    #[inline(always)]
    unsafe fn load_e4m3_raw(self, at: [*const u8; 2]) -> __m512 {
        // SAFETY: as promised by the caller.
        unsafe { self.load_e4m3_pair(at) }
    }

    #[inline(always)]
    unsafe fn load_nibbles32(self, at: [*const u8; 2], tables: [&NibbleTable; 2]) -> [__m512; 4] {
        // SAFETY: self proves AVX-512 F and BW; the caller promises sixteen readable bytes at each.
        unsafe { self.nibbles32([_mm_loadu_si128(at[0].cast()), _mm_loadu_si128(at[1].cast())], tables) }
    }

    #[inline(always)]
    unsafe fn load_nibbles16(self, at: [*const u8; 2], tables: [&NibbleTable; 2]) -> [__m512; 2] {
        // SAFETY: self proves AVX-512 F and BW; the caller promises eight readable bytes at each. Only the pairs
        // that come from these bytes are used, so the others are not computed.
        let pairs =
            unsafe { self.nibbles32([_mm_loadl_epi64(at[0].cast()), _mm_loadl_epi64(at[1].cast())], tables) };
        [pairs[0], pairs[1]]
    }

    #[inline(always)]
    unsafe fn store_upper(self, value: __m512, at: [*mut u16; 2]) {
        // SAFETY: self proves AVX-512 F; the caller promises eight writable u16 at each.
        unsafe {
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(value)));
            _mm_storeu_si128(at[0].cast(), _mm256_castsi256_si128(halves));
            _mm_storeu_si128(at[1].cast(), _mm256_extracti128_si256::<1>(halves));
        }
    }

    #[inline(always)]
    unsafe fn transpose16(self, from: &[[u32; 16]; 16], to: *mut u32) {
        // SAFETY: self proves AVX-512 F; the caller promises 256 writable u32.
        unsafe {
            let rows: [__m512i; 16] =
                std::array::from_fn(|row| _mm512_loadu_si512(from[row].as_ptr().cast()));
            // First each quarter of four rows is turned: quarter q of register 4g+c is column 4q+c of rows 4g..4g+4.
            let mut ones = [_mm512_setzero_si512(); 16];
            for pair in 0..8 {
                ones[2 * pair] = _mm512_unpacklo_epi32(rows[2 * pair], rows[2 * pair + 1]);
                ones[2 * pair + 1] = _mm512_unpackhi_epi32(rows[2 * pair], rows[2 * pair + 1]);
            }
            let mut twos = [_mm512_setzero_si512(); 16];
            for four in 0..4 {
                for side in 0..2 {
                    let (a, b) = (ones[4 * four + side], ones[4 * four + 2 + side]);
                    twos[4 * four + 2 * side] = _mm512_unpacklo_epi64(a, b);
                    twos[4 * four + 2 * side + 1] = _mm512_unpackhi_epi64(a, b);
                }
            }
            // Then the quarters of a column are gathered from four registers.
            for c in 0..4 {
                let (a, b) = (twos[c], twos[4 + c]);
                let (d, e) = (twos[8 + c], twos[12 + c]);
                let (low, high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
                let (low2, high2) = (_mm512_shuffle_i32x4::<0x44>(d, e), _mm512_shuffle_i32x4::<0xee>(d, e));
                let columns = [
                    _mm512_shuffle_i32x4::<0x88>(low, low2),
                    _mm512_shuffle_i32x4::<0xdd>(low, low2),
                    _mm512_shuffle_i32x4::<0x88>(high, high2),
                    _mm512_shuffle_i32x4::<0xdd>(high, high2),
                ];
                for (q, column) in columns.into_iter().enumerate() {
                    _mm512_storeu_si512(to.add((4 * q + c) * 16).cast(), column);
                }
            }
        }
    }

    #[inline(always)]
    fn nibble_order(self, a: __m256) -> __m256 {
        self.0.nibble_order(a)
    }

    #[inline(always)]
    fn natural_order(self, a: __m256) -> __m256 {
        self.0.natural_order(a)
    }
}

impl Avx512 {
    /// The values of the codes in sixteen bytes each, in the order of nibbles: the steps of `Avx2::nibbles32`.
    #[inline(always)]
    fn nibbles32(self, bytes: [__m128i; 2], tables: [&NibbleTable; 2]) -> [__m512; 4] {
        // SAFETY: self proves AVX-512 F and BW; both halves of a table are sixteen readable bytes.
        unsafe {
            let shifts = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4);
            let codes = _mm512_and_si512(
                _mm512_srlv_epi32(quarters(bytes[0], bytes[1]), shifts),
                _mm512_set1_epi8(15),
            );
            let half = |bytes: &[u8; 16]| _mm_loadu_si128(bytes.as_ptr().cast());
            let high = quarters(half(&tables[0].high), half(&tables[1].high));
            let low = quarters(half(&tables[0].low), half(&tables[1].low));
            let (high, low) = (_mm512_shuffle_epi8(high, codes), _mm512_shuffle_epi8(low, codes));
            let zero = _mm512_setzero_si512();
            let words = [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)];
            [
                _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, words[0])),
                _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, words[0])),
                _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, words[1])),
                _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, words[1])),
            ]
        }
    }
}
