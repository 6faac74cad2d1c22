//! KV layouts as the contract defines them ([`hotseam_abi::layout`]), written apart from the SDK's: each step is the one
//! that the contract names, found by search where the SDK takes bits apart. All steps are f32, so that equal values give
//! equal bytes.

use super::numbers::{
    bf16_to_f32, e2m1_to_f32, e4m3_to_f32, f32_to_bf16, f32_to_e2m1, f32_to_e4m3, hadamard,
};
use hotseam_abi::layout::{
    KEY_BF16, KEY_F32, KEY_FP4_HADAMARD, KEY_FP8_HADAMARD, KV_BF16, KV_F32, KV_FP8_DS_MLA,
};
use hotseam_sdk::layouts::{Entry, EntryMut, Parts, Shape};
use hotseam_sdk::{Error, Result};

fn unknown(layout: u32) -> Error {
    Error::argument(format!("KV layout {layout} has no truth in this build"))
}

/// Bytes of the parts of an entry.
///
/// # Errors
/// If truth does not know the layout, or it cannot hold the shape.
pub fn parts(layout: u32, shape: Shape) -> Result<Parts> {
    let Shape { dim, rope_dim } = shape;
    let refused = |why: String| Err(Error::argument(why));
    match layout {
        KV_F32 | KEY_F32 => Ok(Parts { data: 4 * dim, scale: 0 }),
        KV_BF16 | KEY_BF16 => Ok(Parts { data: 2 * dim, scale: 0 }),
        KV_FP8_DS_MLA if rope_dim <= dim => {
            let groups = (dim - rope_dim).div_ceil(64);
            Ok(Parts { data: dim + rope_dim, scale: groups.div_ceil(8) * 8 })
        }
        KV_FP8_DS_MLA => refused(format!("{rope_dim} of {dim} values are roped")),
        KEY_FP8_HADAMARD | KEY_FP4_HADAMARD if !dim.is_power_of_two() => {
            refused(format!("a Hadamard rotation needs a power of two, not {dim}"))
        }
        KEY_FP8_HADAMARD => Ok(Parts { data: dim, scale: 4 }),
        KEY_FP4_HADAMARD if dim >= 32 => Ok(Parts { data: dim / 2, scale: dim / 32 }),
        KEY_FP4_HADAMARD => refused(format!("an fp4 key has groups of 32 values, and {dim} in all")),
        other => Err(unknown(other)),
    }
}

/// Whether keys of a layout are rotated.
pub fn rotates(layout: u32) -> bool {
    layout == KEY_FP8_HADAMARD || layout == KEY_FP4_HADAMARD
}

/// Writes roped `values`, of which the last `rope_dim` are roped, as an entry.
///
/// # Errors
/// If truth does not know the layout.
pub fn encode(layout: u32, rope_dim: usize, values: &[f32], entry: EntryMut<'_>) -> Result<()> {
    let EntryMut { data, scale } = entry;
    match layout {
        KV_F32 | KEY_F32 => {
            for (bytes, v) in data.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&v.to_ne_bytes());
            }
        }
        KV_BF16 | KEY_BF16 => bf16s(values, data),
        KV_FP8_DS_MLA => {
            let nope = values.len() - rope_dim;
            let (codes, rope) = data.split_at_mut(nope);
            scale.fill(0);
            for (g, group) in values[..nope].chunks(64).enumerate() {
                let group: Vec<f32> = group.iter().map(|v| bf16(*v)).collect();
                let (byte, size) = ue8m0_at_least(amax(&group, 1e-4) * (1.0 / 448.0));
                scale[g] = byte;
                for (code, v) in codes[g * 64..].iter_mut().zip(&group) {
                    *code = f32_to_e4m3(v / size);
                }
            }
            bf16s(&values[nope..], rope);
        }
        KEY_FP8_HADAMARD => {
            let size = quantise_fp8(&rotated(values), data);
            scale.copy_from_slice(&size.to_ne_bytes());
        }
        KEY_FP4_HADAMARD => quantise_fp4(&rotated(values), data, scale),
        other => return Err(unknown(other)),
    }
    Ok(())
}

