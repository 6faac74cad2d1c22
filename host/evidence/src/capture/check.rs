//! What the contract demands of a call beyond shapes: the last check before a plugin sees a call out of a file.

use std::collections::HashSet;

use hotseam_abi::{PoolRef, layout};
use hotseam_conformance::reference::Reference;
use hotseam_engine::observe::Args;

fn slice<'a, T>(p: *const T, n: usize) -> &'a [T] {
    match n == 0 || p.is_null() {
        true => &[],
        // SAFETY: the reader stored this many values there.
        false => unsafe { std::slice::from_raw_parts(p, n) },
    }
}

/// Checks the arguments.
///
/// # Errors
/// What is wrong with them.
pub(super) fn check(args: Args<'_>, indexer: bool) -> Result<(), String> {
    // SAFETY: the reader built the arguments over memory of the sizes that they say.
    let shapes = unsafe {
        match args {
            Args::Store(a) => a.check(),
            Args::Compress(a) => a.check(),
            Args::Core(a) => a.check(),
            Args::Select(a) => a.check(),
            Args::Route(a) => a.check(),
            Args::Experts(a) => a.check(),
            Args::Pre(a) => a.check(),
            Args::Post(a) => a.check(),
            Args::Head(a) => a.check(),
        }
    };
    shapes.map_err(|error| error.message)?;
    // SAFETY: the batch was built by the reader.
    let n = unsafe { (*args.batch()).n_rows as usize };
    match args {
        Args::Store(a) => {
            entries(&a.pool, indexer)?;
            slots("out_slots", slice(a.out_slots, n), -1)
        }
        Args::Compress(a) => {
            entries(&a.pool, indexer)?;
            let count = a.n_entries as usize;
            slots("out_slots", slice(a.out_slots, count), 0)?;
            if let Some(bad) = slice(a.entry_positions, count).iter().find(|p| **p < 0) {
                return Err(format!("entry_positions has {bad}"));
            }
            let written = slice(a.state_dst, n);
            slots("state_dst", written, -1)?;
            let width = (a.ratio * (1 + a.overlap)) as usize;
            let sources = slice(a.sources, count * width);
            let (written, positions) =
                (HashSet::<i32>::from_iter(written.iter().copied()), positions(args, n));
            if let Some(row) =
                sources.iter().filter(|s| **s <= -2).map(|s| -(s + 2)).find(|r| written.contains(r))
            {
                return Err(format!("state row {row} is read and written by the same call"));
            }
            match sources.iter().find(|s| **s >= 0 && positions[**s as usize] < 0) {
                Some(row) => Err(format!("row {row} is a source, but it is padding")),
                None => Ok(()),
            }
        }
        Args::Core(a) => {
            entries(&a.swa, false)?;
            if a.ratio > 0 {
                entries(&a.entries, false)?;
            }
            let width = a.ids_width as usize;
            if a.ratio > 0 && !a.ids.is_null() {
                for (row, ids) in slice(a.ids, n * width).chunks(width.max(1)).enumerate() {
                    slots(&format!("ids of row {row}"), ids, -1)?;
                }
            }
            Ok(())
        }
        Args::Select(a) => entries(&a.keys, true),
        Args::Route(a) => {
            let experts = extent(&a.gate, 0) as i64;
            let table = match a.tid2eid.data.is_null() {
                true => &[],
                false => slice(
                    a.tid2eid.data.cast_const().cast::<i32>(),
                    extent(&a.tid2eid, 0) * extent(&a.tid2eid, 1),
                ),
            };
            match table.iter().find(|e| **e < 0 || i64::from(**e) >= experts) {
                Some(bad) => Err(format!("tid2eid names expert {bad} of {experts}")),
                None => Ok(()),
            }
        }
        Args::Experts(_) | Args::Pre(_) | Args::Post(_) | Args::Head(_) => Ok(()),
    }
}

fn positions(args: Args<'_>, n: usize) -> &'static [i32] {
    // SAFETY: the batch was built by the reader.
    unsafe { slice((*args.batch()).positions, n) }
}

fn extent(t: &hotseam_abi::TensorRef, d: usize) -> usize {
    t.shape[d].max(0) as usize
}

/// Distinct numbers of at least `least`; -1 may repeat.
fn slots(what: &str, values: &[i32], least: i32) -> Result<(), String> {
    let mut known = HashSet::new();
    match values.iter().find(|v| **v < least || (**v >= 0 && !known.insert(**v))) {
        Some(bad) if *bad < least => Err(format!("{what} has {bad}, expected at least {least}")),
        Some(bad) => Err(format!("{what} has {bad} twice")),
        None => Ok(()),
    }
}

/// The layout is one of the seam's; that its entries are what the call needs is seen when the view is made.
fn entries(pool: &PoolRef, indexer: bool) -> Result<(), String> {
    let known: &[u32] = match indexer {
        true => &[layout::KEY_F32, layout::KEY_BF16, layout::KEY_FP8_HADAMARD, layout::KEY_FP4_HADAMARD],
        false => &[layout::KV_F32, layout::KV_BF16, layout::KV_FP8_DS_MLA],
    };
    match known.contains(&pool.layout) {
        true => Ok(()),
        false => Err(format!("a pool has layout {}, which this seam does not have", pool.layout)),
    }
}
