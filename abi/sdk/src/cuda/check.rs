//! Checks of the arguments of a call on a device, as far as host memory tells.

use crate::layouts::{self, Parts, Shape};
use crate::tensor::{check_on, dim, same_shape, weight_shape};
use crate::{Error, Result};
use hotseam_abi::{
    Batch, CompressArgs, CoreArgs, ExpertRef, ExpertsArgs, MhcHeadArgs, MhcPostArgs, MhcPreArgs, PoolRef,
    RopeTables, RouteArgs, SelectArgs, StoreArgs, TensorRef, WeightRef, device, dtype, weight_format,
};

/// Numbers of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Rows, padded ones included.
    pub rows: usize,
    /// Sequences.
    pub seqs: usize,
}

fn tensor(t: &TensorRef, what: &str, shape: &[usize], dtypes: &[u32]) -> Result<()> {
    let align = if dtypes.iter().all(|d| matches!(*d, dtype::F32 | dtype::I32)) { 4 } else { 1 };
    check_on(device::CUDA, t, what, shape.len() as u32, dtypes, align)?;
    same_shape(t, what, shape)
}

fn f32s(t: &TensorRef, what: &str, shape: &[usize]) -> Result<()> {
    tensor(t, what, shape, &[dtype::F32])
}

fn array<T>(ptr: *const T, n: usize, what: &str) -> Result<()> {
    match n > 0 && ptr.is_null() {
        true => Err(Error::argument(format!("{what} is missing"))),
        false => Ok(()),
    }
}

fn batch(b: &Batch) -> Result<Rows> {
    let rows = Rows { rows: b.n_rows as usize, seqs: b.n_seqs as usize };
    array(b.positions, rows.rows, "positions")?;
    array(b.row_seq, rows.rows, "row_seq")?;
    array(b.seqs, rows.seqs, "seqs")?;
    Ok(rows)
}

fn rope(t: &RopeTables, dim_of_entry: usize) -> Result<()> {
    let shape = [dim(&t.cos, 0, "rope.cos")?, dim(&t.cos, 1, "rope.cos")?];
    if shape[1] * 2 > dim_of_entry {
        return Err(Error::argument(format!("rope rotates {} channels of {dim_of_entry}", shape[1] * 2)));
    }
    f32s(&t.cos, "rope.cos", &shape)?;
    f32s(&t.sin, "rope.sin", &shape)
}

/// A weight matrix of plain numbers.
fn plain(t: &TensorRef, what: &str, shape: &[usize]) -> Result<()> {
    tensor(t, what, shape, &[dtype::F32, dtype::BF16])
}

/// A weight matrix in any format.
fn weight(w: &WeightRef, what: &str, [n, k]: [usize; 2]) -> Result<()> {
    let groups = |size: usize| match k.is_multiple_of(size) {
        true => Ok(k / size),
        false => Err(Error::argument(format!("{what} has {k} inputs, its format has groups of {size}"))),
    };
    let scales = format!("{what} scales");
    match w.format {
        weight_format::F32 => f32s(&w.data, what, &[n, k]),
        weight_format::BF16 => tensor(&w.data, what, &[n, k], &[dtype::BF16]),
        weight_format::FP8_BLOCK => {
            tensor(&w.data, what, &[n, k], &[dtype::E4M3])?;
            tensor(&w.scales, &scales, &[n.div_ceil(128), k.div_ceil(128)], &[dtype::E8M0])
        }
        weight_format::MXFP4 => {
            tensor(&w.data, what, &[n, k / 2], &[dtype::U8])?;
            tensor(&w.scales, &scales, &[n, groups(32)?], &[dtype::E8M0])
        }
        weight_format::NVFP4 => {
            tensor(&w.data, what, &[n, k / 2], &[dtype::U8])?;
            tensor(&w.scales, &scales, &[n, groups(16)?], &[dtype::E4M3])
        }
        other => Err(Error::argument(format!(
            "{what} is of weight format {other}, which this build does not know"
        ))),
    }
}

/// A pool of entries of `values` values.
///
/// # Errors
/// If the bytes of its entries are not those of its layout, or pages are too small.
pub fn pool(p: &PoolRef, values: usize, what: &str) -> Result<()> {
    let shape = [dim(&p.bytes, 0, what)?, dim(&p.bytes, 1, what)?];
    tensor(&p.bytes, what, &shape, &[dtype::U8])?;
    if p.dim as usize != values {
        return Err(Error::argument(format!("{what} has entries of {} values, expected {values}", p.dim)));
    }
    let parts = layouts::parts(p.layout, Shape { dim: values, rope_dim: p.rope_dim as usize })?;
    let found = Parts { data: p.data_bytes as usize, scale: p.scale_bytes as usize };
    let needed = (p.entries_per_page as usize).saturating_mul(parts.data + parts.scale);
    if parts != found || p.entries_per_page == 0 || shape[1] < needed {
        return Err(Error::argument(format!(
            "{what} has pages of {} bytes with {} entries of {} and {} bytes, layout {} at {values} values has {} and {}",
            shape[1], p.entries_per_page, found.data, found.scale, p.layout, parts.data, parts.scale
        )));
    }
    Ok(())
}