/// Reads an entry; the values are in rotated space if the layout rotates.
///
/// # Errors
/// If truth does not know the layout.
pub fn decode(layout: u32, rope_dim: usize, entry: Entry<'_>, values: &mut [f32]) -> Result<()> {
    let Entry { data, scale } = entry;
    let wide = |at: usize| bf16_to_f32(u16::from_ne_bytes([data[at], data[at + 1]]));
    let n = values.len();
    for (i, v) in values.iter_mut().enumerate() {
        *v = match layout {
            KV_F32 | KEY_F32 => {
                f32::from_ne_bytes([data[4 * i], data[4 * i + 1], data[4 * i + 2], data[4 * i + 3]])
            }
            KV_BF16 | KEY_BF16 => wide(2 * i),
            KV_FP8_DS_MLA if i < n - rope_dim => e4m3_to_f32(data[i]) * power(scale[i / 64]),
            KV_FP8_DS_MLA => wide(2 * i - (n - rope_dim)),
            KEY_FP8_HADAMARD => {
                e4m3_to_f32(data[i]) * f32::from_ne_bytes([scale[0], scale[1], scale[2], scale[3]])
            }
            KEY_FP4_HADAMARD => e2m1_to_f32(data[i / 2] >> (4 * (i % 2)) & 15) * power(scale[i / 32]),
            other => return Err(unknown(other)),
        };
    }
    Ok(())
}

/// Distance between neighbouring numbers of the layout at value `i` of an entry, which is `value`: how far two equally
/// right entries may be apart, when what they were made of differs by less than a rounding. 0 for f32 layouts.
pub fn step(layout: u32, rope_dim: usize, dim: usize, entry: Entry<'_>, i: usize, value: f32) -> f32 {
    // The binade of a magnitude in units of `quantum`, at least `least`.
    let binade = |magnitude: f32, least: i32| {
        let mut exponent = least;
        while 2f32.powi(exponent + 1) <= magnitude && exponent < 127 {
            exponent += 1;
        }
        2f32.powi(exponent)
    };
    let e4m3 = |size: f32| binade((value / size).abs(), -6) / 8.0 * size;
    match layout {
        KV_BF16 | KEY_BF16 => binade(value.abs(), -126) / 128.0,
        KV_FP8_DS_MLA if i >= dim - rope_dim => binade(value.abs(), -126) / 128.0,
        KV_FP8_DS_MLA => e4m3(power(entry.scale[i / 64])),
        KEY_FP8_HADAMARD => {
            let s = entry.scale;
            e4m3(f32::from_ne_bytes([s[0], s[1], s[2], s[3]]))
        }
        KEY_FP4_HADAMARD => {
            let size = power(entry.scale[i / 32]);
            binade((value / size).abs(), 0) / 2.0 * size
        }
        _ => 0.0,
    }
}

/// A query in the space of the keys: rotated and quantised if the layout does that to its keys, unchanged otherwise
/// (design decision 8).
pub fn query(layout: u32, values: &mut [f32]) {
    let n = values.len();
    let (mut data, mut scale) = (vec![0; n], [0; 64]);
    match layout {
        KEY_FP8_HADAMARD => {
            let size = quantise_fp8(&rotated(values), &mut data);
            for (v, code) in values.iter_mut().zip(data) {
                *v = e4m3_to_f32(code) * size;
            }
        }
        KEY_FP4_HADAMARD => {
            quantise_fp4(&rotated(values), &mut data, &mut scale[..n / 32]);
            for (i, v) in values.iter_mut().enumerate() {
                *v = e2m1_to_f32(data[i / 2] >> (4 * (i % 2)) & 15) * power(scale[i / 32]);
            }
        }
        _ => {}
    }
}

fn bf16(value: f32) -> f32 {
    bf16_to_f32(f32_to_bf16(value))
}

