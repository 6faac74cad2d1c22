//! `attention.store`.

use crate::scratch;
use hotseam_sdk::layouts::{encode, entry_bytes};
use hotseam_sdk::ops::{Parallel, rms_norm, rope};
use hotseam_sdk::views::{PoolMut, Store};
use hotseam_sdk::{Error, Result, SharedMut};

/// Rows that are worth a thread.
const GRAIN: usize = 64;

/// `attention.store`: `rope(rms_norm(kv) * norm_weight)` of each row, encoded into its slot.
///
/// # Errors
/// If the pool's entries are too short for its layout, or the layout is unknown; nothing is written then.
pub fn store(par: &dyn Parallel, a: &mut Store<'_>) -> Result<()> {
    check_entries(&a.pool, a.dim, "pool")?;
    let (layout, bytes, dim) = (a.pool.layout, a.pool.entry_bytes, a.dim);
    let pool = SharedMut::new(&mut *a.pool.bytes);
    let (rows, slots, kv, weight, eps, tables) =
        (a.rows, a.out_slots, a.kv, a.norm_weight, a.norm_eps, a.rope);
    par.run(rows.len(), GRAIN, &|range| {
        let mut entry = scratch::lease::<f32>(dim);
        for row in range.filter(|row| slots[*row] >= 0 && rows.positions[*row] >= 0) {
            rms_norm(&kv[row * dim..][..dim], Some(weight), eps, &mut entry);
            let (cos, sin) = tables.row(rows.positions[row] as usize);
            rope(&mut entry, cos, sin, false);
            let slot = slots[row] as usize;
            // SAFETY: slots are distinct by the contract.
            write(layout, &mut entry, unsafe { pool.slice(slot * bytes..(slot + 1) * bytes) });
        }
    });
    Ok(())
}

/// Refuses a pool whose entries cannot hold `dim` values in its layout.
pub(crate) fn check_entries(pool: &PoolMut<'_>, dim: usize, what: &str) -> Result<()> {
    let need = entry_bytes(pool.layout, dim)?;
    match pool.entry_bytes < need {
        true => Err(Error::argument(format!(
            "{what}: entries of {} bytes, layout {} with {dim} dimensions needs {need}",
            pool.entry_bytes, pool.layout
        ))),
        false => Ok(()),
    }
}

/// Encodes an entry of a pool that passed [`check_entries`].
pub(crate) fn write(layout: u32, values: &mut [f32], entry: &mut [u8]) {
    // The only error is an unknown layout, and `check_entries` has refused that.
    encode(layout, values, entry).expect("a checked layout");
}
