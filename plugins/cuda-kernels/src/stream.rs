//! How products of few rows are shared out whose weights stream; `cuda/stream.cuh` has the kernels' side.

use hotseam_sdk::abi::{WeightRef, weight_format};

/// Rows of a block.
pub(crate) const ROWS: u32 = 8;
/// Outputs of a tile.
pub(crate) const OUTPUTS: u32 = 16;
/// Threads of a block.
pub(crate) const THREADS: u32 = 128;
/// Rows from which on tiles of many rows pay.
pub(crate) const MOST_ROWS: u32 = 64;
/// Blocks that occupy a device: two for each multiprocessor of an H200.
const BLOCKS: u32 = 264;

/// Whether 16 bytes can be read at an address.
pub(crate) fn aligned(address: *const std::ffi::c_void) -> bool {
    address.addr().is_multiple_of(16)
}

/// Whether the kernels read a matrix of `k` inputs.
pub(crate) fn serves(w: &WeightRef, k: i64) -> bool {
    let whole = match w.format {
        weight_format::BF16 | weight_format::FP8_BLOCK => 32,
        weight_format::MXFP4 | weight_format::NVFP4 => 128,
        _ => return false,
    };
    k > 0 && k % whole == 0 && aligned(w.data.data) && (whole == 32 || aligned(w.scales.data))
}

/// Tiles of a block, of which `blocks` tells how many blocks there are then: 4, 2 or 1, the most that occupy a device.
pub(crate) fn tiles(blocks: impl Fn(u32) -> u32) -> u32 {
    [4, 2].into_iter().find(|tiles| blocks(*tiles) >= BLOCKS).unwrap_or(1)
}
