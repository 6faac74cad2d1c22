//! The fields of every op's arguments, described once: the writer walks them to store a call, the reader to rebuild it.

use std::ops::Range;

use hotseam_abi::{
    Batch, CompressArgs, CoreArgs, ExpertRef, ExpertsArgs, MhcHeadArgs, MhcPostArgs, MhcPreArgs, PoolRef,
    RopeTables, RouteArgs, SelectArgs, StoreArgs, TensorRef, WeightRef, dtype, weight_format,
};

use super::error::{CaptureError, field};

type Result<T = ()> = std::result::Result<T, CaptureError>;

/// Element types of weights.
pub(super) const WEIGHT: &[u32] = &[dtype::F32, dtype::BF16];
/// Element types of everything else.
pub(super) const F32: &[u32] = &[dtype::F32];
const I32: &[u32] = &[dtype::I32];

/// One way over the fields.
pub(super) trait Fields {
    /// A number of the call.
    fn number(&mut self, name: &str, value: &mut u32) -> Result;
    /// A factor of the call.
    fn float(&mut self, name: &str, value: &mut f32) -> Result;
    /// The rows.
    fn batch(&mut self, batch: &mut *const Batch) -> Result;
    /// A tensor of `shape`; 0 for any extent.
    fn tensor(&mut self, name: &str, t: &mut TensorRef, dtypes: &[u32], shape: &[usize]) -> Result;
    /// A weight matrix `[n, k]` in any format; 0 for any extent.
    fn weight(&mut self, name: &str, w: &mut WeightRef, shape: [usize; 2]) -> Result;
    /// A tensor that may be absent.
    fn optional(&mut self, name: &str, t: &mut TensorRef, dtypes: &[u32], shape: &[usize]) -> Result;
    /// An i32 table.
    fn table(&mut self, name: &str, p: &mut *const i32, len: usize) -> Result;
    /// An i32 table that may be absent.
    fn optional_table(&mut self, name: &str, p: &mut *const i32, len: usize) -> Result;
    /// An f32 table.
    fn floats(&mut self, name: &str, p: &mut *const f32, len: usize) -> Result;
    /// Rope tables, up to the highest position that the call can use.
    fn rope(&mut self, rope: &mut RopeTables, positions: usize) -> Result;
    /// A pool that is read: of each sequence the entries of its range.
    fn pool(&mut self, name: &str, pool: &mut PoolRef, needed: &[Range<usize>]) -> Result;
    /// A pool that is written.
    fn written(&mut self, name: &str, pool: &mut PoolRef) -> Result;
    /// The experts that `ids` name, of `count`.
    fn experts(&mut self, experts: &mut *const ExpertRef, count: usize, ids: &[i32]) -> Result;
    /// An f32 output.
    fn out(&mut self, t: &mut TensorRef, shape: &[usize]) -> Result;
    /// An output of `rows * width` words.
    fn words<T>(&mut self, p: &mut *mut T, rows: usize, width: usize) -> Result;
}

/// What the fields of a batch say.
struct Seen {
    rows: usize,
    /// Position of the first and the last row of each sequence.
    spans: Vec<(usize, usize)>,
    /// Positions in use.
    positions: usize,
}

fn seen(batch: *const Batch) -> Seen {
    // SAFETY: both directions have just filled in the batch.
    let (rows, positions, spans) = unsafe {
        let b = &*batch;
        let slice = |n: u32, p: *const i32| match n {
            0 => &[],
            n => std::slice::from_raw_parts(p, n as usize),
        };
        let spans = match b.n_seqs {
            0 => &[],
            n => std::slice::from_raw_parts(b.seqs, n as usize),
        };
        (b.n_rows as usize, slice(b.n_rows, b.positions), spans)
    };
    let last =
        |s: &hotseam_abi::SeqSpan| (s.position as usize).saturating_add(s.row_count.max(1) as usize - 1);
    Seen {
        rows,
        spans: spans.iter().map(|s| (s.position as usize, last(s))).collect(),
        positions: positions.iter().map(|p| (*p + 1).max(0) as usize).max().unwrap_or(0),
    }
}

fn extent(t: &TensorRef, d: usize) -> usize {
    t.shape[d].max(0) as usize
}

/// Inputs of a weight matrix.
pub(super) fn inputs(w: &WeightRef) -> usize {
    let packed = matches!(w.format, weight_format::MXFP4 | weight_format::NVFP4);
    extent(&w.data, 1).saturating_mul(1 + usize::from(packed))
}

pub(super) fn store(f: &mut impl Fields, a: &mut StoreArgs) -> Result {
    f.batch(&mut a.batch)?;
    let seen = seen(a.batch);
    f.float("norm_eps", &mut a.norm_eps)?;
    f.tensor("norm_weight", &mut a.norm_weight, F32, &[0])?;
    let d = extent(&a.norm_weight, 0);
    f.tensor("kv", &mut a.kv, F32, &[seen.rows, d])?;
    f.rope(&mut a.rope, seen.positions)?;
    f.table("out_slots", &mut a.out_slots, seen.rows)?;
    f.written("pool", &mut a.pool)
}