/// A pool that is read by the table of each sequence.
fn read_pool(p: &PoolRef, seqs: usize, values: usize, what: &str) -> Result<()> {
    array(p.table, seqs * p.table_width as usize, "table")?;
    pool(p, values, what)
}

/// What the shims ask of each op's arguments.
pub(crate) trait Checked {
    /// The rows of the call.
    fn batch(&self) -> *const Batch;
    /// Fails if an argument is not what the contract says.
    ///
    /// # Errors
    /// Names the argument.
    fn check(&self, rows: Rows) -> Result<()>;
}

/// Checks a batch and the arguments over it.
///
/// # Safety
/// `a` points to host memory as the contract says.
pub(crate) unsafe fn all<A: Checked>(a: &A) -> Result<&Batch> {
    let pointer = a.batch();
    if pointer.is_null() {
        return Err(Error::argument("batch is missing"));
    }
    // SAFETY: the caller's contract.
    let found = unsafe { &*pointer };
    a.check(batch(found)?)?;
    Ok(found)
}

impl Checked for StoreArgs {
    fn batch(&self) -> *const Batch {
        self.batch
    }

    fn check(&self, Rows { rows, .. }: Rows) -> Result<()> {
        let d = dim(&self.norm_weight, 0, "norm_weight")?;
        f32s(&self.kv, "kv", &[rows, d])?;
        f32s(&self.norm_weight, "norm_weight", &[d])?;
        rope(&self.rope, d)?;
        array(self.out_slots, rows, "out_slots")?;
        pool(&self.pool, d, "pool")
    }
}

impl Checked for CompressArgs {
    fn batch(&self) -> *const Batch {
        self.batch
    }

    fn check(&self, Rows { rows, .. }: Rows) -> Result<()> {
        let (ratio, n) = (self.ratio as usize, self.n_entries as usize);
        if ratio == 0 {
            return Err(Error::argument("ratio is 0"));
        }
        let d = dim(&self.norm_weight, 0, "norm_weight")?;
        let groups = 1 + usize::from(self.overlap != 0);
        f32s(&self.kv, "kv", &[rows, groups * d])?;
        f32s(&self.gate, "gate", &[rows, groups * d])?;
        f32s(&self.ape, "ape", &[ratio, groups * d])?;
        f32s(&self.norm_weight, "norm_weight", &[d])?;
        rope(&self.rope, d)?;
        array(self.sources, n * ratio * groups, "sources")?;
        array(self.entry_positions, n, "entry_positions")?;
        array(self.out_slots, n, "out_slots")?;
        array(self.state_dst, rows, "state_dst")?;
        f32s(&self.state, "state", &[dim(&self.state, 0, "state")?, 2 * groups * d])?;
        pool(&self.pool, d, "pool")
    }
}

impl Checked for CoreArgs {
    fn batch(&self) -> *const Batch {
        self.batch
    }

    fn check(&self, Rows { rows, seqs }: Rows) -> Result<()> {
        let (heads, d) = (dim(&self.q, 1, "q")?, dim(&self.q, 2, "q")?);
        f32s(&self.q, "q", &[rows, heads, d])?;
        f32s(&self.sinks, "sinks", &[heads])?;
        f32s(&self.out, "out", &[rows, heads, d])?;
        rope(&self.rope, d)?;
        read_pool(&self.swa, seqs, d, "swa")?;
        match self.ratio {
            0 => Ok(()),
            _ => read_pool(&self.entries, seqs, d, "entries"),
        }
    }
}

impl Checked for SelectArgs {
    fn batch(&self) -> *const Batch {
        self.batch
    }

    fn check(&self, Rows { rows, seqs }: Rows) -> Result<()> {
        let heads = self.heads as usize;
        if heads == 0 || self.ratio == 0 {
            return Err(Error::argument(format!("{heads} index heads, ratio {}", self.ratio)));
        }
        let [all, rank] = weight_shape(&self.wq_b, "wq_b")?;
        if all % heads != 0 {
            return Err(Error::argument(format!("wq_b has {all} rows for {heads} heads")));
        }
        let (d, hidden) = (all / heads, dim(&self.weights_proj, 1, "weights_proj")?);
        f32s(&self.q_lora, "q_lora", &[rows, rank])?;
        f32s(&self.x, "x", &[rows, hidden])?;
        weight(&self.wq_b, "wq_b", [all, rank])?;
        plain(&self.weights_proj, "weights_proj", &[heads, hidden])?;
        rope(&self.rope, d)?;
        array(self.ids, rows * self.topk as usize, "ids")?;
        read_pool(&self.keys, seqs, d, "keys")
    }
}