fn bf16s(values: &[f32], data: &mut [u8]) {
    for (bytes, v) in data.chunks_exact_mut(2).zip(values) {
        bytes.copy_from_slice(&f32_to_bf16(*v).to_ne_bytes());
    }
}

/// bf16, rotated, bf16.
fn rotated(values: &[f32]) -> Vec<f32> {
    let mut rotated: Vec<f32> = values.iter().map(|v| bf16(*v)).collect();
    hadamard(&mut rotated);
    rotated.iter_mut().for_each(|v| *v = bf16(*v));
    rotated
}

/// Largest magnitude, at least `floor`; NaN are skipped.
fn amax(values: &[f32], floor: f32) -> f32 {
    values.iter().fold(floor, |m, v| m.max(v.abs()))
}

/// The least power of two with an exponent in -126 ..= 127 that is not below `value`: its ue8m0 byte and itself.
fn ue8m0_at_least(value: f32) -> (u8, f32) {
    let found = (-126..=127).find(|e| 2f32.powi(*e) >= value);
    found.map_or((255, f32::NAN), |e| ((e + 127) as u8, 2f32.powi(e)))
}

/// The value of a ue8m0 byte.
fn power(byte: u8) -> f32 {
    if byte == 255 { f32::NAN } else { 2f32.powi(i32::from(byte) - 127) }
}

/// e4m3 codes with one scale, which is returned.
fn quantise_fp8(values: &[f32], codes: &mut [u8]) -> f32 {
    let size = amax(values, 1e-4) / 448.0;
    let inverse = 1.0 / size;
    for (code, v) in codes.iter_mut().zip(values) {
        *code = f32_to_e4m3(v * inverse);
    }
    size
}

