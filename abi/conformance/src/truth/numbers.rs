//! Number formats and the few sums that all ops share.

use hotseam_sdk::ops::{Mat, Weight};
use std::borrow::Cow;

/// Value of a bfloat16.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Nearest bfloat16, ties to even; NaN stays NaN.
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let round = 0x7fff + ((bits >> 16) & 1);
    (bits.wrapping_add(round) >> 16) as u16
}

/// Value of an e4m3fn: 4 exponent bits with bias 7, 3 mantissa bits, no infinity; `S.1111.111` is NaN.
pub fn e4m3_to_f32(code: u8) -> f32 {
    let (exponent, mantissa) = ((code >> 3) & 15, f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => f32::from_bits((u32::from(exponent) + 120) << 23) * (1.0 + mantissa / 8.0),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Nearest e4m3fn, ties to even, magnitudes above 448 become 448; NaN stays NaN.
pub fn f32_to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = f64::from(value.abs());
    if magnitude >= 448.0 {
        return sign | 0x7e;
    }
    // Below 2^-6 the quantum stays that of the smallest normal numbers.
    let exponent = ((value.abs().to_bits() >> 23) as i32 - 127).max(-6);
    let steps = (magnitude / 2f64.powi(exponent - 3)).round_ties_even() as u8;
    // 8..=15 are mantissas of this exponent; 16 carries into the next one, which the addition does by itself.
    sign | ((((exponent + 6) as u8) << 3) + steps)
}

/// Value of an e2m1 code, 0 to 15: 2 exponent bits with bias 1, 1 mantissa bit, no infinity and no NaN.
pub fn e2m1_to_f32(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 1 & 3), f32::from(code & 1));
    let magnitude = match exponent {
        0 => mantissa / 2.0,
        _ => 2f32.powi(exponent - 1) * (1.0 + mantissa / 2.0),
    };
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Nearest e2m1, ties to the even code, magnitudes above 6 become 6; what a NaN becomes is unspecified.
pub fn f32_to_e2m1(value: f32) -> u8 {
    let size = value.abs().min(6.0);
    let mut best = 0u8;
    for code in 1..8 {
        let (a, b) = ((e2m1_to_f32(code) - size).abs(), (e2m1_to_f32(best) - size).abs());
        if a < b || (a == b && code % 2 == 0) {
            best = code;
        }
    }
    best | if value.is_sign_negative() { 8 } else { 0 }
}

/// Hadamard rotation in the natural (Sylvester) order times `len^-1/2`; its own inverse. In f32, with the butterflies in
/// rising order, as the kernels of the serving engines have it: what is quantised after it then agrees in every bit.
///
/// # Panics
/// If the length is not a power of two.
pub fn hadamard(values: &mut [f32]) {
    let n = values.len();
    assert!(n.is_power_of_two(), "a Hadamard rotation needs a power of two, not {n}");
    let mut half = 1;
    while half < n {
        for block in values.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = (n as f64).powf(-0.5) as f32;
    values.iter_mut().for_each(|v| *v *= scale);
}

/// Dot product in f64.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut lanes = [0f64; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f64 =
        a8.remainder().iter().zip(b8.remainder()).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    for (x, y) in a8.zip(b8) {
        for i in 0..8 {
            lanes[i] += f64::from(x[i]) * f64::from(y[i]);
        }
    }
    lanes.iter().sum::<f64>() + tail
}

/// `total += weight * values`.
pub fn add_scaled(total: &mut [f64], weight: f64, values: &[f32]) {
    for (t, v) in total.iter_mut().zip(values) {
        *t += weight * f64::from(*v);
    }
}

/// `1 / sqrt(mean(values^2) + eps)`.
pub fn inverse_rms(values: &[f32], eps: f32) -> f64 {
    1.0 / (dot(values, values) / values.len() as f64 + f64::from(eps)).sqrt()
}

/// `values * inverse_rms(values) * weight`, rounded once.
pub fn rms_norm(values: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let inverse = inverse_rms(values, eps);
    for ((o, v), w) in out.iter_mut().zip(values).zip(weight) {
        *o = (f64::from(*v) * inverse * f64::from(*w)) as f32;
    }
}

/// Rotates the last `2 * cos.len()` channels, in interleaved pairs; backwards if `inverse`.
pub fn rope(values: &mut [f32], cos: &[f32], sin: &[f32], inverse: bool) {
    let first = values.len() - 2 * cos.len();
    for ((pair, c), s) in values[first..].chunks_exact_mut(2).zip(cos).zip(sin) {
        let (x, y, c) = (f64::from(pair[0]), f64::from(pair[1]), f64::from(*c));
        let s = if inverse { -f64::from(*s) } else { f64::from(*s) };
        pair[0] = (x * c - y * s) as f32;
        pair[1] = (y * c + x * s) as f32;
    }
}

