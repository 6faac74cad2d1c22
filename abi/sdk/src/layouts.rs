//! The KV layouts of the contract as code: how an entry of f32 values becomes bytes, and back.

use crate::{Error, Result};
use hotseam_abi::layout;
use hotseam_ops::{bf16, e4m3, hadamard};

/// Bytes of an entry of `dim` values, or an error for a layout that this build does not know.
pub fn entry_bytes(layout: u32, dim: usize) -> Result<usize> {
    match layout {
        layout::KV_F32 | layout::KEY_F32 => Ok(dim * 4),
        layout::KEY_BF16 => Ok(dim * 2),
        layout::KEY_FP8_HADAMARD if dim.is_power_of_two() => Ok(dim + 4),
        layout::KEY_FP8_HADAMARD => {
            Err(Error::argument(format!("a Hadamard rotation needs a power of two, not {dim}")))
        }
        other => Err(unknown(other)),
    }
}

/// Writes `values` (roped, not rotated) as an entry; `values` is left rotated if the layout rotates.
pub fn encode(layout: u32, values: &mut [f32], entry: &mut [u8]) -> Result<()> {
    match layout {
        layout::KV_F32 | layout::KEY_F32 => {
            for (v, b) in values.iter().zip(entry.chunks_exact_mut(4)) {
                b.copy_from_slice(&v.to_ne_bytes());
            }
        }
        layout::KEY_BF16 => {
            for (v, b) in values.iter().zip(entry.chunks_exact_mut(2)) {
                b.copy_from_slice(&bf16::from_f32(*v).to_ne_bytes());
            }
        }
        layout::KEY_FP8_HADAMARD => {
            hadamard(values);
            let (codes, scale_bytes) = entry.split_at_mut(values.len());
            let scale = quantise_e4m3(values, codes);
            scale_bytes[..4].copy_from_slice(&scale.to_ne_bytes());
        }
        other => return Err(unknown(other)),
    }
    Ok(())
}

/// Reads an entry into `values`, in the rotated space if the layout rotates.
pub fn decode(layout: u32, entry: &[u8], values: &mut [f32]) -> Result<()> {
    match layout {
        layout::KV_F32 | layout::KEY_F32 => {
            for (v, b) in values.iter_mut().zip(entry.chunks_exact(4)) {
                *v = f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        layout::KEY_BF16 => {
            for (v, b) in values.iter_mut().zip(entry.chunks_exact(2)) {
                *v = bf16::to_f32(u16::from_ne_bytes([b[0], b[1]]));
            }
        }
        layout::KEY_FP8_HADAMARD => {
            let (codes, s) = entry.split_at(values.len());
            let scale = f32::from_ne_bytes([s[0], s[1], s[2], s[3]]);
            for (v, code) in values.iter_mut().zip(codes) {
                *v = e4m3::decode(*code) * scale;
            }
        }
        other => return Err(unknown(other)),
    }
    Ok(())
}

/// Quantises to e4m3 with one scale for all values: `scale = max(|v|, 1e-4) / 448`; returns the scale.
pub fn quantise_e4m3(values: &[f32], codes: &mut [u8]) -> f32 {
    let largest = values.iter().fold(1e-4f32, |m, v| m.max(v.abs()));
    let scale = largest / 448.0;
    for (v, code) in values.iter().zip(codes) {
        *code = e4m3::encode(v / scale);
    }
    scale
}

fn unknown(layout: u32) -> Error {
    Error::argument(format!("KV layout {layout} is not known to this build"))
}
