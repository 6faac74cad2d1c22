//! The quantisers of the layouts, step by step as the official kernels do them, so that bytes agree.
//!
//! Sources: SGLang `fused_store_cache` (`cast_to_ue8m0`, `inv_scale_ue8m0`, `pack_fp8`) and `fused_store_indexer_cache`;
//! `act_quant`, `fp4_act_quant` and `fast_round_scale` of the official `inference/kernel.py`. Values are rounded to bf16
//! first, because the official model hands its kernels bf16.

use hotseam_ops::formats::{e2m1, ue8m0};
use hotseam_ops::{bf16, e4m3, hadamard};

/// Values that share a ue8m0 scale in [`hotseam_abi::layout::KV_FP8_DS_MLA`].
pub const FP8_GROUP: usize = 64;
/// Values that share a ue8m0 scale in [`hotseam_abi::layout::KEY_FP4_HADAMARD`].
pub const FP4_GROUP: usize = 32;
/// Least magnitude that an fp8 scale is made for.
const FP8_FLOOR: f32 = 1e-4;
/// Least magnitude that an fp4 scale is made for: 6 times the smallest normal number.
const FP4_FLOOR: f32 = 6.0 * f32::MIN_POSITIVE;

/// Rounds to bf16 and keeps f32.
pub fn round_to_bf16(values: &mut [f32]) {
    for v in values {
        *v = bf16::to_f32(bf16::from_f32(*v));
    }
}

/// The rotation of the rotated layouts: bf16, Hadamard times `len^-1/2`, bf16.
///
/// # Panics
/// If the length is not a power of two.
pub fn rotate(values: &mut [f32]) {
    round_to_bf16(values);
    hadamard(values);
    round_to_bf16(values);
}

/// The ue8m0 byte of the least power of two that is not below a positive normal number; 255 for infinity and NaN.
#[inline(always)]
pub fn ceil_ue8m0(value: f32) -> u8 {
    let bits = value.to_bits();
    ((bits >> 23 & 0xff) + u32::from(bits & 0x7f_ffff != 0)).min(255) as u8
}

/// Largest magnitude, at least `floor`; NaN are skipped.
fn largest(values: &[f32], floor: f32) -> f32 {
    values.iter().fold(floor, |m, v| m.max(v.abs()))
}

/// Quantises to e4m3 in groups of [`FP8_GROUP`] with a ue8m0 scale each; scales past the last group become 0.
pub fn e4m3_groups(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    scales.fill(0);
    let groups = values.chunks(FP8_GROUP).zip(codes.chunks_mut(FP8_GROUP)).zip(scales);
    for ((values, codes), scale) in groups {
        *scale = ceil_ue8m0(largest(values, FP8_FLOOR) * (1.0 / e4m3::MAX));
        // Exact: a power of two.
        let inverse = 1.0 / ue8m0::decode(*scale);
        for (v, code) in values.iter().zip(codes) {
            *code = e4m3::encode(v * inverse);
        }
    }
}

/// Quantises to e4m3 with one f32 scale for all values, which it returns.
pub fn e4m3_whole(values: &[f32], codes: &mut [u8]) -> f32 {
    let scale = largest(values, FP8_FLOOR) / e4m3::MAX;
    let inverse = 1.0 / scale;
    for (v, code) in values.iter().zip(codes) {
        *code = e4m3::encode(v * inverse);
    }
    scale
}

/// Quantises to e2m1 in groups of [`FP4_GROUP`] with a ue8m0 scale each, two values a byte, the even one in the low nibble.
/// e2m1 has no NaN, so a NaN makes the scale of its group NaN.
pub fn e2m1_groups(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    let groups = values.chunks(FP4_GROUP).zip(codes.chunks_mut(FP4_GROUP / 2)).zip(scales);
    for ((values, codes), scale) in groups {
        let top = if values.iter().any(|v| v.is_nan()) { f32::NAN } else { largest(values, FP4_FLOOR) };
        *scale = ceil_ue8m0(top * (1.0 / e2m1::MAX));
        let inverse = 1.0 / ue8m0::decode(*scale);
        for (pair, code) in values.chunks_exact(2).zip(codes) {
            *code = e2m1::encode(pair[0] * inverse) | e2m1::encode(pair[1] * inverse) << 4;
        }
    }
}

