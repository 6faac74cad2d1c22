//! KV layouts as the contract defines them ([`hotseam_abi::layout`]), written apart from the SDK's.

use super::numbers::{bf16_to_f32, e4m3_to_f32, f32_to_bf16, f32_to_e4m3, hadamard};
use hotseam_abi::layout::{KEY_BF16, KEY_F32, KEY_FP8_HADAMARD, KV_F32};
use hotseam_sdk::{Error, Result};

fn unknown(layout: u32) -> Error {
    Error::argument(format!("KV layout {layout} has no truth in this build"))
}

/// Bytes of an entry of `dim` values.
pub fn entry_bytes(layout: u32, dim: usize) -> Result<usize> {
    match layout {
        KV_F32 | KEY_F32 => Ok(4 * dim),
        KEY_BF16 => Ok(2 * dim),
        KEY_FP8_HADAMARD if dim.is_power_of_two() => Ok(dim + 4),
        KEY_FP8_HADAMARD => {
            Err(Error::argument(format!("a Hadamard rotation needs a power of two, not {dim}")))
        }
        other => Err(unknown(other)),
    }
}

/// Writes roped `values` as an entry.
pub fn encode(layout: u32, values: &[f32], entry: &mut [u8]) -> Result<()> {
    match layout {
        KV_F32 | KEY_F32 => {
            for (bytes, v) in entry.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&v.to_ne_bytes());
            }
        }
        KEY_BF16 => {
            for (bytes, v) in entry.chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&f32_to_bf16(*v).to_ne_bytes());
            }
        }
        KEY_FP8_HADAMARD => {
            let mut rotated = values.to_vec();
            hadamard(&mut rotated);
            let scale = quantise(&rotated, &mut entry[..values.len()]);
            entry[values.len()..values.len() + 4].copy_from_slice(&scale.to_ne_bytes());
        }
        other => return Err(unknown(other)),
    }
    Ok(())
}

/// Reads an entry; the values are in rotated space if the layout rotates.
pub fn decode(layout: u32, entry: &[u8], values: &mut [f32]) -> Result<()> {
    match layout {
        KV_F32 | KEY_F32 => {
            for (v, b) in values.iter_mut().zip(entry.chunks_exact(4)) {
                *v = f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        KEY_BF16 => {
            for (v, b) in values.iter_mut().zip(entry.chunks_exact(2)) {
                *v = bf16_to_f32(u16::from_ne_bytes([b[0], b[1]]));
            }
        }
        KEY_FP8_HADAMARD => {
            let n = values.len();
            let scale = f32::from_ne_bytes([entry[n], entry[n + 1], entry[n + 2], entry[n + 3]]);
            for (v, code) in values.iter_mut().zip(entry) {
                *v = e4m3_to_f32(*code) * scale;
            }
        }
        other => return Err(unknown(other)),
    }
    Ok(())
}

/// A query in the space of the keys: rotated and quantised if the layout does that to its keys, unchanged otherwise
/// (design decision 8).
pub fn query(layout: u32, values: &mut [f32]) {
    if layout == KEY_FP8_HADAMARD {
        hadamard(values);
        let mut codes = vec![0; values.len()];
        let scale = quantise(values, &mut codes);
        for (v, code) in values.iter_mut().zip(codes) {
            *v = e4m3_to_f32(code) * scale;
        }
    }
}

/// Quantises to e4m3 with the scale `max(|v|, 1e-4) / 448`, which it returns.
fn quantise(values: &[f32], codes: &mut [u8]) -> f32 {
    let largest = values.iter().fold(1e-4f32, |m, v| m.max(v.abs()));
    let scale = largest / 448.0;
    for (code, v) in codes.iter_mut().zip(values) {
        *code = f32_to_e4m3(v / scale);
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_entries_hold_rotated_codes_and_a_scale() {
        // The rotation of [2, 2, 2, 2] is [4, 0, 0, 0]: the largest value gets the largest code.
        let mut entry = [0u8; 8];
        encode(KEY_FP8_HADAMARD, &[2.0; 4], &mut entry).unwrap();
        assert_eq!(entry[..4], [0x7e, 0, 0, 0]);
        let mut back = [0f32; 4];
        decode(KEY_FP8_HADAMARD, &entry, &mut back).unwrap();
        assert!((back[0] - 4.0).abs() < 1e-6 && back[1..] == [0.0; 3], "{back:?}");
    }

    #[test]
    fn rotated_scores_equal_plain_scores_up_to_the_quantisation() {
        let key: Vec<f32> = (0..32).map(|i| ((i * 37 % 19) as f32 - 9.0) / 7.0).collect();
        let mut q: Vec<f32> = (0..32).map(|i| ((i * 53 % 23) as f32 - 11.0) / 9.0).collect();
        let plain = super::super::numbers::dot(&key, &q);
        let mut entry = vec![0; 36];
        encode(KEY_FP8_HADAMARD, &key, &mut entry).unwrap();
        let mut decoded = vec![0.0; 32];
        decode(KEY_FP8_HADAMARD, &entry, &mut decoded).unwrap();
        query(KEY_FP8_HADAMARD, &mut q);
        let quantised = super::super::numbers::dot(&decoded, &q);
        assert!((plain - quantised).abs() < 0.05 * plain.abs().max(1.0), "{plain} {quantised}");
        assert_ne!(plain, quantised);
    }

    #[test]
    fn unknown_layouts_are_refused_by_number() {
        assert!(entry_bytes(99, 64).unwrap_err().message.contains("99"));
        assert!(entry_bytes(KEY_FP8_HADAMARD, 48).is_err());
    }
}
