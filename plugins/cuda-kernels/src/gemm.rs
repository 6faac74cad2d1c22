//! How products are shared out; `cuda/gemm.cuh` has the kernels' side.

/// Rows of a block of the way for few rows.
pub(crate) const FEW_ROWS: u32 = 8;
/// Rows and outputs of a tile of the way for many.
pub(crate) const TILE: u32 = 64;
/// Threads of a block for a tile.
pub(crate) const TILE_THREADS: u32 = 128;

/// Whether a product of `rows` rows takes the way for few: always if they are few, and else while there are not enough tiles
/// to occupy a device.
pub(crate) fn is_few(rows: u32, outputs: u32) -> bool {
    rows <= 16 || (rows <= TILE && outputs.div_ceil(TILE) < 64)
}

/// Threads of a block of the way for few, whose warps have `outputs` to share: fewer where there would be few blocks.
pub(crate) fn few_threads(outputs: u32) -> u32 {
    match outputs {
        0..1024 => 64,
        1024..4096 => 128,
        _ => 256,
    }
}
