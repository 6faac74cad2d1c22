//! A call into named tensors.

use std::ops::Range;

use hotseam_abi::{Batch, ExpertRef, PoolRef, RopeTables, TensorRef, WeightRef, dtype};
use serde_json::{Map, Value};

use super::error::{CaptureError, field};
use super::fields::{F32, Fields};

type Result<T = ()> = std::result::Result<T, CaptureError>;

/// A stored tensor.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) name: String,
    /// One of [`dtype`].
    pub(super) dtype: u32,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

/// Collects the fields of one call.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) numbers: Map<String, Value>,
    pub(super) tensors: Vec<Stored>,
}

pub(super) fn element_bytes(kind: u32) -> usize {
    match kind {
        dtype::U8 | dtype::E4M3 | dtype::E8M0 => 1,
        dtype::BF16 => 2,
        dtype::I64 => 8,
        _ => 4,
    }
}

/// Bytes at `p`, which may be null if there are none.
///
/// # Safety
/// `p` is valid for `n` bytes.
unsafe fn bytes<'a, T>(p: *const T, n: usize) -> &'a [u8] {
    match n == 0 || p.is_null() {
        true => &[],
        // SAFETY: the caller's contract.
        false => unsafe { std::slice::from_raw_parts(p.cast(), n) },
    }
}

impl Writer {
    pub(super) fn push(&mut self, name: &str, dtype: u32, shape: &[usize], data: &[u8]) {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push(Stored { name, dtype, shape, bytes: data.to_vec() });
    }

    fn words<T>(&mut self, name: &str, dtype: u32, p: *const T, len: usize) {
        // SAFETY: the arguments of a call that is looked at, whose tables have this length.
        let data = unsafe { bytes(p, 4 * len) };
        self.push(name, dtype, &[len], data);
    }

    fn number_of(&mut self, name: &str, value: usize) {
        self.numbers.insert(name.to_owned(), value.into());
    }

    /// What the entries of a pool are.
    fn entries_of(&mut self, name: &str, pool: &PoolRef) {
        for (field, value) in [
            ("layout", pool.layout),
            ("entries_per_page", pool.entries_per_page.max(1)),
            ("dim", pool.dim),
            ("rope_dim", pool.rope_dim),
            ("data_bytes", pool.data_bytes),
            ("scale_bytes", pool.scale_bytes),
        ] {
            self.number_of(&format!("{name}.{field}"), value as usize);
        }
    }
}

impl Fields for Writer {
    fn number(&mut self, name: &str, value: &mut u32) -> Result {
        self.number_of(name, *value as usize);
        Ok(())
    }

    fn float(&mut self, name: &str, value: &mut f32) -> Result {
        // As text: JSON has no infinity, and text keeps every bit of a number.
        self.numbers.insert(name.to_owned(), value.to_string().into());
        Ok(())
    }

    fn batch(&mut self, batch: &mut *const Batch) -> Result {
        // SAFETY: the arguments of a call that is looked at.
        let b = unsafe { &**batch };
        let (rows, seqs) = (b.n_rows as usize, b.n_seqs as usize);
        self.words("batch.positions", dtype::I32, b.positions, rows);
        self.words("batch.row_seq", dtype::I32, b.row_seq, rows);
        // SAFETY: as above; a span is four words.
        let spans = unsafe { bytes(b.seqs, seqs * size_of::<hotseam_abi::SeqSpan>()) };
        self.push("batch.seqs", dtype::I32, &[seqs, 4], spans);
        Ok(())
    }

    fn tensor(&mut self, name: &str, t: &mut TensorRef, _dtypes: &[u32], shape: &[usize]) -> Result {
        let shape: Vec<usize> = (0..shape.len()).map(|d| t.shape[d].max(0) as usize).collect();
        let n = shape.iter().product::<usize>() * element_bytes(t.dtype);
        // SAFETY: the arguments of a call that is looked at; its tensors are contiguous.
        let data = unsafe { bytes(t.data.cast_const(), n) };
        self.push(name, t.dtype, &shape, data);
        Ok(())
    }

    fn weight(&mut self, name: &str, w: &mut WeightRef, shape: [usize; 2]) -> Result {
        self.number_of(&format!("{name}.format"), w.format as usize);
        self.float(&format!("{name}.global_scale"), &mut w.global_scale)?;
        self.tensor(name, &mut w.data, &[], &shape)?;
        self.optional(&format!("{name}.scales"), &mut w.scales, &[], &[0, 0])
    }

