//! Weight matrices as they lie in a checkpoint, and what their numbers mean.

use crate::formats::{e2m1, ue8m0};
use crate::{bf16, e4m3};

/// Rows and columns of a block of FP8 weights that share a scale.
pub(super) const FP8_BLOCK: usize = 128;
/// Numbers of a row that share a scale in MXFP4.
pub(super) const MXFP4_BLOCK: usize = 32;
/// Numbers of a row that share a scale in NVFP4.
pub(super) const NVFP4_BLOCK: usize = 16;

/// The numbers of a weight matrix `[n, k]` as they lie in the checkpoint.
///
/// A packed weight is `code * scale`. Scales of FP8 and MXFP4 are powers of two, so the product is exact in f32
/// unless it is beyond the range of f32. NVFP4 is `(code * scale) * global`: the first product is exact, the second
/// rounds once. A product of [`crate::linear`] with a packed matrix has the bits of the product with its f32 form,
/// see [`dequantise`].
///
/// Loaders refuse the NaN codes of E4M3 (`0x7f`, `0xff`) and UE8M0 (255). With such codes results are unspecified
/// numbers.
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// bfloat16: the upper halves of 32-bit floats.
    Bf16(&'a [u16]),
    /// FP8 with a scale for each block of 128 x 128.
    Fp8 {
        /// E4M3 codes, `[n, k]`.
        codes: &'a [u8],
        /// UE8M0 scales, `[ceil((skip + n) / 128), ceil(k / 128)]`.
        scales: &'a [u8],
        /// Rows of the first block of scales that lie before row 0, below 128: for row ranges of a larger matrix.
        skip: usize,
    },
    /// MXFP4: a scale for each 32 numbers of a row. `k` is a multiple of 32.
    Mxfp4 {
        /// Two E2M1 codes a byte, the low nibble first, `[n, k / 2]`.
        codes: &'a [u8],
        /// UE8M0 scales, `[n, k / 32]`.
        scales: &'a [u8],
    },
    /// NVFP4: a scale for each 16 numbers of a row, and one for the matrix. `k` is a multiple of 16.
    Nvfp4 {
        /// Two E2M1 codes a byte, the low nibble first, `[n, k / 2]`.
        codes: &'a [u8],
        /// E4M3 scales, `[n, k / 16]`.
        scales: &'a [u8],
        /// Scale of all numbers.
        global: f32,
    },
}

impl<'a> Weight<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::Bf16(data) => data.len(),
            Self::Fp8 { codes, .. } => codes.len(),
            Self::Mxfp4 { codes, .. } | Self::Nvfp4 { codes, .. } => codes.len() * 2,
        }
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A weight matrix `[n, k]`, row-major: `n` outputs, `k` inputs.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a> {
    /// `n * k` elements.
    pub data: Weight<'a>,
    /// Rows: number of outputs.
    pub n: usize,
    /// Columns: number of inputs.
    pub k: usize,
}

impl<'a> Mat<'a> {
    /// Rows `first .. first + count` of the matrix, without a copy.
    ///
    /// # Panics
    /// If the matrix has fewer rows, or its lengths do not match its shape.
    pub fn rows(self, first: usize, count: usize) -> Self {
        self.check("Mat::rows");
        let Self { data, n, k } = self;
        let inside = first <= n && count <= n - first;
        assert!(inside, "Mat::rows: {count} rows from {first} on end outside the {n} rows of the matrix");
        /// Rows of a dense array of rows.
        fn part<T>(data: &[T], first: usize, count: usize, width: usize) -> &[T] {
            &data[first * width..][..count * width]
        }
        let data = match data {
            Weight::F32(data) => Weight::F32(part(data, first, count, k)),
            Weight::Bf16(data) => Weight::Bf16(part(data, first, count, k)),
            Weight::Fp8 { codes, scales, skip } => {
                let (row, across) = (skip + first, k.div_ceil(FP8_BLOCK));
                let (block, skip) = (row / FP8_BLOCK, row % FP8_BLOCK);
                // Without rows there may be no block after the last one.
                let blocks = if count == 0 { 0 } else { (skip + count).div_ceil(FP8_BLOCK) };
                Weight::Fp8 {
                    codes: part(codes, first, count, k),
                    scales: &scales[block * across..][..blocks * across],
                    skip: if count == 0 { 0 } else { skip },
                }
            }
            Weight::Mxfp4 { codes, scales } => Weight::Mxfp4 {
                codes: part(codes, first, count, k / 2),
                scales: part(scales, first, count, k / MXFP4_BLOCK),
            },
            Weight::Nvfp4 { codes, scales, global } => Weight::Nvfp4 {
                codes: part(codes, first, count, k / 2),
                scales: part(scales, first, count, k / NVFP4_BLOCK),
                global,
            },
        };
        Self { data, n: count, k }
    }

