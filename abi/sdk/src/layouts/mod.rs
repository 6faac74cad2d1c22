//! The KV layouts of the contract as code: how an entry of f32 values becomes bytes, and back.
//!
//! An entry has a data and a scale part, which lie apart in a page; [`crate::views::Pool`] finds them. A new layout is
//! a number in [`hotseam_abi::layout`] and an arm in each function here.

pub mod quant;

use crate::{Error, Result};
use hotseam_abi::layout;
use hotseam_ops::formats::ue8m0;
use hotseam_ops::{bf16, widen};
use quant::{FP4_GROUP, FP8_GROUP};

/// What the values of an entry are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of values.
    pub dim: usize,
    /// How many of them, the last ones, are roped.
    pub rope_dim: usize,
}

/// Bytes of the parts of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Of the values.
    pub data: usize,
    /// Of their scales; 0 for layouts without scales.
    pub scale: usize,
}

/// An entry that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Values.
    pub data: &'a [u8],
    /// Scales.
    pub scale: &'a [u8],
}

/// An entry that is written.
#[derive(Debug)]
pub struct EntryMut<'a> {
    /// Values.
    pub data: &'a mut [u8],
    /// Scales.
    pub scale: &'a mut [u8],
}

/// Bytes of the parts of an entry.
///
/// # Errors
/// If this build does not know the layout, or the layout cannot hold the shape.
pub fn parts(layout: u32, shape: Shape) -> Result<Parts> {
    let Shape { dim, rope_dim } = shape;
    let rotated = |group: usize| match dim.is_power_of_two() && dim.is_multiple_of(group) {
        true => Ok(()),
        false => Err(Error::argument(format!(
            "a rotated layout needs a power of two of at least {group} values, not {dim}"
        ))),
    };
    match layout {
        layout::KV_F32 | layout::KEY_F32 => Ok(Parts { data: dim * 4, scale: 0 }),
        layout::KV_BF16 | layout::KEY_BF16 => Ok(Parts { data: dim * 2, scale: 0 }),
        layout::KV_FP8_DS_MLA => match dim.checked_sub(rope_dim) {
            Some(nope) => {
                Ok(Parts { data: nope + 2 * rope_dim, scale: nope.div_ceil(FP8_GROUP).next_multiple_of(8) })
            }
            None => Err(Error::argument(format!("{rope_dim} roped values of an entry of {dim}"))),
        },
        layout::KEY_FP8_HADAMARD => rotated(1).map(|()| Parts { data: dim, scale: 4 }),
        layout::KEY_FP4_HADAMARD => {
            rotated(FP4_GROUP).map(|()| Parts { data: dim / 2, scale: dim / FP4_GROUP })
        }
        other => Err(unknown(other)),
    }
}

/// Whether keys of a layout are rotated.
pub fn rotates(layout: u32) -> bool {
    matches!(layout, layout::KEY_FP8_HADAMARD | layout::KEY_FP4_HADAMARD)
}

/// Writes `values` (roped, not rotated) as an entry with `rope_dim` roped values. `values` is left as the quantiser had
/// it: rounded to bf16, and rotated if the layout rotates.
///
/// # Errors
/// If this build does not know the layout.
pub fn encode(layout: u32, rope_dim: usize, values: &mut [f32], entry: EntryMut<'_>) -> Result<()> {
    let EntryMut { data, scale } = entry;
    match layout {
        layout::KV_F32 | layout::KEY_F32 => {
            for (v, b) in values.iter().zip(data.chunks_exact_mut(4)) {
                b.copy_from_slice(&v.to_ne_bytes());
            }
        }
        layout::KV_BF16 | layout::KEY_BF16 => write_bf16(values, data),
        layout::KV_FP8_DS_MLA => {
            quant::round_to_bf16(values);
            let (nope, rope) = values.split_at(values.len() - rope_dim);
            let (codes, rest) = data.split_at_mut(nope.len());
            quant::e4m3_groups(nope, codes, scale);
            write_bf16(rope, rest);
        }
        layout::KEY_FP8_HADAMARD => {
            quant::rotate(values);
            scale.copy_from_slice(&quant::e4m3_whole(values, data).to_ne_bytes());
        }
        layout::KEY_FP4_HADAMARD => {
            quant::rotate(values);
            quant::e2m1_groups(values, data, scale);
        }
        other => return Err(unknown(other)),
    }
    Ok(())
}

