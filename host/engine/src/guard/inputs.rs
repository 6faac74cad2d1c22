//! What a call reads: activations, index lists, pages, and small f32 weights. Large weights are left out; they lie in
//! mapped files.

use crate::observe::{Args, Entry, Kind, Memory, Place, rows};
use hotseam_abi::{Batch, PoolRef, RopeTables, TensorRef, dtype};
use hotseam_cuda::CudaError;
use std::collections::BTreeSet;

/// Weights up to this many bytes are watched.
const WATCHED: usize = 64 << 10;

/// The inputs of a call.
///
/// # Errors
/// If the device failed.
///
/// # Safety
/// The arguments are as the contract says, in `memory`.
pub(super) unsafe fn inputs(args: Args<'_>, memory: Memory) -> Result<Vec<Place>, CudaError> {
    let mut list = List(Vec::new());
    // SAFETY: the caller's contract, here and below.
    let batch = unsafe { &*args.batch() };
    // SAFETY: as above.
    let n = unsafe { rows(args.batch()) };
    // SAFETY: as above.
    let positions = unsafe { memory.read(batch.positions, n)? };
    list.words("positions", batch.positions, n, 1);
    list.words("row_seq", batch.row_seq, n, 1);
    match args {
        Args::Store(a) => {
            list.values("kv", &a.kv);
            list.weights(&[("norm_weight", &a.norm_weight)]);
            list.words("out_slots", a.out_slots, n, 1);
        }
        Args::Compress(a) => {
            list.values("kv", &a.kv);
            list.values("gate", &a.gate);
            list.weights(&[("ape", &a.ape), ("norm_weight", &a.norm_weight)]);
            let (entries, width) = (a.n_entries as usize, (a.ratio * (1 + a.overlap)) as usize);
            list.words("sources", a.sources, entries, width);
            list.words("entry_positions", a.entry_positions, entries, 1);
            list.words("out_slots", a.out_slots, entries, 1);
            list.words("state_dst", a.state_dst, n, 1);
            // SAFETY: as above.
            list.states("state", &a.state, &unsafe { memory.read(a.sources, entries * width)? });
        }
        Args::Core(a) => {
            list.values("q", &a.q);
            list.weights(&[("sinks", &a.sinks)]);
            list.rope(&a.rope, &positions);
            list.words("ids", a.ids, n, a.ids_width as usize);
            // SAFETY: as above.
            unsafe { list.pages("swa", &a.swa, batch, memory)? };
            if a.ratio > 0 {
                // SAFETY: as above.
                unsafe { list.pages("entries", &a.entries, batch, memory)? };
            }
        }
        Args::Select(a) => {
            list.values("q_lora", &a.q_lora);
            list.values("x", &a.x);
            list.rope(&a.rope, &positions);
            // SAFETY: as above.
            unsafe { list.pages("keys", &a.keys, batch, memory)? };
        }
        Args::Route(a) => {
            list.values("x", &a.x);
            list.weights(&[("bias", &a.bias)]);
            list.words("input_ids", a.input_ids, n, 1);
        }
        Args::Experts(a) => {
            list.values("x", &a.x);
            list.words("ids", a.ids, n, a.topk as usize);
            let weights = a.weights.cast_mut().cast();
            list.push("weights", Kind::F32, weights, n, &[("rank", a.topk as usize)]);
        }
        Args::Pre(a) => {
            list.values("streams", &a.streams);
            let next = ("next_norm", &a.next_norm);
            list.weights(&[("fn_weight", &a.fn_weight), ("base", &a.base), ("scale", &a.scale), next]);
        }
        Args::Post(a) => {
            for (name, t) in [("f", &a.f), ("streams", &a.streams), ("post", &a.post), ("comb", &a.comb)] {
                list.values(name, t);
            }
        }
        Args::Head(a) => {
            list.values("streams", &a.streams);
            list.weights(&[("fn_weight", &a.fn_weight), ("base", &a.base), ("scale", &a.scale)]);
        }
    }
    Ok(list.0)
}

