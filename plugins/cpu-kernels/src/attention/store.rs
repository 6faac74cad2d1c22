//! `attention.store`.

use crate::scratch;
use hotseam_sdk::Result;
use hotseam_sdk::ops::{Parallel, rms_norm, rope};
use hotseam_sdk::views::Store;

/// Rows that are worth a thread.
const GRAIN: usize = 64;

/// `attention.store`: `rope(rms_norm(kv) * norm_weight)` of each row, encoded into its slot.
///
/// # Errors
/// None: the view has checked the pool.
pub fn store(par: &dyn Parallel, a: &mut Store<'_>) -> Result<()> {
    let dim = a.dim;
    let pool = a.pool.shared();
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
            unsafe { pool.encode(slot, &mut entry) };
        }
    });
    Ok(())
}
