//! Turns f32 values into the codes and scales of a storage format, rounding to the nearest, ties to even.
//!
//! Scales follow the programs that make published checkpoints: DeepSeek's powers of two never clip, NVIDIA's pair of
//! factors may clip the largest value of a group by the rounding of its scale. Values must be finite.

mod fp8;
mod mxfp4;
mod nvfp4;

use std::thread;

use hotseam_model::number::{bf16, e2m1};
use hotseam_model::{FP8_BLOCK, Format, Matrix, MatrixError, Tensor};

pub use nvfp4::global_scale;

/// Stores `values [n, k]`, row-major and finite, in a format, on `threads` threads. `global` is the factor of NVFP4, from
/// [`global_scale`] of the largest magnitude in the matrix, or in several that must share it; other formats ignore it.
///
/// # Errors
/// [`MatrixError`] if the format cannot hold rows of `k` values, or `global` is no factor.
///
/// # Panics
/// If `values` is not `n * k` long.
pub fn quantise(
    format: Format,
    values: &[f32],
    [n, k]: [usize; 2],
    global: f32,
    threads: usize,
) -> Result<Matrix, MatrixError> {
    assert_eq!(values.len(), n * k, "values of a matrix [{n}, {k}]");
    if !format.divides(k) {
        return Err(MatrixError::Group { format, k });
    }
    let (dtype, [_, width]) = format.data(n, k);
    let Some((scale_dtype, scale_shape)) = format.scales(n, k) else {
        let tensor = match format {
            Format::Bf16 => {
                Tensor::from_bf16(vec![n, k], &values.iter().map(|&v| bf16::from_f32(v)).collect::<Vec<_>>())
            }
            _ => Tensor::from_f32(vec![n, k], values),
        };
        return Matrix::dense(tensor.expect("the values fill the shape"));
    };
    let mut codes = vec![0; n * width];
    let mut scales = vec![0; scale_shape[0] * scale_shape[1]];
    // Whole FP8 blocks to a thread; the other formats have a row of scales for each row.
    let rows = n.div_ceil(threads.max(1)).next_multiple_of(FP8_BLOCK).max(FP8_BLOCK);
    let scale_rows = if format == Format::Fp8Block { rows / FP8_BLOCK } else { rows };
    thread::scope(|scope| {
        let parts = values.chunks((rows * k).max(1)).zip(codes.chunks_mut((rows * width).max(1)));
        for ((values, codes), scales) in parts.zip(scales.chunks_mut((scale_rows * scale_shape[1]).max(1))) {
            scope.spawn(move || match format {
                Format::Fp8Block => fp8::quantise(values, k, codes, scales),
                Format::Mxfp4 => mxfp4::quantise(values, codes, scales),
                _ => nvfp4::quantise(values, global, codes, scales),
            });
        }
    });
    let tensor = |dtype, shape: [usize; 2], bytes| {
        Tensor::from_bytes(dtype, shape.to_vec(), bytes).expect("the buffer was made for the shape")
    };
    let (codes, scales) = (tensor(dtype, [n, width], codes), tensor(scale_dtype, scale_shape, scales));
    match format {
        Format::Fp8Block => Matrix::fp8(codes, scales),
        Format::Mxfp4 => Matrix::mxfp4(codes, scales),
        _ => Matrix::nvfp4(codes, scales, global),
    }
}

/// Packs codes of two neighbours into a byte, the earlier one in the lower half.
fn pack(pairs: &[f32], codes: &mut [u8], scaled: impl Fn(f32) -> f32) {
    for (code, pair) in codes.iter_mut().zip(pairs.chunks_exact(2)) {
        *code = e2m1::encode(scaled(pair[0])) | e2m1::encode(scaled(pair[1])) << 4;
    }
}

