//! Where a call writes: one description for every op, used to read, copy, poison and replace outputs.

use hotseam_abi::{Batch, PoolRef, TensorRef};
use hotseam_slots::Args;

/// What an output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// f32 values.
    F32,
    /// i32 numbers: entries or experts.
    I32,
    /// Bytes of pool entries in this layout.
    Entry {
        /// One of [`hotseam_abi::layout`].
        layout: u32,
    },
}

/// One output of a call: items of equal size, each at an address of its own.
#[derive(Debug, Clone)]
pub struct Place {
    /// Name of the argument.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What an item is: `row`, or `entry` for those that compressors write.
    pub axis: &'static str,
    /// Names and extents of the axes inside an item, row-major; empty for bytes.
    pub inner: Vec<(&'static str, usize)>,
    /// Bytes of an item.
    pub item_bytes: usize,
    /// Row of the batch, or number of the entry, and first byte of each item; rows that write nothing are left out.
    pub items: Vec<(usize, *mut u8)>,
}

impl Place {
    /// The bytes of an item.
    ///
    /// # Safety
    /// The call's arguments are still valid and nothing writes the item meanwhile.
    pub unsafe fn item<'a>(&self, index: usize) -> &'a [u8] {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts(self.items[index].1, self.item_bytes) }
    }

    /// All items, one after another.
    ///
    /// # Safety
    /// As [`Place::item`].
    pub unsafe fn gather(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.items.len() * self.item_bytes);
        for index in 0..self.items.len() {
            // SAFETY: the caller's contract.
            bytes.extend_from_slice(unsafe { self.item(index) });
        }
        bytes
    }

    /// Overwrites all items, from the bytes that [`Place::gather`] of an equal place gave.
    ///
    /// # Safety
    /// The call's arguments are still valid and nothing touches the items meanwhile.
    ///
    /// # Panics
    /// If the number of bytes is another.
    pub unsafe fn scatter(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.items.len() * self.item_bytes, "{}", self.name);
        for ((_, to), from) in self.items.iter().zip(bytes.chunks_exact(self.item_bytes.max(1))) {
            // SAFETY: the caller's contract; the source is a slice of this process that is no pool.
            unsafe { std::ptr::copy(from.as_ptr(), *to, self.item_bytes) };
        }
    }
}

/// A slice at `data`, which may be null or dangling if it is empty.
///
/// # Safety
/// As [`std::slice::from_raw_parts`].
pub(crate) unsafe fn slice<'a, T>(data: *const T, n: usize) -> &'a [T] {
    match n == 0 || data.is_null() {
        true => &[],
        // SAFETY: the caller's contract.
        false => unsafe { std::slice::from_raw_parts(data, n) },
    }
}

/// Rows of a batch.
///
/// # Safety
/// `batch` is valid.
pub(crate) unsafe fn rows(batch: *const Batch) -> usize {
    // SAFETY: the caller's contract.
    unsafe { (*batch).n_rows as usize }
}

fn extent(t: &TensorRef, d: usize) -> usize {
    t.shape[d].max(0) as usize
}

/// An f32 or i32 output with one item a row.
fn by_row(
    name: &'static str,
    kind: Kind,
    rows: usize,
    data: *mut u8,
    inner: &[(&'static str, usize)],
) -> Place {
    let item_bytes = 4 * inner.iter().map(|(_, n)| n).product::<usize>();
    let items = (0..rows).map(|row| (row, data.wrapping_add(row * item_bytes))).collect();
    Place { name, kind, axis: "row", inner: inner.to_vec(), item_bytes, items }
}

fn entries(axis: &'static str, pool: &PoolRef, slots: &[i32]) -> Place {
    let item_bytes = extent(&pool.bytes, 1);
    let base: *mut u8 = pool.bytes.data.cast();
    let used = slots.iter().enumerate().filter(|(_, slot)| **slot >= 0);
    let items = used.map(|(i, slot)| (i, base.wrapping_add(*slot as usize * item_bytes))).collect();
    Place {
        name: "pool",
        kind: Kind::Entry { layout: pool.layout },
        axis,
        inner: Vec::new(),
        item_bytes,
        items,
    }
}

/// The outputs of a call, in a fixed order that depends on the op alone. A score tap that was not asked for is none.
///
/// # Safety
/// The arguments are as the contract says.
pub unsafe fn places(args: Args<'_>) -> Vec<Place> {
    // SAFETY: the caller's contract, here and below.
    let n = unsafe { rows(args.batch()) };
    let f32s = |name, t: &TensorRef, inner: &[(&'static str, usize)]| {
        by_row(name, Kind::F32, n, t.data.cast(), inner)
    };
    match args {
        Args::Store(a) => {
            // SAFETY: the caller's contract.
            vec![entries("row", &a.pool, unsafe { slice(a.out_slots, n) })]
        }
        Args::Compress(a) => {
            // SAFETY: the caller's contract.
            let (slots, dst) = unsafe { (slice(a.out_slots, a.n_entries as usize), slice(a.state_dst, n)) };
            let width = extent(&a.state, 1);
            let base: *mut u8 = a.state.data.cast();
            let kept = dst.iter().enumerate().filter(|(_, row)| **row >= 0);
            let state = Place {
                name: "state",
                kind: Kind::F32,
                axis: "row",
                inner: vec![("channel", width)],
                item_bytes: 4 * width,
                items: kept.map(|(i, row)| (i, base.wrapping_add(*row as usize * 4 * width))).collect(),
            };
            vec![entries("entry", &a.pool, slots), state]
        }
        Args::Core(a) => {
            let inner = [("head", extent(&a.out, 1)), ("channel", extent(&a.out, 2))];
            vec![f32s("out", &a.out, &inner)]
        }
        Args::Select(a) => {
            let ids = by_row("ids", Kind::I32, n, a.ids.cast(), &[("rank", a.topk as usize)]);
            let width = a.scores_width as usize;
            let tap = || by_row("scores", Kind::F32, n, a.scores.cast(), &[("entry", width)]);
            if a.scores.is_null() { vec![ids] } else { vec![ids, tap()] }
        }
        Args::Route(a) => {
            let rank = [("rank", a.topk as usize)];
            vec![
                by_row("ids", Kind::I32, n, a.ids.cast(), &rank),
                by_row("weights", Kind::F32, n, a.weights.cast(), &rank),
            ]
        }
        Args::Experts(a) => vec![f32s("out", &a.out, &[("channel", extent(&a.out, 1))])],
        Args::Pre(a) => {
            let hc = extent(&a.post, 1);
            vec![
                f32s("x", &a.x, &[("channel", extent(&a.x, 1))]),
                f32s("post", &a.post, &[("stream", hc)]),
                f32s("comb", &a.comb, &[("from", hc), ("to", hc)]),
            ]
        }
        Args::Post(a) => {
            vec![f32s("out", &a.out, &[("stream", extent(&a.out, 1)), ("channel", extent(&a.out, 2))])]
        }
        Args::Head(a) => vec![f32s("x", &a.x, &[("channel", extent(&a.x, 1))])],
    }
}
