//! Named tensors into a call. Everything comes from a file that nobody vouches for, so every size and index is checked
//! before a pointer to it exists.

use std::collections::BTreeMap;
use std::ops::Range;

use hotseam_abi::{
    Batch, ExpertRef, PoolRef, RopeTables, SeqSpan, TensorRef, WeightRef, device, dtype, weight_format,
};
use hotseam_engine::observe::Block;
use safetensors::Dtype;
use serde_json::{Map, Value};

use super::error::{CaptureError, field};
use super::fields::{F32, Fields, inputs};
use super::write::{Stored, element_bytes};

type Result<T = ()> = std::result::Result<T, CaptureError>;

/// Outputs and written pools of a call larger than this are no call of this engine.
const MOST_OUTPUT: usize = 1 << 28;
/// Experts of a layer, at most.
const MOST_EXPERTS: usize = 1 << 16;

/// A matrix that is not there yet.
const NO_WEIGHT: WeightRef = WeightRef::plain(weight_format::F32, TensorRef::NONE);

/// Rebuilds the arguments; owns the memory that they point to.
pub(super) struct Reader<'a> {
    file: &'a [Stored],
    numbers: &'a Map<String, Value>,
    blocks: Vec<Block>,
    batch: Option<Box<Batch>>,
    experts: Vec<ExpertRef>,
    outputs: usize,
    rows: usize,
}

/// What the arguments point to.
#[derive(Debug)]
pub(super) struct Memory {
    _blocks: Vec<Block>,
    _batch: Option<Box<Batch>>,
    _experts: Vec<ExpertRef>,
}

pub(super) fn number_of(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::F32 => Some(dtype::F32),
        Dtype::BF16 => Some(dtype::BF16),
        Dtype::I32 => Some(dtype::I32),
        Dtype::U8 => Some(dtype::U8),
        Dtype::F8_E4M3 => Some(dtype::E4M3),
        Dtype::F8_E8M0 => Some(dtype::E8M0),
        _ => None,
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a [Stored], numbers: &'a Map<String, Value>) -> Self {
        Self { file, numbers, blocks: Vec::new(), batch: None, experts: Vec::new(), outputs: 0, rows: 0 }
    }

    pub(super) fn into_memory(self) -> Memory {
        Memory { _blocks: self.blocks, _batch: self.batch, _experts: self.experts }
    }

    fn view(&self, name: &str) -> Result<&'a Stored> {
        let found = self.file.iter().find(|t| t.name == name);
        found.ok_or_else(|| field(name, "a tensor of that name", "is not in the file"))
    }

    fn has(&self, name: &str) -> bool {
        self.file.iter().any(|t| t.name == name)
    }

    fn keep(&mut self, bytes: &[u8]) -> *mut u8 {
        self.push(Block::copy_of(bytes))
    }

    fn push(&mut self, mut block: Block) -> *mut u8 {
        let data = block.ptr();
        self.blocks.push(block);
        data
    }

    fn size(&self, name: &str) -> Result<usize> {
        let value = self.numbers.get(name).and_then(Value::as_u64);
        match value.and_then(|v| u32::try_from(v).ok()) {
            Some(v) => Ok(v as usize),
            None => Err(field(name, "a number below 2^32", absent(self.numbers.get(name)))),
        }
    }

    /// Data of a tensor of one of these types and this shape, 0 for any extent.
    fn checked(&mut self, name: &str, dtypes: &[u32], shape: &[usize]) -> Result<TensorRef> {
        let view = self.view(name)?;
        let bytes = view.shape.iter().try_fold(element_bytes(view.dtype), |n, d| n.checked_mul(*d));
        let fits = view.shape.len() == shape.len()
            && view.shape.iter().zip(shape).all(|(have, want)| *want == 0 || have == want)
            && bytes == Some(view.bytes.len());
        if !fits || !dtypes.contains(&view.dtype) {
            let want: Vec<String> =
                shape.iter().map(|n| if *n == 0 { "any".into() } else { n.to_string() }).collect();
            let expected = format!("dtype {dtypes:?} and shape [{}]", want.join(", "));
            return Err(field(name, expected, format!("is dtype {} of {:?}", view.dtype, view.shape)));
        }
        let data = self.keep(&view.bytes);
        Ok(describe(data, view.dtype, &view.shape))
    }

    fn i32s(&mut self, name: &str, len: usize) -> Result<*const i32> {
        let t = self.checked(name, &[dtype::I32], &[len.max(1)]).or_else(|error| match len {
            // A table without entries has no extent to ask for.
            0 => self.checked(name, &[dtype::I32], &[0]),
            _ => Err(error),
        })?;
        match t.shape[0] as usize == len {
            true => Ok(t.data.cast_const().cast()),
            false => Err(field(name, format!("{len} values"), format!("has {}", t.shape[0]))),
        }
    }

    /// Room for `words` 4-byte words of output.
    fn room(&mut self, words: Option<usize>) -> Result<*mut u8> {
        let bytes =
            words.and_then(|n| n.checked_mul(4)).filter(|n| self.outputs.saturating_add(*n) <= MOST_OUTPUT);
        let Some(bytes) = bytes else {
            let expected = format!("outputs of at most {MOST_OUTPUT} bytes together");
            return Err(field("outputs", expected, "have more"));
        };
        self.outputs += bytes;
        Ok(self.push(Block::poisoned(bytes)))
    }

    /// A pool in `bytes` with the entries that the file says it has. Whether they fit is for the view to say.
    fn entries_of(&self, name: &str, bytes: TensorRef) -> Result<PoolRef> {
        let number = |field: &str| self.size(&format!("{name}.{field}")).map(|n| n as u32);
        let entries_per_page = number("entries_per_page")?;
        if entries_per_page == 0 {
            return Err(field(&format!("{name}.entries_per_page"), "at least 1", "is 0"));
        }
        Ok(PoolRef {
            bytes,
            layout: number("layout")?,
            entries_per_page,
            dim: number("dim")?,
            rope_dim: number("rope_dim")?,
            data_bytes: number("data_bytes")?,
            scale_bytes: number("scale_bytes")?,
            table: std::ptr::null(),
            table_width: 0,
        })
    }
}