/// Largest magnitude.
pub(crate) fn amax(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// UE8M0 code of the smallest power of two `s` with `largest <= s * (1 + fraction/8) * 2^exponent`, where the parentheses
/// are the largest value of a format; within the codes `1..=most`. The code of 1 where all values are 0.
fn power_scale(largest: f32, fraction: u32, exponent: i32, most: u8) -> u8 {
    if largest == 0.0 {
        return 127;
    }
    let bits = largest.to_bits();
    let over = (bits & 0x7f_ffff) > fraction << 20;
    // Subnormal values have the exponent field 0 and end at the smallest code like their neighbours.
    let code = (bits >> 23) as i32 - exponent + i32::from(over);
    code.clamp(1, i32::from(most)) as u8
}

#[cfg(test)]
mod tests {
    use hotseam_model::number::{e4m3, ue8m0};

    use super::*;

    /// The nearest of some values, the even code of a tie; by looking at each.
    fn nearest(value: f32, codes: u8, decode: impl Fn(u8) -> f32) -> u8 {
        let size = f64::from(value.abs()).min(1000.0); // above the largest code all are as far
        let distance = |code: u8| (f64::from(decode(code)) - size).abs();
        let better = |best: u8, code: u8| {
            let (a, b) = (distance(code), distance(best));
            if a < b || (a == b && code.is_multiple_of(2)) { code } else { best }
        };
        (1..codes).fold(0, better)
    }

    #[test]
    fn codes_are_the_nearest() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x8000, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                if !value.is_finite() {
                    continue;
                }
                let negative = u8::from(value.is_sign_negative());
                assert_eq!(
                    e4m3::encode(value),
                    nearest(value, 0x7f, e4m3::decode) | negative << 7,
                    "{value:e}"
                );
                assert_eq!(e2m1::encode(value), nearest(value, 8, e2m1::decode) | negative << 3, "{value:e}");
            }
        }
    }

    #[test]
    fn power_scales_are_the_smallest_that_do_not_clip() {
        for bits in (0..0x7f80_0000u32).step_by(0x1_0001) {
            let largest = f32::from_bits(bits);
            for (fraction, exponent, most, max) in [(6, 8, 246, 448.0), (4, 2, 252, 6.0)] {
                let code = power_scale(largest, fraction, exponent, most);
                let fits = |code: u8| f64::from(largest) <= f64::from(ue8m0::decode(code)) * max;
                assert!(fits(code) || code == most, "{largest:e}: {code}");
                assert!(
                    code == 1 || largest == 0.0 || !fits(code - 1),
                    "{largest:e}: {code} is not the smallest"
                );
            }
        }
        assert_eq!(power_scale(0.0, 4, 2, 252), 127);
    }

    #[test]
    fn threads_change_nothing() {
        let (n, k) = (300, 96);
        let values: Vec<f32> = (0..n * k).map(|i| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect();
        for format in Format::ALL {
            let made = [1, 2, 7]
                .map(|threads| quantise(format, &values, [n, k], global_scale(5.09), threads).unwrap());
            for other in &made[1..] {
                assert_eq!(made[0].data.bytes(), other.data.bytes(), "{format}");
                let scales = |m: &Matrix| m.scales.as_ref().map(|s| s.bytes().to_vec());
                assert_eq!(scales(&made[0]), scales(other), "{format}");
            }
            let read = made[0].to_f32_vec();
            let worst = read.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let bound = match format {
                Format::F32 => 0.0,
                Format::Bf16 => 0.016,    // half a place of values from 4 to 8: 2^-6
                Format::Fp8Block => 0.25, // half a step of 2^-1: codes from 256 to 448, times 2^-6
                Format::Mxfp4 | Format::Nvfp4 => 1.0,
            };
            assert!(worst <= bound, "{format}: {worst}");
        }
    }

    #[test]
    fn what_a_format_cannot_hold_is_refused() {
        let error = quantise(Format::Mxfp4, &[0.0; 48], [1, 48], 1.0, 1).unwrap_err();
        assert_eq!(error, MatrixError::Group { format: Format::Mxfp4, k: 48 });
        assert!(matches!(quantise(Format::Nvfp4, &[0.0; 16], [1, 16], 0.0, 1), Err(MatrixError::Global(_))));
        let empty = quantise(Format::Fp8Block, &[], [0, 32], 1.0, 2).unwrap();
        assert_eq!((empty.n, empty.k), (0, 32));
    }

    #[test]
    fn factors_stay_factors() {
        assert_eq!(global_scale(0.0), 1.0);
        assert_eq!(global_scale(2688.0), 1.0);
        assert!(global_scale(f32::from_bits(1)) > 0.0);
        // All of a group below the smallest scale: the group becomes 0.
        let mut values = [1e-9f32; 32];
        values[0] = 1.0;
        let read = quantise(Format::Nvfp4, &values, [1, 32], global_scale(1.0), 1).unwrap().to_f32_vec();
        assert_eq!((read[0], &read[16..]), (1.0, &[0.0; 16][..]));
    }
}
