//! Calls of one layer of DeepSeek-V4-Flash, of one sequence.

use hotseam_cpu_kernels::{attention, indexer};
use hotseam_sdk::abi::{
    Batch, CoreArgs, PoolRef, RopeTables, SelectArgs, SeqSpan, TensorRef, WeightRef, dtype, weight_format,
};
use hotseam_sdk::layouts::{self, Shape};
use hotseam_sdk::ops::Parallel;
use hotseam_sdk::views::{self, Form, PoolMut};

const HEADS: usize = 16;
const DIM: usize = 512;
const ROPE: usize = 64;
const WINDOW: usize = 128;
const TOPK: usize = 512;
const INDEX_HEADS: usize = 64;
const INDEX_DIM: usize = 128;
/// Small, so that the projection of the query does not hide the scores.
const RANK: usize = 16;

/// Numbers between -1 and 1.
fn noise(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn tensor(data: &mut [f32], dtype: u32, shape: &[usize]) -> TensorRef {
    let data = data.as_mut_ptr().cast();
    let mut t = TensorRef { data, dtype, ndim: shape.len() as u32, shape: [1; 4], ..TensorRef::NONE };
    let mut stride = 1;
    for (d, extent) in shape.iter().enumerate().rev() {
        (t.shape[d], t.strides[d]) = (*extent as i64, stride);
        stride *= *extent as i64;
    }
    t
}

/// A filled pool of one sequence with its pages in disorder.
struct Entries {
    form: Form,
    memory: Vec<f32>,
    table: Vec<i32>,
}

impl Entries {
    fn new(layout: u32, dim: usize, entries: usize, entries_per_page: usize) -> Self {
        let shape = Shape { dim, rope_dim: ROPE };
        let parts = layouts::parts(layout, shape).expect("a known layout");
        let page_bytes = entries_per_page * (parts.data + parts.scale);
        let form = Form { layout, shape, parts, entries_per_page, page_bytes };
        let pages = entries.div_ceil(entries_per_page);
        let mut memory = vec![0.0f32; (pages * page_bytes).div_ceil(4)];
        // SAFETY: floats are bytes.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<u8>(), pages * page_bytes) };
        let mut pool = PoolMut::new(form, bytes);
        let values = noise(dim + 1021);
        for slot in 0..pages * entries_per_page {
            pool.encode(slot, &mut values[slot * 37 % 1021..][..dim].to_vec());
        }
        Self { form, memory, table: (0..pages as i32).map(|page| page ^ 1).collect::<Vec<_>>() }
            .ordered(pages)
    }

    /// Keeps exchanged pages inside the pool.
    fn ordered(mut self, pages: usize) -> Self {
        self.table.iter_mut().for_each(|page| *page = (*page).min(pages as i32 - 1));
        self
    }

    fn arg(&mut self) -> PoolRef {
        let Form { layout, shape, parts, entries_per_page, page_bytes } = self.form;
        let pages = self.memory.len() * 4 / page_bytes;
        PoolRef {
            bytes: tensor(&mut self.memory, dtype::U8, &[pages, page_bytes]),
            layout,
            entries_per_page: entries_per_page as u32,
            dim: shape.dim as u32,
            rope_dim: shape.rope_dim as u32,
            data_bytes: parts.data as u32,
            scale_bytes: parts.scale as u32,
            table: self.table.as_ptr(),
            table_width: self.table.len() as u32,
        }
    }

    fn entry_bytes(&self) -> usize {
        self.form.parts.data + self.form.parts.scale
    }
}

/// Rows of one sequence.
struct Rows {
    positions: Vec<i32>,
    row_seq: Vec<i32>,
    seqs: [SeqSpan; 1],
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rows {
    fn new(rows: usize, position: usize) -> Self {
        let tables = (position + rows) * ROPE / 2;
        Self {
            positions: (position..position + rows).map(|p| p as i32).collect(),
            row_seq: vec![0; rows],
            seqs: [SeqSpan { row_begin: 0, row_count: rows as u32, position: position as u32, chunk: 0 }],
            cos: vec![0.6; tables],
            sin: vec![0.8; tables],
        }
    }

    fn len(&self) -> usize {
        self.positions.len()
    }

    /// Complete entries of each row.
    fn complete(&self) -> impl Iterator<Item = usize> {
        self.positions.iter().map(|p| (*p as usize + 1) / 4)
    }

    fn batch(&self) -> Batch {
        Batch {
            size: size_of::<Batch>() as u32,
            n_rows: self.positions.len() as u32,
            n_seqs: 1,
            positions: self.positions.as_ptr(),
            row_seq: self.row_seq.as_ptr(),
            seqs: self.seqs.as_ptr(),
        }
    }

    fn rope(&mut self) -> RopeTables {
        let shape = [self.cos.len() / (ROPE / 2), ROPE / 2];
        RopeTables {
            cos: tensor(&mut self.cos, dtype::F32, &shape),
            sin: tensor(&mut self.sin, dtype::F32, &shape),
        }
    }
}

/// `attention.core` of a csa layer.
pub(crate) struct CoreCall {
    rows: Rows,
    swa: Entries,
    entries: Entries,
    ids: Vec<i32>,
    q: Vec<f32>,
    sinks: Vec<f32>,
    out: Vec<f32>,
}

impl CoreCall {
    pub(crate) fn new(rows: usize, position: usize, layout: u32) -> Self {
        let end = position + rows;
        let rows = Rows::new(rows, position);
        let mut ids = Vec::with_capacity(rows.len() * TOPK);
        for complete in rows.complete() {
            let kept = complete.min(TOPK);
            ids.extend((0..kept).map(|i| (i * complete / kept.max(1)) as i32));
            ids.extend(std::iter::repeat_n(-1, TOPK - kept));
        }
        let n = rows.len() * HEADS * DIM;
        Self {
            swa: Entries::new(layout, DIM, end, 256),
            entries: Entries::new(layout, DIM, end / 4, 64),
            ids,
            q: noise(n),
            sinks: noise(HEADS),
            out: vec![0.0; n],
            rows,
        }
    }

    pub(crate) fn run(&mut self, par: &dyn Parallel) {
        let n = self.rows.len();
        let (batch, rope) = (self.rows.batch(), self.rows.rope());
        let args = CoreArgs {
            size: size_of::<CoreArgs>() as u32,
            window: WINDOW as u32,
            ratio: 4,
            ids_width: TOPK as u32,
            scale: (DIM as f32).powf(-0.5),
            batch: &raw const batch,
            q: tensor(&mut self.q, dtype::F32, &[n, HEADS, DIM]),
            sinks: tensor(&mut self.sinks, dtype::F32, &[HEADS]),
            swa: self.swa.arg(),
            entries: self.entries.arg(),
            ids: self.ids.as_ptr(),
            rope,
            out: tensor(&mut self.out, dtype::F32, &[n, HEADS, DIM]),
        };
        // SAFETY: the arguments point to the buffers of this call.
        let mut view = unsafe { views::Core::from_raw(&args) }.expect("sound arguments");
        attention::core(par, &mut view).expect("a known layout");
    }

    /// Keys of all rows.
    fn keys(&self) -> usize {
        self.ids.iter().filter(|id| **id >= 0).count() + self.rows.len() * WINDOW
    }

    pub(crate) fn flops(&self) -> f64 {
        (self.keys() * HEADS * DIM * 2 * 2) as f64
    }

    /// Entries that are read at least once.
    pub(crate) fn bytes(&self) -> f64 {
        let entries = self.keys().min(self.rows.len() + WINDOW + self.rows.complete().max().unwrap_or(0));
        (entries * self.swa.entry_bytes() + (self.q.len() + self.out.len()) * 4) as f64
    }
}

/// `indexer.select`.
pub(crate) struct SelectCall {
    rows: Rows,
    keys: Entries,
    topk: usize,
    q_lora: Vec<f32>,
    x: Vec<f32>,
    wq_b: Vec<f32>,
    weights_proj: Vec<f32>,
    ids: Vec<i32>,
}

impl SelectCall {
    pub(crate) fn new(rows: usize, position: usize, topk: usize, layout: u32) -> Self {
        Self {
            keys: Entries::new(layout, INDEX_DIM, (position + rows) / 4, 64),
            rows: Rows::new(rows, position),
            topk,
            q_lora: noise(rows * RANK),
            x: noise(rows * RANK),
            wq_b: noise(INDEX_HEADS * INDEX_DIM * RANK),
            weights_proj: noise(INDEX_HEADS * RANK),
            ids: vec![0; rows * topk],
        }
    }

    pub(crate) fn run(&mut self, par: &dyn Parallel) {
        let n = self.rows.len();
        let (batch, rope) = (self.rows.batch(), self.rows.rope());
        let args = SelectArgs {
            size: size_of::<SelectArgs>() as u32,
            ratio: 4,
            heads: INDEX_HEADS as u32,
            topk: self.topk as u32,
            scores_width: 0,
            batch: &raw const batch,
            q_lora: tensor(&mut self.q_lora, dtype::F32, &[n, RANK]),
            x: tensor(&mut self.x, dtype::F32, &[n, RANK]),
            wq_b: WeightRef::plain(
                weight_format::F32,
                tensor(&mut self.wq_b, dtype::F32, &[INDEX_HEADS * INDEX_DIM, RANK]),
            ),
            weights_proj: tensor(&mut self.weights_proj, dtype::F32, &[INDEX_HEADS, RANK]),
            rope,
            keys: self.keys.arg(),
            ids: self.ids.as_mut_ptr(),
            scores: std::ptr::null_mut(),
        };
        // SAFETY: the arguments point to the buffers of this call.
        let mut view = unsafe { views::Select::from_raw(&args) }.expect("sound arguments");
        indexer::select(par, &mut view).expect("a known layout");
    }

    pub(crate) fn flops(&self) -> f64 {
        let scored: usize = self.rows.complete().filter(|n| *n > self.topk).sum();
        let projected = self.rows.len() * RANK * INDEX_HEADS * (INDEX_DIM + 1);
        (2 * (scored * INDEX_HEADS * INDEX_DIM + projected)) as f64
    }

    pub(crate) fn bytes(&self) -> f64 {
        (self.rows.complete().max().unwrap_or(0) * self.keys.entry_bytes()) as f64
    }
}