pub(super) fn compress(f: &mut impl Fields, a: &mut CompressArgs) -> Result {
    f.batch(&mut a.batch)?;
    let seen = seen(a.batch);
    for (name, value) in
        [("ratio", &mut a.ratio), ("overlap", &mut a.overlap), ("n_entries", &mut a.n_entries)]
    {
        f.number(name, value)?;
    }
    if a.overlap > 1 || !(1..=4096).contains(&a.ratio) {
        return Err(field(
            "ratio",
            "1 to 4096, overlap 0 or 1",
            format!("is {}, overlap {}", a.ratio, a.overlap),
        ));
    }
    let (n, both) = (a.n_entries as usize, 1 + a.overlap as usize);
    f.float("norm_eps", &mut a.norm_eps)?;
    f.tensor("norm_weight", &mut a.norm_weight, F32, &[0])?;
    let channels = extent(&a.norm_weight, 0) * both;
    f.tensor("kv", &mut a.kv, F32, &[seen.rows, channels])?;
    f.tensor("gate", &mut a.gate, F32, &[seen.rows, channels])?;
    f.tensor("ape", &mut a.ape, F32, &[a.ratio as usize, channels])?;
    f.rope(&mut a.rope, seen.positions)?;
    f.table("sources", &mut a.sources, n.saturating_mul(a.ratio as usize * both))?;
    f.table("entry_positions", &mut a.entry_positions, n)?;
    f.table("out_slots", &mut a.out_slots, n)?;
    f.table("state_dst", &mut a.state_dst, seen.rows)?;
    f.tensor("state", &mut a.state, F32, &[0, 2 * channels])?;
    f.written("pool", &mut a.pool)
}

pub(super) fn core(f: &mut impl Fields, a: &mut CoreArgs) -> Result {
    f.batch(&mut a.batch)?;
    let seen = seen(a.batch);
    for (name, value) in [("window", &mut a.window), ("ratio", &mut a.ratio), ("ids_width", &mut a.ids_width)]
    {
        f.number(name, value)?;
    }
    f.float("scale", &mut a.scale)?;
    f.tensor("q", &mut a.q, F32, &[seen.rows, 0, 0])?;
    let (heads, d) = (extent(&a.q, 1), extent(&a.q, 2));
    f.tensor("sinks", &mut a.sinks, F32, &[heads])?;
    f.rope(&mut a.rope, seen.positions)?;
    let window = a.window as usize;
    let near = |(first, last): &(usize, usize)| (first + 1).saturating_sub(window)..last + 1;
    f.pool("swa", &mut a.swa, &seen.spans.iter().map(near).collect::<Vec<_>>())?;
    match a.ratio as usize {
        0 => a.entries = a.swa,
        ratio => {
            let far = |(_, last): &(usize, usize)| 0..(last + 1) / ratio;
            f.pool("entries", &mut a.entries, &seen.spans.iter().map(far).collect::<Vec<_>>())?;
            f.optional_table("ids", &mut a.ids, seen.rows.saturating_mul(a.ids_width as usize))?;
        }
    }
    f.out(&mut a.out, &[seen.rows, heads, d])
}

pub(super) fn select(f: &mut impl Fields, a: &mut SelectArgs) -> Result {
    f.batch(&mut a.batch)?;
    let seen = seen(a.batch);
    for (name, value) in [("ratio", &mut a.ratio), ("heads", &mut a.heads), ("topk", &mut a.topk)] {
        f.number(name, value)?;
    }
    if a.ratio == 0 || a.heads == 0 {
        return Err(field(
            "ratio",
            "ratio and heads of at least 1",
            format!("is {}, heads {}", a.ratio, a.heads),
        ));
    }
    f.weight("wq_b", &mut a.wq_b, [0, 0])?;
    f.tensor("weights_proj", &mut a.weights_proj, WEIGHT, &[a.heads as usize, 0])?;
    let (rank, hidden) = (inputs(&a.wq_b), extent(&a.weights_proj, 1));
    f.tensor("q_lora", &mut a.q_lora, F32, &[seen.rows, rank])?;
    f.tensor("x", &mut a.x, F32, &[seen.rows, hidden])?;
    f.rope(&mut a.rope, seen.positions)?;
    let ratio = a.ratio as usize;
    let far = |(_, last): &(usize, usize)| 0..(last + 1) / ratio;
    f.pool("keys", &mut a.keys, &seen.spans.iter().map(far).collect::<Vec<_>>())?;
    (a.scores, a.scores_width) = (std::ptr::null_mut(), 0);
    f.words(&mut a.ids, seen.rows, a.topk as usize)
}