    fn optional(&mut self, name: &str, t: &mut TensorRef, dtypes: &[u32], shape: &[usize]) -> Result {
        if t.data.is_null() { Ok(()) } else { self.tensor(name, t, dtypes, shape) }
    }

    fn table(&mut self, name: &str, p: &mut *const i32, len: usize) -> Result {
        self.words(name, dtype::I32, *p, len);
        Ok(())
    }

    fn optional_table(&mut self, name: &str, p: &mut *const i32, len: usize) -> Result {
        if p.is_null() { Ok(()) } else { self.table(name, p, len) }
    }

    fn floats(&mut self, name: &str, p: &mut *const f32, len: usize) -> Result {
        self.words(name, dtype::F32, *p, len);
        Ok(())
    }

    fn rope(&mut self, rope: &mut RopeTables, positions: usize) -> Result {
        for (name, t) in [("rope.cos", &mut rope.cos), ("rope.sin", &mut rope.sin)] {
            let mut used = *t;
            used.shape[0] = used.shape[0].min(positions as i64);
            self.tensor(name, &mut used, F32, &[0, 0])?;
        }
        Ok(())
    }

    fn pool(&mut self, name: &str, pool: &mut PoolRef, needed: &[Range<usize>]) -> Result {
        let (per_page, width) = (pool.entries_per_page.max(1) as usize, pool.table_width as usize);
        // SAFETY: the arguments of a call that is looked at.
        let table = unsafe { bytes(pool.table, 4 * needed.len() * width) };
        let page_of = |seq: usize, i: usize| {
            let at = 4 * (seq * width + i);
            i32::from_ne_bytes([table[at], table[at + 1], table[at + 2], table[at + 3]])
        };
        let mut pages = Vec::new();
        let mut own = vec![-1i32; needed.len() * width];
        for (seq, entries) in needed.iter().enumerate().filter(|(_, entries)| !entries.is_empty()) {
            for i in entries.start / per_page..entries.end.div_ceil(per_page) {
                let page = if i < width { page_of(seq, i) } else { -1 };
                if page < 0 {
                    let found = format!("has no page for entry {} of sequence {seq}", i * per_page);
                    return Err(field(name, "a mapped page", found));
                }
                own[seq * width + i] = pages.len() as i32;
                pages.push(page as usize);
            }
        }
        let size = pool.bytes.shape[1].max(0) as usize;
        let mut data = Vec::with_capacity(pages.len() * size);
        for page in &pages {
            // SAFETY: as above; the page is one of the pool.
            data.extend_from_slice(unsafe {
                bytes(pool.bytes.data.cast::<u8>().cast_const().add(page * size), size)
            });
        }
        self.push(&format!("{name}.bytes"), dtype::U8, &[pages.len(), size], &data);
        self.words(&format!("{name}.table"), dtype::I32, own.as_ptr(), own.len());
        self.number_of(&format!("{name}.table_width"), width);
        self.entries_of(name, pool);
        Ok(())
    }

    fn written(&mut self, name: &str, pool: &mut PoolRef) -> Result {
        self.number_of(&format!("{name}.pages"), pool.bytes.shape[0].max(0) as usize);
        self.number_of(&format!("{name}.page_bytes"), pool.bytes.shape[1].max(0) as usize);
        self.entries_of(name, pool);
        Ok(())
    }

    fn experts(&mut self, experts: &mut *const ExpertRef, count: usize, ids: &[i32]) -> Result {
        let mut used: Vec<usize> = ids.iter().filter_map(|id| usize::try_from(*id).ok()).collect();
        used.sort_unstable();
        used.dedup();
        for id in used.into_iter().filter(|id| *id < count) {
            // SAFETY: the arguments of a call that is looked at; the number is one of its experts.
            let mut expert = unsafe { *experts.add(id) };
            for (part, w) in [("w1", &mut expert.w1), ("w2", &mut expert.w2), ("w3", &mut expert.w3)] {
                self.weight(&format!("experts.{id}.{part}"), w, [0, 0])?;
            }
        }
        Ok(())
    }

    fn out(&mut self, _t: &mut TensorRef, _shape: &[usize]) -> Result {
        Ok(())
    }

    fn words<T>(&mut self, _p: &mut *mut T, _rows: usize, _width: usize) -> Result {
        Ok(())
    }
}
