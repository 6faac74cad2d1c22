//! A call's inputs in host memory, for those who compute with them there: truth, and whoever writes the call to a file.

use super::block::Block;
use super::memory::Memory;
use hotseam_abi::{
    Batch, CompressArgs, CoreArgs, ExpertRef, ExpertsArgs, MhcHeadArgs, MhcPostArgs, MhcPreArgs, PoolRef,
    RopeTables, RouteArgs, SelectArgs, StoreArgs, TensorRef, WeightRef, device,
};
use hotseam_cuda::CudaError;
use hotseam_model::{Model, Tensor};
use hotseam_slots::{Args, OwnedArgs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where the host has what a device has copies of: weights and rope tables. They are gigabytes, and are not copied back.
#[derive(Debug)]
pub(crate) struct HostCopies {
    /// Address on the device, and of the same bytes in host memory.
    addresses: BTreeMap<u64, usize>,
    /// Keeps the bytes.
    _model: Arc<Model>,
}

impl HostCopies {
    /// Those of a model on a device.
    pub(crate) fn of(model: &Arc<Model>) -> Self {
        // A clone of the weights shares their bytes.
        let mut weights = model.weights.clone();
        let of_tensor = |t: &mut Tensor| (t.device_address(), t.bytes_ptr().addr());
        let mut addresses: BTreeMap<u64, usize> = weights.tensors_mut().into_iter().map(of_tensor).collect();
        for table in model.ropes() {
            let host = [table.cos.as_ptr().addr(), table.sin.as_ptr().addr()];
            addresses.extend(table.device_addresses.into_iter().zip(host));
        }
        addresses.remove(&0);
        Self { addresses, _model: Arc::clone(model) }
    }

    fn find(&self, address: u64) -> Option<*mut std::ffi::c_void> {
        self.addresses.get(&address).map(|host| *host as *mut _)
    }
}

/// Arguments whose inputs are in host memory: the call's own, or a copy. Outputs of a copy are poisoned memory of its own, but
/// for the pool that a call writes, which is nowhere: it is for a [`super::Scratch`] to give it one.
///
/// Of what a call on a device reads, rows, lists, read pages of pools and read state rows are copied, and pages and state
/// rows are numbered anew. Weights and rope tables are the host's own.
#[derive(Debug)]
pub struct OnHost<'a> {
    args: Given<'a>,
    _blocks: Vec<Block>,
    _batch: Option<Box<Batch>>,
    _experts: Vec<ExpertRef>,
}

#[derive(Debug)]
enum Given<'a> {
    Same(Args<'a>),
    Copy(OwnedArgs),
}

impl<'a> OnHost<'a> {
    /// # Errors
    /// If the device failed, under this or under what was enqueued before.
    ///
    /// # Safety
    /// The arguments are as the contract says, in `memory`.
    pub(super) unsafe fn new(
        args: Args<'a>,
        memory: Memory,
        copies: Option<&HostCopies>,
    ) -> Result<Self, CudaError> {
        if memory == Memory::Host {
            let args = Given::Same(args);
            return Ok(Self { args, _blocks: Vec::new(), _batch: None, _experts: Vec::new() });
        }
        let mut c = Copier { memory, copies, blocks: Vec::new(), experts: Vec::new() };
        // SAFETY: the caller's contract.
        let (owned, batch) = unsafe { c.args(args)? };
        Ok(Self { args: Given::Copy(owned), _blocks: c.blocks, _batch: Some(batch), _experts: c.experts })
    }

    /// The arguments.
    pub fn args(&self) -> Args<'_> {
        match &self.args {
            Given::Same(args) => *args,
            Given::Copy(owned) => owned.args(),
        }
    }
}

type Copied<T> = Result<T, CudaError>;

struct Copier<'c> {
    memory: Memory,
    copies: Option<&'c HostCopies>,
    blocks: Vec<Block>,
    experts: Vec<ExpertRef>,
}

