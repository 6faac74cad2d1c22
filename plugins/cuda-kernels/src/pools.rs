//! Which pools the kernels serve; `cuda/layouts.cuh` has the kernels' side.

use hotseam_sdk::abi::PoolRef;
use hotseam_sdk::{Error, Result};

/// Most values of an entry.
const MOST_DIM: u32 = 1024;
/// Values that a kernel reads at once.
const STEP: u32 = 8;

/// Whether the kernels read and write entries of such a shape.
///
/// # Errors
/// If they do not.
pub(crate) fn served(pool: &PoolRef, what: &str) -> Result<()> {
    match pool.dim <= MOST_DIM && pool.dim.is_multiple_of(STEP) && pool.rope_dim.is_multiple_of(STEP) {
        true => Ok(()),
        false => Err(Error::unsupported(format!(
            "{what} has entries of {} values, {} of them roped; this variant serves multiples of {STEP} up to {MOST_DIM}",
            pool.dim, pool.rope_dim
        ))),
    }
}

/// Most entries of a sequence that can be read: those of its table, as far as the rope tables have positions.
pub(crate) fn most_entries(pool: &PoolRef, positions: i64, ratio: u32) -> u32 {
    let mapped = u64::from(pool.table_width) * u64::from(pool.entries_per_page);
    mapped.min(positions as u64 / u64::from(ratio.max(1))).min(u64::from(u32::MAX / 2)) as u32
}