/// Reads an entry into `values`, in the rotated space if the layout rotates.
///
/// # Errors
/// If this build does not know the layout.
pub fn decode(layout: u32, rope_dim: usize, entry: Entry<'_>, values: &mut [f32]) -> Result<()> {
    let Entry { data, scale } = entry;
    match layout {
        layout::KV_F32 | layout::KEY_F32 => {
            for (v, b) in values.iter_mut().zip(data.chunks_exact(4)) {
                *v = f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        layout::KV_BF16 | layout::KEY_BF16 => widen::bf16(data, values),
        layout::KV_FP8_DS_MLA => {
            let n = values.len();
            let (nope, rope) = values.split_at_mut(n - rope_dim);
            let (codes, rest) = data.split_at(nope.len());
            let groups = nope.chunks_mut(FP8_GROUP).zip(codes.chunks(FP8_GROUP)).zip(scale);
            groups.for_each(|((values, codes), scale)| widen::e4m3(codes, ue8m0::decode(*scale), values));
            widen::bf16(rest, rope);
        }
        layout::KEY_FP8_HADAMARD => {
            widen::e4m3(data, f32::from_ne_bytes([scale[0], scale[1], scale[2], scale[3]]), values);
        }
        layout::KEY_FP4_HADAMARD => {
            let groups = values.chunks_mut(FP4_GROUP).zip(data.chunks(FP4_GROUP / 2)).zip(scale);
            groups.for_each(|((values, codes), scale)| widen::e2m1(codes, ue8m0::decode(*scale), values));
        }
        other => return Err(unknown(other)),
    }
    Ok(())
}

fn write_bf16(values: &[f32], data: &mut [u8]) {
    for (v, b) in values.iter().zip(data.chunks_exact_mut(2)) {
        b.copy_from_slice(&bf16::from_f32(*v).to_ne_bytes());
    }
}

fn unknown(layout: u32) -> Error {
    Error::argument(format!("KV layout {layout} is not known to this build"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_official_geometry_has_the_official_sizes() {
        let kv = Shape { dim: 512, rope_dim: 64 };
        let key = Shape { dim: 128, rope_dim: 64 };
        let sizes = |layout, shape| parts(layout, shape).map(|p| (p.data, p.scale)).unwrap();
        assert_eq!(sizes(layout::KV_FP8_DS_MLA, kv), (576, 8));
        assert_eq!(sizes(layout::KV_BF16, kv), (1024, 0));
        assert_eq!(sizes(layout::KEY_FP8_HADAMARD, key), (128, 4));
        assert_eq!(sizes(layout::KEY_FP4_HADAMARD, key), (64, 4));
        assert_eq!(sizes(layout::KV_FP8_DS_MLA, Shape { dim: 1024, rope_dim: 64 }), (1088, 16));
        assert!(parts(99, kv).unwrap_err().message.contains("layout 99"));
        assert!(parts(layout::KV_FP8_DS_MLA, Shape { dim: 8, rope_dim: 16 }).is_err());
        assert!(parts(layout::KEY_FP8_HADAMARD, Shape { dim: 48, rope_dim: 16 }).is_err());
        assert!(parts(layout::KEY_FP4_HADAMARD, Shape { dim: 16, rope_dim: 8 }).is_err());
    }

    /// What is stored once comes back the same when it is stored again: the quantisers are projections.
    #[test]
    fn decoded_entries_encode_to_the_same_bytes() {
        let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) * 2f32.powi((i % 5) as i32 - 2);
        for (layout, shape) in [
            (layout::KV_F32, Shape { dim: 512, rope_dim: 64 }),
            (layout::KV_BF16, Shape { dim: 512, rope_dim: 64 }),
            (layout::KV_FP8_DS_MLA, Shape { dim: 512, rope_dim: 64 }),
            (layout::KV_FP8_DS_MLA, Shape { dim: 72, rope_dim: 6 }),
            (layout::KEY_BF16, Shape { dim: 128, rope_dim: 64 }),
        ] {
            let n = parts(layout, shape).unwrap();
            let store = |values: &mut [f32]| {
                let (mut data, mut scale) = (vec![0xa5; n.data], vec![0xa5; n.scale]);
                encode(layout, shape.rope_dim, values, EntryMut { data: &mut data, scale: &mut scale })
                    .unwrap();
                (data, scale)
            };
            let first = store(&mut (0..shape.dim).map(value).collect::<Vec<_>>());
            let mut values = vec![0.0; shape.dim];
            decode(layout, shape.rope_dim, Entry { data: &first.0, scale: &first.1 }, &mut values).unwrap();
            for (i, v) in values.iter().enumerate() {
                assert!((v - value(i)).abs() <= value(i).abs() / 16.0 + 0.01, "layout {layout}, {i}: {v}");
            }
            assert_eq!(store(&mut values), first, "layout {layout}");
        }
    }
}