impl Checked for RouteArgs {
    fn batch(&self) -> *const Batch {
        self.batch
    }

    fn check(&self, Rows { rows, .. }: Rows) -> Result<()> {
        let topk = self.topk as usize;
        let (experts, hidden) = (dim(&self.gate, 0, "gate")?, dim(&self.gate, 1, "gate")?);
        if topk > experts {
            return Err(Error::argument(format!("topk is {topk} of {experts} experts")));
        }
        f32s(&self.x, "x", &[rows, hidden])?;
        plain(&self.gate, "gate", &[experts, hidden])?;
        if self.tid2eid.data.is_null() {
            f32s(&self.bias, "bias", &[experts])?;
        } else {
            tensor(&self.tid2eid, "tid2eid", &[dim(&self.tid2eid, 0, "tid2eid")?, topk], &[dtype::I32])?;
            array(self.input_ids, rows, "input_ids")?;
        }
        array(self.ids, rows * topk, "ids")?;
        array(self.weights, rows * topk, "weights")
    }
}

impl Checked for ExpertsArgs {
    fn batch(&self) -> *const Batch {
        self.batch
    }

    fn check(&self, Rows { rows, .. }: Rows) -> Result<()> {
        let (topk, n, hidden) = (self.topk as usize, self.n_experts as usize, dim(&self.x, 1, "x")?);
        f32s(&self.x, "x", &[rows, hidden])?;
        f32s(&self.out, "out", &[rows, hidden])?;
        array(self.ids, rows * topk, "ids")?;
        array(self.weights, rows * topk, "weights")?;
        array(self.experts_device, n, "experts_device")?;
        // SAFETY: the host passes `n_experts` of them in host memory.
        let experts: &[ExpertRef] = unsafe { crate::tensor::raw(self.experts, n, "experts")? };
        let inter = experts.first().map_or(Ok(0), |e| weight_shape(&e.w1, "w1").map(|[n, _]| n))?;
        experts.iter().try_for_each(|e| {
            weight(&e.w1, "w1", [inter, hidden])?;
            weight(&e.w2, "w2", [hidden, inter])?;
            weight(&e.w3, "w3", [inter, hidden])
        })
    }
}

/// Streams and their width.
fn streams(t: &TensorRef, rows: usize) -> Result<(usize, usize)> {
    let (hc, hidden) = (dim(t, 1, "streams")?, dim(t, 2, "streams")?);
    if hc == 0 || hc > 16 || hidden == 0 {
        return Err(Error::argument(format!("{hc} streams of {hidden}")));
    }
    f32s(t, "streams", &[rows, hc, hidden])?;
    Ok((hc, hidden))
}

impl Checked for MhcPreArgs {
    fn batch(&self) -> *const Batch {
        self.batch
    }

    fn check(&self, Rows { rows, .. }: Rows) -> Result<()> {
        let (hc, hidden) = streams(&self.streams, rows)?;
        let mix = (2 + hc) * hc;
        f32s(&self.fn_weight, "fn_weight", &[mix, hc * hidden])?;
        f32s(&self.base, "base", &[mix])?;
        f32s(&self.scale, "scale", &[3])?;
        f32s(&self.next_norm, "next_norm", &[hidden])?;
        f32s(&self.x, "x", &[rows, hidden])?;
        f32s(&self.post, "post", &[rows, hc])?;
        f32s(&self.comb, "comb", &[rows, hc, hc])
    }
}

impl Checked for MhcPostArgs {
    fn batch(&self) -> *const Batch {
        self.batch
    }

    fn check(&self, Rows { rows, .. }: Rows) -> Result<()> {
        let (hc, hidden) = streams(&self.streams, rows)?;
        f32s(&self.f, "f", &[rows, hidden])?;
        f32s(&self.post, "post", &[rows, hc])?;
        f32s(&self.comb, "comb", &[rows, hc, hc])?;
        f32s(&self.out, "out", &[rows, hc, hidden])
    }
}

impl Checked for MhcHeadArgs {
    fn batch(&self) -> *const Batch {
        self.batch
    }

    fn check(&self, Rows { rows, .. }: Rows) -> Result<()> {
        let (hc, hidden) = streams(&self.streams, rows)?;
        f32s(&self.fn_weight, "fn_weight", &[hc, hc * hidden])?;
        f32s(&self.base, "base", &[hc])?;
        f32s(&self.scale, "scale", &[1])?;
        f32s(&self.x, "x", &[rows, hidden])
    }
}