/// e2m1 codes in groups of 32; a group with a NaN has the scale NaN.
fn quantise_fp4(values: &[f32], data: &mut [u8], scale: &mut [u8]) {
    for (g, group) in values.chunks(32).enumerate() {
        let nan = group.iter().any(|v| v.is_nan());
        let (byte, size) = ue8m0_at_least(amax(group, 6.0 * 2f32.powi(-126)) * (1.0 / 6.0));
        scale[g] = if nan { 255 } else { byte };
        for (i, pair) in group.chunks_exact(2).enumerate() {
            data[g * 16 + i] = f32_to_e2m1(pair[0] / size) | f32_to_e2m1(pair[1] / size) << 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(layout: u32, shape: Shape, values: &[f32]) -> (Vec<u8>, Vec<u8>) {
        let n = parts(layout, shape).unwrap();
        let (mut data, mut scale) = (vec![0xa5; n.data], vec![0xa5; n.scale]);
        encode(layout, shape.rope_dim, values, EntryMut { data: &mut data, scale: &mut scale }).unwrap();
        (data, scale)
    }

    #[test]
    fn fp8_keys_hold_rotated_codes_and_a_scale() {
        // The rotation of [2, 2, 2, 2] is [4, 0, 0, 0]: the largest value gets the largest code.
        let (data, scale) = encoded(KEY_FP8_HADAMARD, Shape { dim: 4, rope_dim: 2 }, &[2.0; 4]);
        assert_eq!(data, [0x7e, 0, 0, 0]);
        let mut back = [0f32; 4];
        decode(KEY_FP8_HADAMARD, 2, Entry { data: &data, scale: &scale }, &mut back).unwrap();
        assert!((back[0] - 4.0).abs() < 1e-6 && back[1..] == [0.0; 3], "{back:?}");
    }

    #[test]
    fn fp4_keys_have_the_even_value_low() {
        // A row of the Hadamard matrix of 32 turns into one value of sqrt(32), rounded to bf16: 5.65625, scale 1.
        let row = |k: usize| {
            (0..32).map(move |i: usize| if (i & k).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 })
        };
        for k in [0, 1, 6, 31] {
            let (data, scale) =
                encoded(KEY_FP4_HADAMARD, Shape { dim: 32, rope_dim: 8 }, &row(k).collect::<Vec<_>>());
            assert_eq!(scale, [127]);
            let at = |i: usize| if i == k / 2 { 7 << (4 * (k % 2)) } else { 0 };
            assert_eq!(data, (0..16).map(at).collect::<Vec<u8>>(), "row {k}");
        }
    }

    #[test]
    fn fp8_entries_are_codes_then_bf16_with_a_power_of_two_a_group() {
        let shape = Shape { dim: 136, rope_dim: 2 };
        let mut values = vec![0f32; 136];
        (values[0], values[64], values[65], values[130], values[134], values[135]) =
            (448.0, 1.0, -0.5, 3.0, 1.5, -2.0);
        let (data, scale) = encoded(KV_FP8_DS_MLA, shape, &values);
        // 1 / 448 rounds up to 2^-8, 3 / 448 to 2^-7; the rest of the 8 bytes is zero.
        assert_eq!(scale, [127, 119, 120, 0, 0, 0, 0, 0]);
        assert_eq!((data[0], data[64], data[65], data[130]), (0x7e, 0x78, 0xf0, 0x7c));
        assert_eq!(data[134..], [1.5f32, -2.0].map(|v| f32_to_bf16(v).to_ne_bytes()).concat());
        let mut back = vec![0.0; 136];
        decode(KV_FP8_DS_MLA, 2, Entry { data: &data, scale: &scale }, &mut back).unwrap();
        assert_eq!(back, values);
    }

    #[test]
    fn rotated_scores_equal_plain_scores_up_to_the_quantisation() {
        let key: Vec<f32> = (0..32).map(|i| ((i * 37 % 19) as f32 - 9.0) / 7.0).collect();
        let q: Vec<f32> = (0..32).map(|i| ((i * 53 % 23) as f32 - 11.0) / 9.0).collect();
        let plain = super::super::numbers::dot(&key, &q);
        for (layout, share) in [(KEY_FP8_HADAMARD, 0.05), (KEY_FP4_HADAMARD, 0.3)] {
            let (data, scale) = encoded(layout, Shape { dim: 32, rope_dim: 8 }, &key);
            let (mut decoded, mut q) = (vec![0.0; 32], q.clone());
            decode(layout, 8, Entry { data: &data, scale: &scale }, &mut decoded).unwrap();
            query(layout, &mut q);
            let quantised = super::super::numbers::dot(&decoded, &q);
            assert!((plain - quantised).abs() < share * plain.abs().max(1.0), "{plain} {quantised}");
            assert_ne!(plain, quantised);
        }
    }

    #[test]
    fn a_step_is_the_distance_to_the_next_number() {
        let fp8 = Entry { data: &[], scale: &[128; 8] };
        let of = |i, value| step(KV_FP8_DS_MLA, 64, 512, fp8, i, value);
        assert_eq!((of(0, 0.0), of(0, 2.0), of(0, -3.9), of(0, 800.0)), (2f32.powi(-8), 0.25, 0.25, 64.0));
        assert_eq!(of(500, 1.0), 2f32.powi(-7));
        let fp4 = |value| step(KEY_FP4_HADAMARD, 64, 128, Entry { data: &[], scale: &[127; 4] }, 3, value);
        assert_eq!((fp4(0.0), fp4(1.5), fp4(2.0), fp4(-6.0)), (0.5, 0.5, 1.0, 2.0));
        assert_eq!(step(KV_F32, 0, 1, fp8, 0, 7.0), 0.0);
    }

    #[test]
    fn unknown_layouts_and_impossible_shapes_are_refused() {
        let shape = |dim, rope_dim| Shape { dim, rope_dim };
        assert!(parts(99, shape(64, 8)).unwrap_err().message.contains("99"));
        assert!(parts(KEY_FP8_HADAMARD, shape(48, 8)).is_err());
        assert!(parts(KEY_FP4_HADAMARD, shape(16, 8)).is_err());
        assert!(parts(KV_FP8_DS_MLA, shape(8, 16)).is_err());
    }
}