fn absent(value: Option<&Value>) -> String {
    value.map_or("is not in the file".into(), |v| format!("is {v}"))
}

fn describe(data: *mut u8, kind: u32, shape: &[usize]) -> TensorRef {
    let mut t = TensorRef {
        data: data.cast(),
        shape: [1; 4],
        strides: [1; 4],
        dtype: kind,
        ndim: shape.len() as u32,
        device: device::CPU,
        device_id: 0,
    };
    let mut stride = 1i64;
    for d in (0..shape.len()).rev() {
        t.shape[d] = shape[d] as i64;
        t.strides[d] = stride;
        stride = stride.saturating_mul(shape[d] as i64);
    }
    t
}

fn slice<'a, T>(p: *const T, n: usize) -> &'a [T] {
    match n {
        0 => &[],
        // SAFETY: the reader copied this many values there, and keeps them.
        _ => unsafe { std::slice::from_raw_parts(p, n) },
    }
}

impl Fields for Reader<'_> {
    fn number(&mut self, name: &str, value: &mut u32) -> Result {
        *value = self.size(name)? as u32;
        Ok(())
    }

    fn float(&mut self, name: &str, value: &mut f32) -> Result {
        let given = self.numbers.get(name);
        *value = given
            .and_then(Value::as_str)
            .and_then(|text| text.parse().ok())
            .filter(|v: &f32| !v.is_nan())
            .ok_or_else(|| field(name, "a number as text", absent(given)))?;
        Ok(())
    }

    fn batch(&mut self, batch: &mut *const Batch) -> Result {
        let rows = self.view("batch.positions")?.shape.iter().product::<usize>();
        let positions = self.i32s("batch.positions", rows)?;
        let row_seq = self.i32s("batch.row_seq", rows)?;
        let seqs = self.checked("batch.seqs", &[dtype::I32], &[0, 4])?;
        let n_seqs = seqs.shape[0] as usize;
        let spans: &[SeqSpan] = slice(seqs.data.cast_const().cast(), n_seqs);
        let mut covered = vec![false; rows];
        for (s, span) in spans.iter().enumerate() {
            let (begin, count) = (span.row_begin as usize, span.row_count as usize);
            let inside = count >= 1 && begin.checked_add(count).is_some_and(|end| end <= rows);
            if !inside || (span.position as usize).saturating_add(count) > i32::MAX as usize {
                let expected = format!("spans inside the {rows} rows");
                return Err(field("batch.seqs", expected, format!("has {span:?}")));
            }
            for i in 0..count {
                let (row, position) = (begin + i, (span.position as usize + i) as i32);
                let (p, owner) = (slice(positions, rows)[row], slice(row_seq, rows)[row]);
                if p != position || owner != s as i32 || covered[row] {
                    let found = format!("has row {row} at {p} of sequence {owner}");
                    return Err(field(
                        "batch.positions",
                        format!("position {position} of sequence {s}"),
                        found,
                    ));
                }
                covered[row] = true;
            }
        }
        let stray = (0..rows).find(|row| !covered[*row] && slice(positions, rows)[*row] != -1);
        if let Some(row) = stray {
            return Err(field(
                "batch.positions",
                "-1 for rows of no sequence",
                format!("has row {row} in none"),
            ));
        }
        let (Ok(n_rows), Ok(n_seqs)) = (u32::try_from(rows), u32::try_from(n_seqs)) else {
            return Err(field("batch.positions", "below 2^32 rows", format!("has {rows}")));
        };
        self.rows = rows;
        let owned = Batch {
            size: size_of::<Batch>() as u32,
            n_rows,
            n_seqs,
            positions,
            row_seq,
            seqs: seqs.data.cast_const().cast(),
        };
        *batch = &raw const **self.batch.insert(Box::new(owned));
        Ok(())
    }

    fn tensor(&mut self, name: &str, t: &mut TensorRef, dtypes: &[u32], shape: &[usize]) -> Result {
        *t = self.checked(name, dtypes, shape)?;
        // A wanted extent of 0 asks for anything, so that nothing is asked for again where rows or widths are 0.
        Ok(())
    }

    fn weight(&mut self, name: &str, w: &mut WeightRef, [n, k]: [usize; 2]) -> Result {
        let format = self.size(&format!("{name}.format"))? as u32;
        let mut global_scale = 0.0;
        self.float(&format!("{name}.global_scale"), &mut global_scale)?;
        let kind = match format {
            weight_format::F32 => dtype::F32,
            weight_format::BF16 => dtype::BF16,
            weight_format::FP8_BLOCK => dtype::E4M3,
            weight_format::MXFP4 | weight_format::NVFP4 => dtype::U8,
            other => {
                let expected = "a weight format of this build";
                return Err(field(&format!("{name}.format"), expected, format!("is {other}")));
            }
        };
        let wide = if kind == dtype::U8 { k.div_ceil(2) } else { k };
        let data = self.checked(name, &[kind], &[n, wide])?;
        *w = WeightRef { format, global_scale, data, scales: TensorRef::NONE };
        let (n, k) = (data.shape[0] as usize, inputs(w));
        let scales = match format {
            weight_format::FP8_BLOCK => (dtype::E8M0, [n.div_ceil(128), k.div_ceil(128)]),
            weight_format::MXFP4 => (dtype::E8M0, [n, k / 32]),
            weight_format::NVFP4 => (dtype::E4M3, [n, k / 16]),
            _ => return Ok(()),
        };
        w.scales = self.checked(&format!("{name}.scales"), &[scales.0], &scales.1)?;
        Ok(())
    }

    fn optional(&mut self, name: &str, t: &mut TensorRef, dtypes: &[u32], shape: &[usize]) -> Result {
        *t = TensorRef::NONE;
        if self.has(name) { self.tensor(name, t, dtypes, shape) } else { Ok(()) }
    }

    fn table(&mut self, name: &str, p: &mut *const i32, len: usize) -> Result {
        *p = self.i32s(name, len)?;
        Ok(())
    }

    fn optional_table(&mut self, name: &str, p: &mut *const i32, len: usize) -> Result {
        *p = std::ptr::null();
        if self.has(name) { self.table(name, p, len) } else { Ok(()) }
    }

    fn floats(&mut self, name: &str, p: &mut *const f32, len: usize) -> Result {
        let t = self.checked(name, F32, &[len])?;
        if t.shape[0] as usize != len {
            return Err(field(name, format!("{len} values"), format!("has {}", t.shape[0])));
        }
        *p = t.data.cast_const().cast();
        Ok(())
    }

    fn rope(&mut self, rope: &mut RopeTables, positions: usize) -> Result {
        rope.cos = self.checked("rope.cos", F32, &[0, 0])?;
        let shape = [rope.cos.shape[0] as usize, rope.cos.shape[1] as usize];
        rope.sin = self.checked("rope.sin", F32, &shape)?;
        if shape[0] < positions || rope.sin.shape[..2] != rope.cos.shape[..2] {
            let expected = format!("two equal tables of at least {positions} positions");
            return Err(field(
                "rope.cos",
                expected,
                format!("has {:?}, sin {:?}", shape, &rope.sin.shape[..2]),
            ));
        }
        Ok(())
    }

    fn pool(&mut self, name: &str, pool: &mut PoolRef, needed: &[Range<usize>]) -> Result {
        let width = self.size(&format!("{name}.table_width"))?;
        let bytes = self.checked(&format!("{name}.bytes"), &[dtype::U8], &[0, 0])?;
        let mut read = self.entries_of(name, bytes)?;
        let (pages, per_page) = (bytes.shape[0] as usize, read.entries_per_page as usize);
        let table_name = format!("{name}.table");
        let len = needed.len().saturating_mul(width);
        let table = self.i32s(&table_name, len)?;
        let values = slice(table, len);
        if let Some(bad) = values.iter().find(|page| **page < -1 || i64::from(**page) >= pages as i64) {
            return Err(field(&table_name, format!("pages below {pages}, or -1"), format!("has {bad}")));
        }
        for (seq, entries) in needed.iter().enumerate().filter(|(_, entries)| !entries.is_empty()) {
            let unmapped = (entries.start / per_page..entries.end.div_ceil(per_page))
                .find(|i| *i >= width || values[seq * width + i] < 0);
            if let Some(i) = unmapped {
                let found = format!("has no page for entry {} of sequence {seq}", i * per_page);
                return Err(field(&table_name, "a page for every entry that the rows read", found));
            }
        }
        (read.table, read.table_width) = (table, width as u32);
        *pool = read;
        Ok(())
    }

    fn written(&mut self, name: &str, pool: &mut PoolRef) -> Result {
        let pages = self.size(&format!("{name}.pages"))?;
        let page_bytes = self.size(&format!("{name}.page_bytes"))?;
        let words = pages.checked_mul(page_bytes).map(|n| n.div_ceil(4));
        let data = self.room(words)?;
        *pool = self.entries_of(name, describe(data, dtype::U8, &[pages, page_bytes]))?;
        Ok(())
    }

    fn experts(&mut self, experts: &mut *const ExpertRef, count: usize, ids: &[i32]) -> Result {
        if count > MOST_EXPERTS {
            return Err(field("n_experts", format!("at most {MOST_EXPERTS}"), format!("is {count}")));
        }
        if let Some(bad) = ids.iter().find(|id| **id < -1 || i64::from(**id) >= count as i64) {
            return Err(field("ids", format!("experts below {count}, or -1"), format!("has {bad}")));
        }
        let hidden = self.view("x")?.shape.get(1).copied().unwrap_or(0);
        let mut known: BTreeMap<usize, ExpertRef> = BTreeMap::new();
        let mut inter = 0;
        for id in ids.iter().filter_map(|id| usize::try_from(*id).ok()) {
            if known.contains_key(&id) {
                continue;
            }
            let part = |name: &str| format!("experts.{id}.{name}");
            let mut expert = ExpertRef { w1: NO_WEIGHT, w2: NO_WEIGHT, w3: NO_WEIGHT };
            self.weight(&part("w1"), &mut expert.w1, [inter, hidden])?;
            inter = expert.w1.data.shape[0] as usize;
            self.weight(&part("w3"), &mut expert.w3, [inter, hidden])?;
            self.weight(&part("w2"), &mut expert.w2, [hidden, inter])?;
            let exact = |w: &WeightRef, n: usize, k: usize| w.data.shape[0] == n as i64 && inputs(w) == k;
            let fits = exact(&expert.w1, inter, hidden)
                && exact(&expert.w3, inter, hidden)
                && exact(&expert.w2, hidden, inter);
            if !fits {
                return Err(field(&part("w1"), format!("[{inter}, {hidden}]"), "has another shape"));
            }
            known.insert(id, expert);
        }
        // Experts that no row chose were not stored: whoever runs them gets zeros.
        let zeros = self.room(inter.checked_mul(hidden))?;
        // SAFETY: the block has this many words.
        unsafe { zeros.write_bytes(0, 4 * inter * hidden) };
        let of = |n, k| WeightRef::plain(weight_format::F32, describe(zeros, dtype::F32, &[n, k]));
        let (up, down) = (of(inter, hidden), of(hidden, inter));
        let blank = ExpertRef { w1: up, w2: down, w3: up };
        self.experts = (0..count).map(|id| known.get(&id).copied().unwrap_or(blank)).collect();
        *experts = self.experts.as_ptr();
        Ok(())
    }

    fn out(&mut self, t: &mut TensorRef, shape: &[usize]) -> Result {
        let words = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let data = self.room(words)?;
        *t = describe(data, dtype::F32, shape);
        Ok(())
    }

    fn words<T>(&mut self, p: &mut *mut T, rows: usize, width: usize) -> Result {
        *p = self.room(rows.checked_mul(width))?.cast();
        Ok(())
    }
}