/// Logistic function.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A weight matrix as f32, borrowed if it is; see [`hotseam_abi::WeightRef`].
pub fn widen<'a>(w: &Mat<'a>) -> Cow<'a, [f32]> {
    let (n, k) = (w.n, w.k);
    let by_place = |value: &dyn Fn(usize, usize) -> f32| {
        Cow::Owned((0..n * k).map(|i| value(i / k, i % k)).collect::<Vec<f32>>())
    };
    match w.data {
        Weight::F32(values) => Cow::Borrowed(values),
        Weight::Bf16(bits) => Cow::Owned(bits.iter().map(|b| bf16_to_f32(*b)).collect()),
        Weight::Fp8 { codes, scales, skip } => by_place(&|row, col| {
            let scale = scales[(skip + row) / 128 * k.div_ceil(128) + col / 128];
            e4m3_to_f32(codes[row * k + col]) * e8m0_to_f32(scale)
        }),
        Weight::Mxfp4 { codes, scales } => by_place(&|row, col| {
            e2m1_at(codes, row * k + col) * e8m0_to_f32(scales[row * (k / 32) + col / 32])
        }),
        Weight::Nvfp4 { codes, scales, global } => by_place(&|row, col| {
            e2m1_at(codes, row * k + col) * e4m3_to_f32(scales[row * (k / 16) + col / 16]) * global
        }),
    }
}

/// Value number `i` of packed e2m1: the low nibble of a byte comes first.
fn e2m1_at(codes: &[u8], i: usize) -> f32 {
    let code = codes[i / 2] >> (4 * (i % 2)) & 15;
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// `2^(byte - 127)`; 255 is NaN.
fn e8m0_to_f32(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        byte => 2f64.powi(i32::from(byte) - 127) as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_round_trips_every_code_and_rounds_to_nearest_even() {
        for code in 0..=255u8 {
            let value = e4m3_to_f32(code);
            if value.is_nan() {
                assert_eq!(code & 0x7f, 0x7f);
                assert_eq!(f32_to_e4m3(value) & 0x7f, 0x7f);
            } else {
                assert_eq!(f32_to_e4m3(value), code, "{value}");
            }
        }
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e4m3_to_f32(0x01), 1.0 / 512.0);
        assert_eq!(e4m3_to_f32(0x38), 1.0);
        assert_eq!(f32_to_e4m3(1e9), 0x7e);
        assert_eq!(f32_to_e4m3(1.0625), 0x38, "a tie goes to the even mantissa");
        assert_eq!(f32_to_e4m3(1.1875), 0x3a, "a tie goes to the even mantissa");
        assert_eq!(f32_to_e4m3(1.99), 0x40, "rounding carries into the exponent");
        assert_eq!(f32_to_e4m3(0.0009), 0, "half the smallest number goes to zero");
        assert_eq!(f32_to_e4m3(-0.0030), 0x82);
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        assert_eq!(f32_to_bf16(1.0), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert!(bf16_to_f32(f32_to_bf16(f32::from_bits(0x7f80_0001))).is_nan());
        assert_eq!(bf16_to_f32(f32_to_bf16(f32::NEG_INFINITY)), f32::NEG_INFINITY);
    }

    #[test]
    fn hadamard_is_the_sylvester_matrix() {
        let mut unit = [0.0, 0.0, 0.0, 1.0f32];
        hadamard(&mut unit);
        assert_eq!(unit, [0.5, -0.5, -0.5, 0.5]);
        hadamard(&mut unit);
        assert_eq!(unit, [0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn rope_turns_interleaved_pairs_of_the_last_channels() {
        let mut v = [9.0, 9.0, 1.0, 2.0, 3.0, 4.0f32];
        rope(&mut v, &[0.0, 1.0], &[1.0, 0.0], false);
        assert_eq!(v, [9.0, 9.0, -2.0, 1.0, 3.0, 4.0]);
        rope(&mut v, &[0.0, 1.0], &[1.0, 0.0], true);
        assert_eq!(v, [9.0, 9.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn dot_counts_every_element_once() {
        let a: Vec<f32> = (0..19).map(|i| i as f32).collect();
        assert_eq!(dot(&a, &a), (0..19).map(|i| f64::from(i * i)).sum::<f64>());
    }
}