/// Rounds a query as keys of a rotated layout are rounded, in the rotated space; other layouts leave it as it is.
/// `codes` is working memory of at least as many bytes as values.
pub fn as_key(layout: u32, head: &mut [f32], codes: &mut [u8]) {
    use hotseam_abi::layout::{KEY_FP4_HADAMARD, KEY_FP8_HADAMARD};
    match layout {
        KEY_FP8_HADAMARD => {
            rotate(head);
            let codes = &mut codes[..head.len()];
            let scale = e4m3_whole(head, codes);
            for (v, code) in head.iter_mut().zip(codes) {
                *v = e4m3::decode(*code) * scale;
            }
        }
        KEY_FP4_HADAMARD => {
            rotate(head);
            for group in head.chunks_mut(FP4_GROUP) {
                let mut scale = [0];
                e2m1_groups(group, codes, &mut scale);
                let scale = ue8m0::decode(scale[0]);
                for (pair, code) in group.chunks_exact_mut(2).zip(&*codes) {
                    pair[0] = e2m1::decode(code & 15) * scale;
                    pair[1] = e2m1::decode(code >> 4) * scale;
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2m1_rounds_to_nearest_even() {
        let grid: Vec<f32> = (0..8).map(e2m1::decode).collect();
        for (code, pair) in grid.windows(2).enumerate() {
            let (low, high) = (code as u8, code as u8 + 1);
            let middle = (pair[0] + pair[1]) / 2.0;
            let (below, over) = (f32::from_bits(middle.to_bits() - 1), f32::from_bits(middle.to_bits() + 1));
            let even = low + low % 2;
            for (value, want) in [(pair[0], low), (below, low), (middle, even), (over, high), (pair[1], high)]
            {
                assert_eq!(e2m1::encode(value), want, "{value}");
                assert_eq!(e2m1::encode(-value), want | 8, "-{value}");
            }
        }
        assert_eq!((e2m1::encode(1e9), e2m1::encode(f32::INFINITY)), (7, 7));
    }

    #[test]
    fn a_nan_makes_its_group_nan_and_no_other() {
        let mut values = [1.0f32; 64];
        values[40] = f32::NAN;
        let (mut codes, mut scales) = ([0; 32], [0; 2]);
        e2m1_groups(&values, &mut codes, &mut scales);
        assert_eq!(scales, [125, 255]);
    }

    #[test]
    fn scales_are_the_next_power_of_two() {
        for exponent in -120..120 {
            let power = 2f32.powi(exponent);
            let byte = (exponent + 127) as u8;
            assert_eq!(ceil_ue8m0(power), byte);
            assert_eq!(ceil_ue8m0(f32::from_bits(power.to_bits() + 1)), byte + 1);
            assert_eq!(ceil_ue8m0(f32::from_bits(power.to_bits() - 1)), byte);
            assert_eq!(ue8m0::decode(byte), power);
        }
        assert_eq!(ceil_ue8m0(f32::INFINITY), 255);
        assert!(ue8m0::decode(255).is_nan() && ue8m0::decode(0) == 2f32.powi(-127));
    }

    #[test]
    fn no_group_is_clipped_and_none_wastes_a_power_of_two() {
        for i in 0..400 {
            let size = 1.37f32.powi(i - 150);
            let values = [size, -size / 3.0, 0.0, size / 2.0];
            let (mut codes, mut scale) = ([0; 4], [0; 8]);
            e4m3_groups(&values, &mut codes, &mut scale);
            let top = size / ue8m0::decode(scale[0]);
            assert!(top <= 448.0 && (top > 223.9 || size < FP8_FLOOR), "{size}: {top}");
            let (mut codes, mut scale) = ([0; 2], [0; 1]);
            e2m1_groups(&values, &mut codes, &mut scale);
            let top = size / ue8m0::decode(scale[0]);
            assert!(top <= 6.0 && top > 2.99, "{size}: {top}");
        }
    }
}