/// Bytes of an element.
fn element_bytes(t: &TensorRef) -> usize {
    use hotseam_abi::dtype;
    match t.dtype {
        dtype::U8 | dtype::E4M3 | dtype::E8M0 => 1,
        dtype::BF16 => 2,
        dtype::I64 => 8,
        _ => 4,
    }
}

/// A tensor without its data.
fn nowhere(t: &TensorRef) -> TensorRef {
    TensorRef { data: std::ptr::null_mut(), device: device::CPU, device_id: 0, ..*t }
}

/// All of these read what the arguments of a call point to, which is as the contract says.
impl Copier<'_> {
    fn keep<T>(&mut self, values: &[T]) -> *const T {
        // SAFETY: the values are plain numbers without padding.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        let mut block = Block::copy_of(bytes);
        let data = block.ptr();
        self.blocks.push(block);
        data.cast_const().cast()
    }

    unsafe fn list<T: Copy>(&mut self, from: *const T, n: usize) -> Copied<*const T> {
        if from.is_null() {
            return Ok(from);
        }
        // SAFETY: the caller's contract.
        let values = unsafe { self.memory.read(from, n)? };
        Ok(self.keep(&values))
    }

    unsafe fn tensor(&mut self, t: &TensorRef) -> Copied<TensorRef> {
        if t.data.is_null() || t.device == device::CPU {
            return Ok(*t);
        }
        let known = self.copies.and_then(|copies| copies.find(t.data as u64));
        let data = match known {
            Some(host) => host,
            None => {
                let n: usize = (0..t.ndim.min(4) as usize).map(|d| t.shape[d].max(0) as usize).product();
                // SAFETY: the caller's contract; tensors are contiguous.
                let bytes = unsafe { self.list(t.data.cast::<u8>().cast_const(), n * element_bytes(t))? };
                bytes.cast_mut().cast()
            }
        };
        Ok(TensorRef { data, ..nowhere(t) })
    }

    /// Room for `words` words of output.
    fn room<T>(&mut self, words: usize) -> *mut T {
        let mut block = Block::poisoned(4 * words);
        let data = block.ptr();
        self.blocks.push(block);
        data.cast()
    }

    /// Room for an f32 output.
    fn output(&mut self, t: &TensorRef) -> TensorRef {
        let n: usize = (0..t.ndim.min(4) as usize).map(|d| t.shape[d].max(0) as usize).product();
        TensorRef { data: self.room(n), ..nowhere(t) }
    }

    unsafe fn weight(&mut self, w: &WeightRef) -> Copied<WeightRef> {
        // SAFETY: the caller's contract.
        let (data, scales) = unsafe { (self.tensor(&w.data)?, self.tensor(&w.scales)?) };
        Ok(WeightRef { data, scales, ..*w })
    }

    unsafe fn rope(&mut self, rope: &RopeTables) -> Copied<RopeTables> {
        // SAFETY: the caller's contract.
        unsafe { Ok(RopeTables { cos: self.tensor(&rope.cos)?, sin: self.tensor(&rope.sin)? }) }
    }

    /// A pool of the pages that the tables of the batch name.
    unsafe fn pool(&mut self, pool: &PoolRef, batch: &Batch) -> Copied<PoolRef> {
        let size = pool.bytes.shape[1].max(0) as usize;
        let base: *const u8 = pool.bytes.data.cast_const().cast();
        // SAFETY: the caller's contract.
        let table =
            unsafe { self.memory.read(pool.table, batch.n_seqs as usize * pool.table_width as usize)? };
        let used: BTreeSet<i32> = table.iter().copied().filter(|page| *page >= 0).collect();
        let index: BTreeMap<i32, i32> = used.iter().zip(0..).map(|(page, i)| (*page, i)).collect();
        let mut bytes = Vec::with_capacity(used.len() * size);
        for page in &used {
            // SAFETY: as above; the table names pages of the pool.
            bytes.extend(unsafe { self.memory.read(base.wrapping_add(*page as usize * size), size)? });
        }
        let mut own = *pool;
        own.bytes = nowhere(&pool.bytes);
        own.bytes.data = self.keep(&bytes).cast_mut().cast();
        own.bytes.shape[0] = used.len() as i64;
        let table: Vec<i32> = table.iter().map(|page| index.get(page).copied().unwrap_or(*page)).collect();
        own.table = self.keep(&table);
        Ok(own)
    }

    /// The state rows that the sources name; rows that are only written are numbered after them.
    unsafe fn state(&mut self, a: &CompressArgs, rows: usize) -> Copied<(TensorRef, *const i32, *const i32)> {
        let n = a.n_entries as usize * (a.ratio * (1 + a.overlap)) as usize;
        // SAFETY: the caller's contract.
        let (mut sources, mut dst) =
            unsafe { (self.memory.read(a.sources, n)?, self.memory.read(a.state_dst, rows)?) };
        let read: BTreeSet<i32> = sources.iter().filter(|s| **s <= -2).map(|s| -(s + 2)).collect();
        let written: BTreeSet<i32> = dst.iter().copied().filter(|d| *d >= 0 && !read.contains(d)).collect();
        let index: BTreeMap<i32, i32> = read.iter().chain(&written).copied().zip(0..).collect();
        let row_bytes = 4 * a.state.shape[1].max(0) as usize;
        let base: *const u8 = a.state.data.cast_const().cast();
        let mut bytes = Vec::with_capacity(index.len() * row_bytes);
        for row in &read {
            // SAFETY: as above; sources name rows of the state.
            bytes.extend(unsafe {
                self.memory.read(base.wrapping_add(*row as usize * row_bytes), row_bytes)?
            });
        }
        bytes.resize(index.len() * row_bytes, 0);
        sources.iter_mut().filter(|s| **s <= -2).for_each(|s| *s = -(index[&-(*s + 2)] + 2));
        dst.iter_mut().filter(|d| **d >= 0).for_each(|d| *d = index[d]);
        let mut state = nowhere(&a.state);
        state.data = self.keep(&bytes).cast_mut().cast();
        state.shape[0] = index.len() as i64;
        Ok((state, self.keep(&sources), self.keep(&dst)))
    }

    unsafe fn args(&mut self, args: Args<'_>) -> Copied<(OwnedArgs, Box<Batch>)> {
        // SAFETY: the caller's contract, here and below.
        let given = unsafe { &*args.batch() };
        let (n, seqs) = (given.n_rows as usize, given.n_seqs as usize);
        // SAFETY: as above.
        let (positions, row_seq, spans) = unsafe {
            (self.list(given.positions, n)?, self.list(given.row_seq, n)?, self.list(given.seqs, seqs)?)
        };
        let own = Box::new(Batch { positions, row_seq, seqs: spans, ..*given });
        let batch: *const Batch = &raw const *own;
        let written = |pool: &PoolRef| PoolRef { bytes: nowhere(&pool.bytes), ..*pool };
        // SAFETY: as above, for all arms.
        let owned = unsafe {
            match args {
                Args::Store(a) => OwnedArgs::Store(Box::new(StoreArgs {
                    batch,
                    kv: self.tensor(&a.kv)?,
                    norm_weight: self.tensor(&a.norm_weight)?,
                    rope: self.rope(&a.rope)?,
                    out_slots: self.list(a.out_slots, n)?,
                    pool: written(&a.pool),
                    ..*a
                })),
                Args::Compress(a) => {
                    let (state, sources, state_dst) = self.state(a, n)?;
                    OwnedArgs::Compress(Box::new(CompressArgs {
                        batch,
                        kv: self.tensor(&a.kv)?,
                        gate: self.tensor(&a.gate)?,
                        ape: self.tensor(&a.ape)?,
                        norm_weight: self.tensor(&a.norm_weight)?,
                        rope: self.rope(&a.rope)?,
                        sources,
                        entry_positions: self.list(a.entry_positions, a.n_entries as usize)?,
                        out_slots: self.list(a.out_slots, a.n_entries as usize)?,
                        state_dst,
                        state,
                        pool: written(&a.pool),
                        ..*a
                    }))
                }
                Args::Core(a) => {
                    let swa = self.pool(&a.swa, given)?;
                    OwnedArgs::Core(Box::new(CoreArgs {
                        batch,
                        q: self.tensor(&a.q)?,
                        sinks: self.tensor(&a.sinks)?,
                        swa,
                        entries: if a.ratio == 0 { swa } else { self.pool(&a.entries, given)? },
                        ids: self.list(a.ids, n * a.ids_width as usize)?,
                        rope: self.rope(&a.rope)?,
                        out: self.output(&a.out),
                        ..*a
                    }))
                }
                Args::Select(a) => OwnedArgs::Select(Box::new(SelectArgs {
                    batch,
                    q_lora: self.tensor(&a.q_lora)?,
                    x: self.tensor(&a.x)?,
                    wq_b: self.weight(&a.wq_b)?,
                    weights_proj: self.tensor(&a.weights_proj)?,
                    rope: self.rope(&a.rope)?,
                    keys: self.pool(&a.keys, given)?,
                    ids: self.room(n * a.topk as usize),
                    scores: match a.scores.is_null() {
                        true => a.scores,
                        false => self.room(n * a.scores_width as usize),
                    },
                    ..*a
                })),
                Args::Route(a) => OwnedArgs::Route(Box::new(RouteArgs {
                    batch,
                    x: self.tensor(&a.x)?,
                    gate: self.tensor(&a.gate)?,
                    bias: self.tensor(&a.bias)?,
                    tid2eid: self.tensor(&a.tid2eid)?,
                    input_ids: self.list(a.input_ids, n)?,
                    ids: self.room(n * a.topk as usize),
                    weights: self.room(n * a.topk as usize),
                    ..*a
                })),
                Args::Experts(a) => self.experts_args(a, batch, n)?,
                Args::Pre(a) => OwnedArgs::Pre(Box::new(MhcPreArgs {
                    batch,
                    streams: self.tensor(&a.streams)?,
                    fn_weight: self.tensor(&a.fn_weight)?,
                    base: self.tensor(&a.base)?,
                    scale: self.tensor(&a.scale)?,
                    next_norm: self.tensor(&a.next_norm)?,
                    x: self.output(&a.x),
                    post: self.output(&a.post),
                    comb: self.output(&a.comb),
                    ..*a
                })),
                Args::Post(a) => {
                    let streams = self.tensor(&a.streams)?;
                    OwnedArgs::Post(Box::new(MhcPostArgs {
                        batch,
                        f: self.tensor(&a.f)?,
                        streams,
                        post: self.tensor(&a.post)?,
                        comb: self.tensor(&a.comb)?,
                        out: streams,
                        ..*a
                    }))
                }
                Args::Head(a) => OwnedArgs::Head(Box::new(MhcHeadArgs {
                    batch,
                    streams: self.tensor(&a.streams)?,
                    fn_weight: self.tensor(&a.fn_weight)?,
                    base: self.tensor(&a.base)?,
                    scale: self.tensor(&a.scale)?,
                    x: self.output(&a.x),
                    ..*a
                })),
            }
        };
        Ok((owned, own))
    }

    unsafe fn experts_args(&mut self, a: &ExpertsArgs, batch: *const Batch, n: usize) -> Copied<OwnedArgs> {
        let pairs = n * a.topk as usize;
        for i in 0..a.n_experts as usize {
            // SAFETY: the caller's contract: the table has so many experts, and is in host memory.
            unsafe {
                let e = &*a.experts.add(i);
                let own =
                    ExpertRef { w1: self.weight(&e.w1)?, w2: self.weight(&e.w2)?, w3: self.weight(&e.w3)? };
                self.experts.push(own);
            }
        }
        // SAFETY: as above.
        unsafe {
            Ok(OwnedArgs::Experts(Box::new(ExpertsArgs {
                batch,
                x: self.tensor(&a.x)?,
                ids: self.list(a.ids, pairs)?,
                weights: self.list(a.weights, pairs)?,
                experts: self.experts.as_ptr(),
                experts_device: std::ptr::null(),
                out: self.output(&a.out),
                ..*a
            })))
        }
    }
}