pub(super) fn route(f: &mut impl Fields, a: &mut RouteArgs) -> Result {
    f.batch(&mut a.batch)?;
    let rows = seen(a.batch).rows;
    f.number("topk", &mut a.topk)?;
    let topk = a.topk as usize;
    f.float("routed_scale", &mut a.routed_scale)?;
    f.tensor("gate", &mut a.gate, WEIGHT, &[0, 0])?;
    let (experts, hidden) = (extent(&a.gate, 0), extent(&a.gate, 1));
    f.tensor("x", &mut a.x, F32, &[rows, hidden])?;
    f.optional("bias", &mut a.bias, F32, &[experts])?;
    f.optional("tid2eid", &mut a.tid2eid, I32, &[0, topk])?;
    f.table("input_ids", &mut a.input_ids, rows)?;
    f.words(&mut a.ids, rows, topk)?;
    f.words(&mut a.weights, rows, topk)
}

pub(super) fn experts(f: &mut impl Fields, a: &mut ExpertsArgs) -> Result {
    f.batch(&mut a.batch)?;
    let rows = seen(a.batch).rows;
    f.number("topk", &mut a.topk)?;
    f.number("n_experts", &mut a.n_experts)?;
    f.float("swiglu_limit", &mut a.swiglu_limit)?;
    f.float("routed_scale", &mut a.routed_scale)?;
    let n = rows.saturating_mul(a.topk as usize);
    f.tensor("x", &mut a.x, F32, &[rows, 0])?;
    f.table("ids", &mut a.ids, n)?;
    f.floats("weights", &mut a.weights, n)?;
    // SAFETY: the table was just stored or read with this length.
    let ids = if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(a.ids, n) } };
    f.experts(&mut a.experts, a.n_experts as usize, ids)?;
    f.out(&mut a.out, &[rows, extent(&a.x, 1)])
}

/// Streams and their width.
fn streams(f: &mut impl Fields, t: &mut TensorRef, rows: usize) -> Result<(usize, usize)> {
    f.tensor("streams", t, F32, &[rows, 0, 0])?;
    let (hc, hidden) = (extent(t, 1), extent(t, 2));
    match (1..=16).contains(&hc) {
        true => Ok((hc, hidden)),
        false => Err(field("streams", "1 to 16 streams", format!("has {hc}"))),
    }
}

pub(super) fn pre(f: &mut impl Fields, a: &mut MhcPreArgs) -> Result {
    f.batch(&mut a.batch)?;
    let rows = seen(a.batch).rows;
    f.number("iters", &mut a.iters)?;
    if a.iters > 1000 {
        return Err(field("iters", "at most 1000", format!("is {}", a.iters)));
    }
    f.float("hc_eps", &mut a.hc_eps)?;
    f.float("norm_eps", &mut a.norm_eps)?;
    let (hc, hidden) = streams(f, &mut a.streams, rows)?;
    let mix = (2 + hc) * hc;
    f.tensor("fn_weight", &mut a.fn_weight, F32, &[mix, hc * hidden])?;
    f.tensor("base", &mut a.base, F32, &[mix])?;
    f.tensor("scale", &mut a.scale, F32, &[3])?;
    f.tensor("next_norm", &mut a.next_norm, F32, &[hidden])?;
    f.out(&mut a.x, &[rows, hidden])?;
    f.out(&mut a.post, &[rows, hc])?;
    f.out(&mut a.comb, &[rows, hc, hc])
}

pub(super) fn post(f: &mut impl Fields, a: &mut MhcPostArgs) -> Result {
    f.batch(&mut a.batch)?;
    let rows = seen(a.batch).rows;
    let (hc, hidden) = streams(f, &mut a.streams, rows)?;
    f.tensor("f", &mut a.f, F32, &[rows, hidden])?;
    f.tensor("post", &mut a.post, F32, &[rows, hc])?;
    f.tensor("comb", &mut a.comb, F32, &[rows, hc, hc])?;
    f.out(&mut a.out, &[rows, hc, hidden])
}

pub(super) fn head(f: &mut impl Fields, a: &mut MhcHeadArgs) -> Result {
    f.batch(&mut a.batch)?;
    let rows = seen(a.batch).rows;
    f.float("hc_eps", &mut a.hc_eps)?;
    f.float("norm_eps", &mut a.norm_eps)?;
    let (hc, hidden) = streams(f, &mut a.streams, rows)?;
    f.tensor("fn_weight", &mut a.fn_weight, F32, &[hc, hc * hidden])?;
    f.tensor("base", &mut a.base, F32, &[hc])?;
    f.tensor("scale", &mut a.scale, F32, &[1])?;
    f.out(&mut a.x, &[rows, hidden])
}
