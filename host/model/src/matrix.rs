//! A weight matrix in the format that its checkpoint has.

use std::fmt;

use hotseam_ops::{Mat, Weight};

use crate::{DType, Tensor};

/// Side of the blocks of FP8 weights that share a scale.
pub const FP8_BLOCK: usize = 128;
/// Values in a row that share a scale of MXFP4.
pub const MXFP4_GROUP: usize = 32;
/// Values in a row that share a scale of NVFP4.
pub const NVFP4_GROUP: usize = 16;

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// Single precision.
    F32,
    /// The upper half of a single.
    Bf16,
    /// E4M3 codes with a UE8M0 scale for each block of 128 x 128.
    Fp8Block,
    /// E2M1 codes with a UE8M0 scale for each 32 values of a row.
    Mxfp4,
    /// E2M1 codes with an E4M3 scale for each 16 values of a row, and a factor for the whole matrix.
    Nvfp4,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::Fp8Block, Self::Mxfp4, Self::Nvfp4];

    /// Name in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp8Block => "fp8",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Element type and shape of the values or codes of a matrix `[n, k]`. A format of two codes a byte needs an even
    /// `k`; [`Format::divides`] tells.
    pub fn data(self, n: usize, k: usize) -> (DType, [usize; 2]) {
        match self {
            Self::F32 => (DType::F32, [n, k]),
            Self::Bf16 => (DType::Bf16, [n, k]),
            Self::Fp8Block => (DType::E4m3, [n, k]),
            Self::Mxfp4 | Self::Nvfp4 => (DType::U8, [n, k / 2]),
        }
    }

    /// Element type and shape of the scales of a matrix `[n, k]`; `None` where there are none.
    pub fn scales(self, n: usize, k: usize) -> Option<(DType, [usize; 2])> {
        match self {
            Self::F32 | Self::Bf16 => None,
            Self::Fp8Block => Some((DType::E8m0, [n.div_ceil(FP8_BLOCK), k.div_ceil(FP8_BLOCK)])),
            Self::Mxfp4 => Some((DType::E8m0, [n, k / MXFP4_GROUP])),
            Self::Nvfp4 => Some((DType::E4m3, [n, k / NVFP4_GROUP])),
        }
    }

    /// Values in a row that must be whole: rows are a multiple of so many.
    pub fn group(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::Fp8Block => 1, // an FP8 block may be cut off at the edges
            Self::Mxfp4 => MXFP4_GROUP,
            Self::Nvfp4 => NVFP4_GROUP,
        }
    }

    /// Whether rows of `k` values can be stored.
    pub fn divides(self, k: usize) -> bool {
        k.is_multiple_of(self.group())
    }

    /// Bytes of a matrix `[n, k]`, scales and global factor included.
    pub fn byte_len(self, n: usize, k: usize) -> usize {
        let size = |(dtype, [rows, columns]): (DType, [usize; 2])| dtype.size() * rows * columns;
        let global = if self == Self::Nvfp4 { size_of::<f32>() } else { 0 };
        size(self.data(n, k)) + self.scales(n, k).map_or(0, size) + global
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parts that do not make up a matrix.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MatrixError {
    /// Values or codes that are no `[n, k]` of a type that the format has.
    #[error("{format} weights: expected {expected}, found {found_dtype} {found:?}")]
    Data {
        /// Wanted format.
        format: Format,
        /// What would be accepted.
        expected: &'static str,
        /// Element type that is there.
        found_dtype: DType,
        /// Shape that is there.
        found: Vec<usize>,
    },
    /// Rows that are no whole number of scale groups.
    #[error("{format} weights: expected rows of a multiple of {} values, found {k}", format.group())]
    Group {
        /// Wanted format.
        format: Format,
        /// Values of a row.
        k: usize,
    },
    /// Scales of another type or shape than the weights call for.
    #[error(
        "{format} scales of weights [{n}, {k}]: expected {expected_dtype} {expected:?}, found {found_dtype} {found:?}"
    )]
    Scales {
        /// Wanted format.
        format: Format,
        /// Rows of the matrix.
        n: usize,
        /// Columns of the matrix.
        k: usize,
        /// Element type for these weights.
        expected_dtype: DType,
        /// Shape for these weights.
        expected: [usize; 2],
        /// Element type that is there.
        found_dtype: DType,
        /// Shape that is there.
        found: Vec<usize>,
    },
    /// A global factor that is not a finite number above 0.
    #[error("global scale: expected a finite number above 0, found {0}")]
    Global(f32),
}

/// A matrix `[n, k]` in one of the official storage formats; `y = x W^T`.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// How `data` and `scales` are to be read.
    pub format: Format,
    /// Rows: outputs.
    pub n: usize,
    /// Columns: inputs.
    pub k: usize,
    /// Values or codes: f32, bf16 or e4m3 `[n, k]`; u8 `[n, k/2]` of two e2m1, the earlier column in the lower half.
    pub data: Tensor,
    /// ue8m0 `[ceil(n/128), ceil(k/128)]` (FP8), ue8m0 `[n, k/32]` (MXFP4), e4m3 `[n, k/16]` (NVFP4).
    pub scales: Option<Tensor>,
    /// Second factor of all values of NVFP4; 1 in the other formats.
    pub global_scale: f32,
}

