//! Writes that go where they should not, or do not happen.

use hotseam_sdk::Ctx;
use hotseam_sdk::views::{Core, Store};

/// Distance, in slots, of the neighbour that is overwritten.
const REACH: i32 = 8;
/// Words that are written past the output: fewer than the guards of the conformance cases have.
const PAST: usize = 16;

/// Copies each new entry of a decode step into the slot [`REACH`] before its own, unless that is written by this call.
pub(crate) fn neighbours(ctx: &Ctx, a: &mut Store<'_>) {
    if ctx.is_prefill() {
        return;
    }
    for slot in a.out_slots.iter().filter(|slot| **slot >= REACH && !a.out_slots.contains(&(**slot - REACH)))
    {
        let own = a.pool.entry(*slot as usize).data.to_vec();
        a.pool.entry_mut((*slot - REACH) as usize).data.copy_from_slice(&own);
    }
}

/// The part of the output that stays unwritten: the last quarter of the last row.
pub(crate) fn tail(a: &Core<'_>) -> std::ops::Range<usize> {
    let n = a.out.len();
    n - (a.heads * a.dim / 4).min(n)..n
}

/// Writes past the output, in decode.
pub(crate) fn past_end(ctx: &Ctx, a: &mut Core<'_>) {
    if ctx.is_prefill() || a.out.is_empty() {
        return;
    }
    let end = a.out.as_mut_ptr_range().end;
    for i in 0..PAST {
        // SAFETY: not sound, which is the fault. The memory belongs to the host and to nobody else during the call: its
        // buffers have room for a whole prefill chunk, or guards of more words behind them.
        unsafe { end.add(i).write_volatile(f32::MAX) };
    }
}