    /// The f32 values of one row, `[k]`: the definition of every format, one number after the other.
    ///
    /// # Panics
    /// If the row does not exist, `out` does not have `k` values, or lengths do not match the shape.
    pub fn row_f32(&self, row: usize, out: &mut [f32]) {
        self.check("Mat::row_f32");
        let Self { data, n, k } = *self;
        assert!(row < n, "Mat::row_f32: row {row} of a matrix of {n} rows");
        assert_eq!(out.len(), k, "Mat::row_f32: length of out for k {k}");
        /// The code of number `i` of a packed row.
        fn nibble(codes: &[u8], i: usize) -> u8 {
            codes[i / 2] >> (i % 2 * 4) & 15
        }
        match data {
            Weight::F32(data) => out.copy_from_slice(&data[row * k..][..k]),
            Weight::Bf16(data) => bf16::widen(&data[row * k..][..k], out),
            Weight::Fp8 { codes, scales, skip } => {
                let scales = &scales[(skip + row) / FP8_BLOCK * k.div_ceil(FP8_BLOCK)..];
                for (i, out) in out.iter_mut().enumerate() {
                    *out = e4m3::decode(codes[row * k + i]) * ue8m0::decode(scales[i / FP8_BLOCK]);
                }
            }
            Weight::Mxfp4 { codes, scales } => {
                let (codes, scales) = (&codes[row * (k / 2)..], &scales[row * (k / MXFP4_BLOCK)..]);
                for (i, out) in out.iter_mut().enumerate() {
                    *out = e2m1::decode(nibble(codes, i)) * ue8m0::decode(scales[i / MXFP4_BLOCK]);
                }
            }
            Weight::Nvfp4 { codes, scales, global } => {
                let (codes, scales) = (&codes[row * (k / 2)..], &scales[row * (k / NVFP4_BLOCK)..]);
                for (i, out) in out.iter_mut().enumerate() {
                    *out = e2m1::decode(nibble(codes, i)) * e4m3::decode(scales[i / NVFP4_BLOCK]) * global;
                }
            }
        }
    }

    /// Checks that every length matches the shape.
    ///
    /// # Panics
    /// If one does not; the message starts with `caller`.
    pub(super) fn check(&self, caller: &str) {
        let Self { data, n, k } = *self;
        let shape = format_args!("[n {n}, k {k}]");
        assert_eq!(data.len(), n.saturating_mul(k), "{caller}: length of the weight for {shape}");
        let (format, given, needs) = match data {
            Weight::F32(_) | Weight::Bf16(_) => return,
            Weight::Fp8 { scales, skip, .. } => {
                assert!(skip < FP8_BLOCK, "{caller}: skip {skip} of FP8 weights is not below {FP8_BLOCK}");
                let blocks = if n == 0 { 0 } else { (skip + n).div_ceil(FP8_BLOCK) };
                ("FP8", scales.len(), blocks * k.div_ceil(FP8_BLOCK))
            }
            Weight::Mxfp4 { scales, .. } => {
                assert!(
                    k.is_multiple_of(MXFP4_BLOCK),
                    "{caller}: k {k} of MXFP4 weights is not a multiple of 32"
                );
                ("MXFP4", scales.len(), n * (k / MXFP4_BLOCK))
            }
            Weight::Nvfp4 { scales, .. } => {
                assert!(
                    k.is_multiple_of(NVFP4_BLOCK),
                    "{caller}: k {k} of NVFP4 weights is not a multiple of 16"
                );
                ("NVFP4", scales.len(), n * (k / NVFP4_BLOCK))
            }
        };
        assert_eq!(given, needs, "{caller}: number of {format} scales for {shape}");
    }
}

