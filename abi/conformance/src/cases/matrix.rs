//! Weight matrices in every format, with random codes.

use super::Gen;
use crate::buffer::Buffer;
use crate::truth::numbers::{f32_to_bf16, f32_to_e4m3};
use hotseam_abi::{TensorRef, WeightRef, dtype, weight_format};

/// A weight matrix.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    /// Values or codes.
    pub(crate) buffer: Buffer,
    scales: Option<Buffer>,
    global_scale: f32,
    /// Outputs.
    pub(crate) n: usize,
    /// Inputs.
    pub(crate) k: usize,
    /// One of [`weight_format`].
    pub(crate) format: u32,
}

impl Gen {
    /// `n` rows of weights of variance about `1 / k`, in one of [`weight_format`]. Scales differ between groups.
    pub(crate) fn matrix(&mut self, name: &'static str, n: usize, k: usize, format: u32) -> Matrix {
        let size = (k as f32).powf(-0.5);
        let exponent = size.log2().round() as i32;
        let mut global_scale = 1.0;
        let mut scales = None;
        let mut e8m0 = |g: &mut Self, count: usize, base: i32| {
            let bytes: Vec<u8> = (0..count).map(|_| (127 + base + g.rng.below(3) as i32 - 1) as u8).collect();
            scales = Some(Buffer::bytes_of("scales", &bytes));
        };
        let buffer = match format {
            weight_format::F32 => Buffer::f32s(name, self.rng.normals(n * k, size)),
            weight_format::BF16 => {
                let values = self.rng.normals(n * k, size);
                Buffer::bf16s(name, &values.into_iter().map(f32_to_bf16).collect::<Vec<_>>())
            }
            weight_format::FP8_BLOCK => {
                e8m0(self, n.div_ceil(128) * k.div_ceil(128), exponent - 5);
                let codes: Vec<u8> = self.rng.normals(n * k, 32.0).into_iter().map(f32_to_e4m3).collect();
                Buffer::bytes_of(name, &codes)
            }
            // The values of e2m1 have a mean square of 3.
            weight_format::MXFP4 => {
                e8m0(self, n * k / 32, exponent - 2);
                Buffer::bytes_of(name, &self.nibbles(n * k / 2))
            }
            weight_format::NVFP4 => {
                let bytes: Vec<u8> =
                    (0..n * k / 16).map(|_| f32_to_e4m3(16.0 + self.rng.below(200) as f32)).collect();
                scales = Some(Buffer::bytes_of("scales", &bytes));
                global_scale = size / 200.0 * (1.0 + self.rng.normal().abs());
                Buffer::bytes_of(name, &self.nibbles(n * k / 2))
            }
            other => unreachable!("weight format {other} has no generator"),
        };
        Matrix { buffer, scales, global_scale, n, k, format }
    }

    /// Any two e2m1 a byte.
    fn nibbles(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.rng.below(256) as u8).collect()
    }
}

impl Matrix {
    /// A matrix of plain numbers as a tensor.
    pub(crate) fn tensor(&mut self) -> TensorRef {
        let kind = if self.format == weight_format::BF16 { dtype::BF16 } else { dtype::F32 };
        self.buffer.tensor(kind, &[self.n, self.k])
    }

    /// The matrix as an argument. It may be shared by clones of a case: nothing writes through the pointers, and a
    /// comparison with the buffers before the call would see it.
    pub(crate) fn arg(&self) -> WeightRef {
        let (n, k) = (self.n, self.k);
        let (kind, wide) = match self.format {
            weight_format::F32 => (dtype::F32, k),
            weight_format::BF16 => (dtype::BF16, k),
            weight_format::FP8_BLOCK => (dtype::E4M3, k),
            _ => (dtype::U8, k / 2),
        };
        let (scale_kind, shape) = match self.format {
            weight_format::FP8_BLOCK => (dtype::E8M0, [n.div_ceil(128), k.div_ceil(128)]),
            weight_format::MXFP4 => (dtype::E8M0, [n, k / 32]),
            _ => (dtype::E4M3, [n, k / 16]),
        };
        WeightRef {
            format: self.format,
            global_scale: self.global_scale,
            data: self.buffer.view(kind, &[n, wide]),
            scales: self.scales.as_ref().map_or(TensorRef::NONE, |s| s.view(scale_kind, &shape)),
        }
    }

    /// Buffers of the matrix.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        std::iter::once(&self.buffer).chain(&self.scales)
    }

    /// Name of the format, for titles.
    pub(crate) fn format_name(&self) -> &'static str {
        let name = weight_format::NAMES.iter().find(|(format, _)| *format == self.format);
        name.map_or("unknown", |(_, name)| name)
    }
}
