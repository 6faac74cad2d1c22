//! E2M1 in groups of 32 with UE8M0 scales: `2^ceil(log2(amax / 6))`, as DeepSeek's quantiser makes them. (The OCP
//! specification proposes `2^(floor(log2(amax)) - 2)` instead, which clips values above 1.5 times a power of two.)

use hotseam_model::number::ue8m0;
use hotseam_model::{Format, MXFP4_GROUP};

use super::{amax, pack, power_scale};
use crate::scan::largest_scale;

/// Quantises rows of whole groups.
pub(super) fn quantise(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    let most = largest_scale(Format::Mxfp4);
    let groups = values.chunks_exact(MXFP4_GROUP).zip(codes.chunks_exact_mut(MXFP4_GROUP / 2));
    for ((values, codes), scale) in groups.zip(scales) {
        *scale = power_scale(amax(values), 4, 2, most); // 6 = (1 + 4/8) * 2^2
        let inverse = 1.0 / ue8m0::decode(*scale); // exact: a power of two
        pack(values, codes, |value| value * inverse);
    }
}
