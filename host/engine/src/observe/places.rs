//! Where a call writes: one description for every op, used to read, copy, poison and replace outputs.

use super::memory::Memory;
use hotseam_abi::{Batch, PoolRef, TensorRef};
use hotseam_cuda::CudaError;
use hotseam_slots::Args;

/// What an output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// f32 values.
    F32,
    /// i32 numbers: entries or experts.
    I32,
    /// Bytes of pool entries: their data part, then their scale part.
    Entry(Entry),
}

/// What the bytes of a pool entry mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// One of [`hotseam_abi::layout`].
    pub layout: u32,
    /// Values of an entry.
    pub dim: usize,
    /// How many of them are roped.
    pub rope_dim: usize,
    /// Bytes of the data part.
    pub data_bytes: usize,
    /// Bytes of the scale part.
    pub scale_bytes: usize,
}

impl Entry {
    /// What the entries of a pool are.
    pub fn of(pool: &PoolRef) -> Self {
        Self {
            layout: pool.layout,
            dim: pool.dim as usize,
            rope_dim: pool.rope_dim as usize,
            data_bytes: pool.data_bytes as usize,
            scale_bytes: pool.scale_bytes as usize,
        }
    }
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
    /// Bytes of an item that lie apart from the others, at the end of `item_bytes`.
    pub apart_bytes: usize,
    /// Where these are, for each item; empty if there are none.
    pub apart: Vec<*mut u8>,
}

impl Place {
    /// The pieces of all items: first byte and length, in the order of the gathered bytes.
    fn pieces(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let whole = self.item_bytes - self.apart_bytes;
        self.items.iter().enumerate().flat_map(move |(i, (_, data))| {
            let apart = self.apart.get(i).map(|apart| (*apart, self.apart_bytes));
            std::iter::once((*data, whole)).chain(apart)
        })
    }

    /// The same, neighbours together.
    fn stretches(&self) -> Vec<(*mut u8, usize)> {
        let mut all: Vec<(*mut u8, usize)> = Vec::new();
        for (data, n) in self.pieces() {
            match all.last_mut() {
                Some((before, length)) if before.addr() + *length == data.addr() => *length += n,
                _ => all.push((data, n)),
            }
        }
        all
    }

    /// All items, one after another.
    ///
    /// # Errors
    /// If the device failed, under this or under what was enqueued before.
    ///
    /// # Safety
    /// The items are in `memory`, the call's arguments are still valid, and nothing but the call's stream writes the items.
    pub unsafe fn gather(&self, memory: Memory) -> Result<Vec<u8>, CudaError> {
        let mut bytes = Vec::with_capacity(self.items.len() * self.item_bytes);
        for (data, n) in self.stretches() {
            // SAFETY: the caller's contract.
            bytes.extend(unsafe { memory.read(data.cast_const(), n)? });
        }
        Ok(bytes)
    }

    /// The ranges of the items in memory that begins at address `base`.
    pub(crate) fn ranges(&self, base: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        self.pieces().map(move |(data, n)| data.addr() - base..data.addr() - base + n)
    }

    /// Overwrites all items, from the bytes that [`Place::gather`] of an equal place gave.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Safety
    /// As [`Place::gather`], and nothing but the call's stream touches the items.
    ///
    /// # Panics
    /// If the number of bytes is another.
    pub unsafe fn scatter(&self, memory: Memory, bytes: &[u8]) -> Result<(), CudaError> {
        assert_eq!(bytes.len(), self.items.len() * self.item_bytes, "{}", self.name);
        let mut rest = bytes;
        for (to, n) in self.stretches() {
            let (from, after) = rest.split_at(n);
            // SAFETY: the caller's contract.
            unsafe { memory.write(to, from)? };
            rest = after;
        }
        Ok(())
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
    let inner = inner.to_vec();
    Place { name, kind, axis: "row", inner, item_bytes, items, apart_bytes: 0, apart: Vec::new() }
}

fn entries(axis: &'static str, pool: &PoolRef, slots: &[i32]) -> Place {
    let entry = Entry::of(pool);
    let (per_page, page_bytes) = ((pool.entries_per_page as usize).max(1), extent(&pool.bytes, 1));
    let base: *mut u8 = pool.bytes.data.cast();
    let page = |slot: usize| base.wrapping_add(slot / per_page * page_bytes);
    let data = |slot: usize| page(slot).wrapping_add(slot % per_page * entry.data_bytes);
    let scale = |slot: usize| {
        page(slot).wrapping_add(per_page * entry.data_bytes + slot % per_page * entry.scale_bytes)
    };
    let used = || slots.iter().enumerate().filter(|(_, slot)| **slot >= 0).map(|(i, s)| (i, *s as usize));
    Place {
        name: "pool",
        kind: Kind::Entry(entry),
        axis,
        inner: Vec::new(),
        item_bytes: entry.data_bytes + entry.scale_bytes,
        items: used().map(|(i, slot)| (i, data(slot))).collect(),
        apart_bytes: entry.scale_bytes,
        apart: match entry.scale_bytes {
            0 => Vec::new(),
            _ => used().map(|(_, slot)| scale(slot)).collect(),
        },
    }
}

/// The outputs of a call, in a fixed order that depends on the op alone. A score tap that was not asked for is none.
///
/// # Errors
/// If the device failed.
///
/// # Safety
/// The arguments are as the contract says, in `memory`.
pub unsafe fn places(args: Args<'_>, memory: Memory) -> Result<Vec<Place>, CudaError> {
    // SAFETY: the caller's contract, here and below.
    let n = unsafe { rows(args.batch()) };
    let f32s = |name, t: &TensorRef, inner: &[(&'static str, usize)]| {
        by_row(name, Kind::F32, n, t.data.cast(), inner)
    };
    Ok(match args {
        Args::Store(a) => {
            // SAFETY: the caller's contract.
            vec![entries("row", &a.pool, &unsafe { memory.read(a.out_slots, n)? })]
        }
        Args::Compress(a) => {
            // SAFETY: the caller's contract.
            let (slots, dst) =
                unsafe { (memory.read(a.out_slots, a.n_entries as usize)?, memory.read(a.state_dst, n)?) };
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
                apart_bytes: 0,
                apart: Vec::new(),
            };
            vec![entries("entry", &a.pool, &slots), state]
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
    })
}