impl Matrix {
    /// A matrix of f32 or bf16 values `[n, k]`.
    ///
    /// # Errors
    /// [`MatrixError::Data`] on another element type or number of dimensions.
    pub fn dense(data: Tensor) -> Result<Self, MatrixError> {
        let format = if data.dtype == DType::F32 { Format::F32 } else { Format::Bf16 };
        Self::assemble(format, data, None, 1.0)
    }

    /// A matrix of e4m3 codes `[n, k]` with ue8m0 scales `[ceil(n/128), ceil(k/128)]`.
    ///
    /// # Errors
    /// [`MatrixError`] on other element types or shapes.
    pub fn fp8(codes: Tensor, scales: Tensor) -> Result<Self, MatrixError> {
        Self::assemble(Format::Fp8Block, codes, Some(scales), 1.0)
    }

    /// A matrix of e2m1 pairs, u8 `[n, k/2]`, with ue8m0 scales `[n, k/32]`.
    ///
    /// # Errors
    /// [`MatrixError`] on other element types or shapes.
    pub fn mxfp4(codes: Tensor, scales: Tensor) -> Result<Self, MatrixError> {
        Self::assemble(Format::Mxfp4, codes, Some(scales), 1.0)
    }

    /// A matrix of e2m1 pairs, u8 `[n, k/2]`, with e4m3 scales `[n, k/16]` and a factor for all.
    ///
    /// # Errors
    /// [`MatrixError`] on other element types or shapes, or a factor that is not finite and above 0.
    pub fn nvfp4(codes: Tensor, scales: Tensor, global_scale: f32) -> Result<Self, MatrixError> {
        Self::assemble(Format::Nvfp4, codes, Some(scales), global_scale)
    }

    fn assemble(
        format: Format,
        data: Tensor,
        scales: Option<Tensor>,
        global_scale: f32,
    ) -> Result<Self, MatrixError> {
        let (expected, packing) = match format {
            Format::F32 | Format::Bf16 => ("f32 or bf16 [n, k]", 1),
            Format::Fp8Block => ("e4m3 [n, k]", 1),
            Format::Mxfp4 | Format::Nvfp4 => ("u8 [n, k/2]", 2),
        };
        let (n, columns) = match data.shape[..] {
            [n, columns] if data.dtype == format.data(n, columns).0 => (n, columns),
            _ => {
                let (found_dtype, found) = (data.dtype, data.shape.clone());
                return Err(MatrixError::Data { format, expected, found_dtype, found });
            }
        };
        let k = columns.saturating_mul(packing);
        if !format.divides(k) {
            return Err(MatrixError::Group { format, k });
        }
        if let (Some((dtype, shape)), Some(scales)) = (format.scales(n, k), &scales)
            && (scales.dtype != dtype || scales.shape != shape)
        {
            return Err(MatrixError::Scales {
                format,
                n,
                k,
                expected_dtype: dtype,
                expected: shape,
                found_dtype: scales.dtype,
                found: scales.shape.clone(),
            });
        }
        if !(global_scale.is_finite() && global_scale > 0.0) {
            return Err(MatrixError::Global(global_scale));
        }
        Ok(Self { format, n, k, data, scales, global_scale })
    }

    /// Values or codes, then scales.
    pub(crate) fn tensors(&mut self) -> impl Iterator<Item = &mut Tensor> {
        std::iter::once(&mut self.data).chain(&mut self.scales)
    }

    /// Bytes of values or codes, scales and global factor.
    pub fn byte_len(&self) -> usize {
        self.format.byte_len(self.n, self.k)
    }

    /// The matrix as the arithmetic takes it.
    pub fn mat(&self) -> Mat<'_> {
        let (codes, scales) = (self.data.bytes(), self.scales.as_ref().map_or(&[][..], Tensor::bytes));
        let data = match self.format {
            Format::F32 => Weight::F32(self.data.f32()),
            Format::Bf16 => Weight::Bf16(self.data.bf16()),
            Format::Fp8Block => Weight::Fp8 { codes, scales, skip: 0 },
            Format::Mxfp4 => Weight::Mxfp4 { codes, scales },
            Format::Nvfp4 => Weight::Nvfp4 { codes, scales, global: self.global_scale },
        };
        Mat { data, n: self.n, k: self.k }
    }

    /// Row `row` as f32 values. They are exact, except that NVFP4 rounds once: code times scale is exact, the product
    /// with the global factor is rounded to the nearest f32.
    ///
    /// # Panics
    /// If `row >= n` or `out` is not `k` long.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        self.mat().row_f32(row, out);
    }

    /// All values as f32, row-major, as [`Matrix::read_row`] makes them. Slow: it is what fast code is compared with.
    pub fn to_f32_vec(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.n * self.k];
        if self.k > 0 {
            values.chunks_mut(self.k).enumerate().for_each(|(row, out)| self.read_row(row, out));
        }
        values
    }
}
