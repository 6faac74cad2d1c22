//! E4M3 in blocks of 128 x 128 with UE8M0 scales: `2^ceil(log2(amax / 448))`, as DeepSeek stores projections.

use hotseam_model::FP8_BLOCK;
use hotseam_model::number::{e4m3, ue8m0};

use super::{amax, power_scale};
use crate::scan::largest_scale;

/// Quantises rows of `k` values; the first row begins a block.
pub(super) fn quantise(values: &[f32], k: usize, codes: &mut [u8], scales: &mut [u8]) {
    let most = largest_scale(hotseam_model::Format::Fp8Block);
    let bands = values.chunks(FP8_BLOCK * k).zip(codes.chunks_mut(FP8_BLOCK * k));
    for ((values, codes), scales) in bands.zip(scales.chunks_mut(k.div_ceil(FP8_BLOCK))) {
        for (block, scale) in scales.iter_mut().enumerate() {
            let columns = block * FP8_BLOCK..((block + 1) * FP8_BLOCK).min(k);
            let largest = values.chunks(k).map(|row| amax(&row[columns.clone()])).fold(0.0, f32::max);
            *scale = power_scale(largest, 6, 8, most); // 448 = (1 + 6/8) * 2^8
            let inverse = 1.0 / ue8m0::decode(*scale); // exact: a power of two
            for (row, codes) in values.chunks(k).zip(codes.chunks_mut(k)) {
                for (code, value) in codes[columns.clone()].iter_mut().zip(&row[columns.clone()]) {
                    *code = e4m3::encode(value * inverse);
                }
            }
        }
    }
}
