//! Entries that miss their slot.

use hotseam_sdk::Ctx;
use hotseam_sdk::views::{Compress, Source};

/// First prefill chunk, counted from 0, in which [`misplace`] acts.
pub const FIRST_BAD_CHUNK: u32 = 2;

/// Fills `slots` with the slots of `a`, where those of prefill chunks from [`FIRST_BAD_CHUNK`] on are exchanged: an entry
/// goes half a chunk further, and wraps around within the entries that its sequence writes in this call.
///
/// Every slot stays written exactly once and belongs to the sequence, so nothing crashes and no stale bytes are read:
/// the index of an entry and its content no longer belong together. A call that writes a single entry is left as it is.
///
/// The real fault: slot mapping of a chunk that does not start at position 0, wrong without any other symptom
/// (<https://github.com/vllm-project/vllm/pull/36580>).
pub fn misplace(ctx: &Ctx, a: &Compress<'_>, slots: &mut Vec<i32>) {
    slots.clear();
    slots.extend_from_slice(a.out_slots);
    if !ctx.is_prefill() {
        return;
    }
    let chunk = |entry| match a.source(entry, a.width() - 1) {
        Source::Row(row) => {
            let seq = a.rows.seq(row);
            (seq, a.rows.seqs[seq].chunk)
        }
        // The token that closes a group is always a row of the call; an entry without it is left alone.
        _ => (usize::MAX, 0),
    };
    let mut begin = 0;
    while begin < slots.len() {
        let (seq, number) = chunk(begin);
        let end = (begin + 1..slots.len()).find(|e| chunk(*e).0 != seq).unwrap_or(slots.len());
        if number >= FIRST_BAD_CHUNK {
            slots[begin..end].rotate_left((end - begin).div_ceil(2));
        }
        begin = end;
    }
}