/// A place of items that lie each in one piece.
fn whole(
    name: &'static str,
    kind: Kind,
    axis: &'static str,
    inner: Vec<(&'static str, usize)>,
    item_bytes: usize,
    items: Vec<(usize, *mut u8)>,
) -> Place {
    Place { name, kind, axis, inner, item_bytes, items, apart_bytes: 0, apart: Vec::new() }
}

struct List(Vec<Place>);

impl List {
    fn push(
        &mut self,
        name: &'static str,
        kind: Kind,
        data: *mut u8,
        rows: usize,
        inner: &[(&'static str, usize)],
    ) {
        let item_bytes = 4 * inner.iter().map(|(_, n)| n).product::<usize>();
        if data.is_null() || rows * item_bytes == 0 {
            return;
        }
        let items = (0..rows).map(|row| (row, data.wrapping_add(row * item_bytes))).collect();
        self.0.push(whole(name, kind, "row", inner.to_vec(), item_bytes, items));
    }

    fn words(&mut self, name: &'static str, data: *const i32, rows: usize, width: usize) {
        self.push(name, Kind::I32, data.cast_mut().cast(), rows, &[("place", width)]);
    }

    /// An f32 tensor with rows.
    fn values(&mut self, name: &'static str, t: &TensorRef) {
        let extent = |d: usize| t.shape[d].max(0) as usize;
        let names: &[&'static str] = match (name, t.ndim) {
            ("q", _) => &["head", "channel"],
            ("streams", _) => &["stream", "channel"],
            ("comb", _) => &["from", "to"],
            ("post", _) => &["stream"],
            _ => &["channel"],
        };
        let inner: Vec<_> = names.iter().enumerate().map(|(i, name)| (*name, extent(i + 1))).collect();
        self.push(name, Kind::F32, t.data.cast(), extent(0), &inner);
    }

    /// Small f32 weights.
    fn weights(&mut self, tensors: &[(&'static str, &TensorRef)]) {
        for (name, t) in tensors {
            let rows = t.shape[0].max(0) as usize;
            let width = (1..t.ndim.min(4) as usize).map(|d| t.shape[d].max(0) as usize).product();
            if t.dtype == dtype::F32 && 4 * rows * width <= WATCHED {
                self.push(name, Kind::F32, t.data.cast(), rows, &[("channel", width)]);
            }
        }
    }

    /// Rows of the tables at the positions of the batch.
    fn rope(&mut self, rope: &RopeTables, positions: &[i32]) {
        for (name, t) in [("cos", &rope.cos), ("sin", &rope.sin)] {
            let width = t.shape[1].max(0) as usize;
            let base: *mut u8 = t.data.cast();
            let known = positions.iter().filter(|p| **p >= 0 && i64::from(**p) < t.shape[0]);
            let items = known.map(|p| (*p as usize, base.wrapping_add(*p as usize * width * 4))).collect();
            let inner = vec![("channel", width)];
            self.0.push(whole(name, Kind::F32, "position", inner, width * 4, items));
        }
    }

    /// State rows that are read.
    fn states(&mut self, name: &'static str, state: &TensorRef, sources: &[i32]) {
        let width = state.shape[1].max(0) as usize;
        let base: *mut u8 = state.data.cast();
        let read: BTreeSet<usize> =
            sources.iter().filter(|s| **s <= -2).map(|s| -(s + 2)).map(|row| row as usize).collect();
        let items = read.into_iter().map(|row| (row, base.wrapping_add(row * width * 4))).collect();
        let inner = vec![("channel", width)];
        self.0.push(whole(name, Kind::F32, "state row", inner, width * 4, items));
    }

    /// Pages of the batch's sequences.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Safety
    /// The arguments are as the contract says, in `memory`.
    unsafe fn pages(
        &mut self,
        name: &'static str,
        pool: &PoolRef,
        batch: &Batch,
        memory: Memory,
    ) -> Result<(), CudaError> {
        let (seqs, width) = (batch.n_seqs as usize, pool.table_width as usize);
        // SAFETY: the caller's contract.
        let table = unsafe { memory.read(pool.table, seqs * width)? };
        let item_bytes = pool.bytes.shape[1].max(0) as usize;
        let base: *mut u8 = pool.bytes.data.cast();
        let used: BTreeSet<usize> = table.iter().filter(|p| **p >= 0).map(|p| *p as usize).collect();
        let items = used.into_iter().map(|page| (page, base.wrapping_add(page * item_bytes))).collect();
        self.0.push(whole(name, Kind::Entry(Entry::of(pool)), "page", Vec::new(), item_bytes, items));
        Ok(())
    }
}
