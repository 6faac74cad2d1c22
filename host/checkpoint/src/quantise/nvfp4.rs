//! E2M1 in groups of 16 with E4M3 scales under one f32 factor, as ModelOpt makes them: the factor puts the largest
//! group scale at 448, each group scale is `amax / 6` over the factor, rounded.

use hotseam_model::NVFP4_GROUP;
use hotseam_model::number::{e2m1, e4m3};

use super::{amax, pack};

/// Factor for values up to `largest`; 1 where all are 0.
pub fn global_scale(largest: f32) -> f32 {
    let global = largest / (e2m1::MAX * e4m3::MAX);
    match global {
        0.0 if largest == 0.0 => 1.0,
        0.0 => f32::from_bits(1), // too small for an f32; the factor must not be 0
        _ => global,
    }
}

/// Quantises rows of whole groups.
pub(super) fn quantise(values: &[f32], global: f32, codes: &mut [u8], scales: &mut [u8]) {
    let groups = values.chunks_exact(NVFP4_GROUP).zip(codes.chunks_exact_mut(NVFP4_GROUP / 2));
    for ((values, codes), scale) in groups.zip(scales) {
        *scale = e4m3::encode(amax(values) / e2m1::MAX / global);
        let step = e4m3::decode(*scale) * global;
        // A scale that rounds to 0 makes the group 0, whatever its codes.
        pack(values, codes, |value| if step == 0.0 { 0.0 } else { value / step });
    }
}