/// The f32 form of a matrix, `[n, k]`, row after row by [`Mat::row_f32`]. Slow: a reference.
///
/// # Panics
/// If `out` does not have `n * k` values, or lengths do not match the shape.
pub fn dequantise(mat: Mat<'_>, out: &mut [f32]) {
    let Mat { n, k, .. } = mat;
    assert_eq!(out.len(), n.saturating_mul(k), "dequantise: length of out for [n {n}, k {k}]");
    if k > 0 {
        for (row, out) in out.chunks_exact_mut(k).enumerate() {
            mat.row_f32(row, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(mat: Mat<'_>) -> Vec<f32> {
        let mut out = vec![f32::NAN; mat.n * mat.k];
        dequantise(mat, &mut out);
        out
    }

    #[test]
    fn fp8_scales_belong_to_blocks_of_128_by_128() {
        // 0x38 is 1: every value is its scale.
        let (n, k) = (300, 140);
        let codes = vec![0x38; n * k];
        let mat = Mat {
            data: Weight::Fp8 { codes: &codes, scales: &[127, 128, 129, 130, 131, 132], skip: 0 },
            n,
            k,
        };
        let values = wide(mat);
        for row in 0..n {
            for i in 0..k {
                let block = row / 128 * 2 + i / 128;
                assert_eq!(values[row * k + i], 2f32.powi(block as i32), "row {row}, i {i}");
            }
        }
        let part = mat.rows(120, 140);
        assert!(matches!(part.data, Weight::Fp8 { skip: 120, scales: [127, 128, 129, 130, 131, 132], .. }));
        assert_eq!(wide(part), values[120 * k..260 * k]);
        let part = part.rows(8, 128);
        assert!(matches!(part.data, Weight::Fp8 { skip: 0, scales: [129, 130], .. }));
        assert_eq!(wide(part), values[128 * k..256 * k]);
        assert_eq!(wide(mat.rows(300, 0)), []);
    }

    #[test]
    fn nibbles_come_low_first_and_scales_follow_their_numbers() {
        // 1, -0.5 and so on: codes 2 and 9.
        let codes: Vec<u8> = (0..64).map(|i| if i < 32 { 0x92 } else { 0x29 }).collect();
        let mx = Mat { data: Weight::Mxfp4 { codes: &codes, scales: &[127, 130, 0, 120] }, n: 2, k: 64 };
        let values = wide(mx);
        assert_eq!(values[..2], [1.0, -0.5]);
        assert_eq!(values[31..34], [-0.5, 8.0, -4.0]);
        assert_eq!(values[64..66], [-(2f32.powi(-128)), 2f32.powi(-127)]);
        assert_eq!(wide(mx.rows(1, 1)), values[64..]);
        // E4M3: 0x38 is 1, 0xb8 is -1, 0x01 is 2^-9, 0x7e is 448.
        let scales = [0x38, 0xb8, 0x01, 0x7e, 0x38, 0x38, 0x38, 0x38];
        let nv = Mat { data: Weight::Nvfp4 { codes: &codes, scales: &scales, global: 3.0 }, n: 2, k: 64 };
        let values = wide(nv);
        assert_eq!(values[..2], [3.0, -1.5]);
        assert_eq!(values[16..18], [-3.0, 1.5]);
        assert_eq!(values[32..34], [3.0 / 512.0, -1.5 / 512.0]);
        assert_eq!(values[48..50], [1344.0, -672.0]);
        assert_eq!(wide(nv.rows(1, 1)), values[64..]);
    }

    #[test]
    #[should_panic(expected = "Mat::rows: 2 rows from 2 on end outside the 3 rows of the matrix")]
    fn rows_outside_the_matrix_are_named() {
        Mat { data: Weight::F32(&[0.0; 12]), n: 3, k: 4 }.rows(2, 2);
    }

    #[test]
    #[should_panic(expected = "Mat::row_f32: k 48 of MXFP4 weights is not a multiple of 32")]
    fn a_k_that_the_format_does_not_allow_is_named() {
        Mat { data: Weight::Mxfp4 { codes: &[0; 24], scales: &[0; 2] }, n: 1, k: 48 }
            .row_f32(0, &mut [0.0; 48]);
    }

    #[test]
    #[should_panic(expected = "Mat::row_f32: number of FP8 scales for [n 2, k 3]")]
    fn missing_scales_are_named() {
        let data = Weight::Fp8 { codes: &[0; 6], scales: &[0], skip: 127 };
        Mat { data, n: 2, k: 3 }.row_f32(0, &mut [0.0; 3]);
    }
}
