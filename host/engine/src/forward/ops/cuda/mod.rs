//! The host's own operations on a CUDA device.

mod graphs;

use super::{Block, Done, Ops, Product, Repeat, StepError, Work, do_from};
use crate::forward::lists::device::DeviceLists;
use crate::forward::lists::{HeadRows, Lists};
use crate::forward::refs;
use crate::sampler::Draw;
use crate::{CublasLt, EngineConfig, EngineError};
use graphs::Graphs;
use hotseam_abi::{ExpertRef, MIN_WORKSPACE, TensorRef, WeightRef, device, dtype};
use hotseam_cuda::{Buffer, CudaError, Device, Stream, copy_from_device, copy_to_device_on};
use hotseam_cuda_kernels::ops;
use hotseam_kv::Plan;
use hotseam_model::{Matrix, Model, ModelConfig, RopeTable, Tensor};
use hotseam_slots::Phase;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;

/// Most products of one call of [`Ops::products`].
const TOGETHER: usize = 6;

/// On a device, whose context is current on the engine thread.
pub(crate) struct Cuda {
    kernels: ops::Ops,
    workspace: Buffer,
    prefill: DeviceLists,
    decode: DeviceLists,
    /// [`Draw`] of each row of a step that decodes.
    draws: Buffer,
    /// Set if cuBLASLt makes products of many rows in prefill steps.
    dense: Option<RefCell<ops::Dense>>,
    /// Phase of the step. Decode steps are recorded, which cuBLASLt's search for a way to make a product must not be.
    phase: Phase,
    /// Set if decode steps are recorded.
    graphs: Option<RefCell<Graphs>>,
    stream: Stream,
    /// Memory of the weights and tables; freed after what uses it.
    _weights: Vec<Buffer>,
    device: Device,
}

impl Cuda {
    /// The device, and the model with its weights there.
    ///
    /// # Errors
    /// If the device cannot be had, or has not the memory.
    pub(crate) fn new(
        ordinal: u32,
        model: &Model,
        sizes: &EngineConfig,
    ) -> Result<(Self, Model), EngineError> {
        let device = Device::open(ordinal)?;
        let facts = device.facts();
        tracing::info!(device = facts.name, sm = facts.sm, bytes = facts.memory, "steps run on CUDA");
        let (mut model, mut weights) = (model.clone(), Vec::new());
        // Tensors that are one in host memory are one on the device.
        let mut there: HashMap<(usize, usize), u64> = HashMap::new();
        for tensor in model.weights.tensors_mut() {
            let key = (tensor.bytes_ptr().addr(), tensor.byte_len());
            let address = match there.get(&key) {
                Some(address) => *address,
                None => {
                    let buffer = Buffer::of(tensor.bytes(), "a weight")?;
                    weights.push(buffer);
                    weights.last().map_or(0, Buffer::address)
                }
            };
            there.insert(key, address);
            tensor.set_device_address(address);
        }
        for table in model.ropes_mut() {
            let copies = [Buffer::of(&table.cos, "a rope table")?, Buffer::of(&table.sin, "a rope table")?];
            table.device_addresses = [copies[0].address(), copies[1].address()];
            weights.extend(copies);
        }
        let dense = (sizes.cublaslt != CublasLt::Off).then(|| {
            let (input, weights) = widest(&model.config);
            ops::Dense::open(sizes.max_rows() * input, weights)
        });
        let dense = match dense {
            Some(Err(error)) if sizes.cublaslt == CublasLt::Required => {
                return Err(EngineError::Kernels(error.message));
            }
            Some(Err(error)) => {
                tracing::info!(error = error.message, "products of many rows are made without cuBLASLt");
                None
            }
            Some(Ok(dense)) => {
                tracing::info!("cuBLASLt makes products of many rows");
                Some(RefCell::new(dense))
            }
            None => None,
        };
        let layers = model.config.num_hidden_layers;
        let lists = |rows: usize| DeviceLists::new(rows, sizes.max_seqs, sizes.max_context);
        let opened = Self {
            kernels: ops::Ops::load().map_err(|e| EngineError::Kernels(e.message))?,
            workspace: Buffer::new(MIN_WORKSPACE as usize, "the workspace of calls")?,
            prefill: lists(sizes.max_rows())?,
            decode: lists(sizes.max_seqs)?.padded(sizes.graphs),
            draws: Buffer::zeroed(sizes.max_seqs * size_of::<Draw>(), "what tokens are drawn by")?,
            dense,
            phase: Phase::Prefill,
            graphs: sizes.graphs.then(|| Graphs::new(layers).map(RefCell::new)).transpose()?,
            stream: Stream::new()?,
            _weights: weights,
            device,
        };
        Ok((opened, model))
    }

    /// A list of `n` numbers as a tensor.
    fn numbers(&self, list: *const i32, n: usize) -> TensorRef {
        let mut t = TensorRef { data: list.cast_mut().cast(), shape: [1; 4], ndim: 1, ..TensorRef::NONE };
        (t.shape[0], t.dtype, t.device, t.device_id) =
            (n as i64, dtype::I32, device::CUDA, self.device.ordinal());
        t
    }

    fn raw(&self) -> u64 {
        self.stream.raw()
    }

    /// Products of `x` `[rows, groups, k]`, each with its weights into `[rows, groups, n]`, of one group into `[rows, n]`.
    fn multiply(&self, shape: [usize; 3], x: &Block, parts: &mut [(WeightRef, TensorRef)]) -> Done {
        let [rows, groups, k] = shape;
        let left = self.dense(x.f32(shape), parts)?;
        match (left.first(), groups) {
            (None, _) => Ok(()),
            (Some(_), 1) => done(self.kernels.linears(self.raw(), &x.f32([rows, k]), left)),
            (Some((w, y)), _) => done(self.kernels.linear_grouped(self.raw(), &x.f32(shape), w, y)),
        }
    }

    /// Makes the products that cuBLASLt makes; those that are left.
    fn dense<'a>(
        &self,
        x: TensorRef,
        parts: &'a mut [(WeightRef, TensorRef)],
    ) -> Result<&'a mut [(WeightRef, TensorRef)], StepError> {
        let served = |w: &WeightRef| ops::Dense::serves(x.shape[0], w);
        let dense = self.dense.as_ref().filter(|_| self.phase == Phase::Prefill);
        let Some(dense) = dense.filter(|_| parts.iter().any(|(w, _)| served(w))) else {
            return Ok(parts);
        };
        let (mut dense, failed) =
            (dense.borrow_mut(), |e: hotseam_cuda_kernels::Error| StepError::Device(e.message));
        if !dense.input(&self.kernels, self.raw(), &x).map_err(failed)? {
            return Ok(parts);
        }
        let mut left = 0;
        for i in 0..parts.len() {
            let (w, y) = parts[i];
            let made = served(&w) && dense.product(&self.kernels, self.raw(), &x, &w, &y).map_err(failed)?;
            if !made {
                parts[left] = parts[i];
                left += 1;
            }
        }
        Ok(&mut parts[..left])
    }
}

/// Values of the widest input of a row, and of the largest matrix, that the host multiplies itself and that may be in FP8.
fn widest(c: &ModelConfig) -> (usize, usize) {
    let (heads, o_lora) = (c.num_attention_heads * c.head_dim, c.o_groups * c.o_lora_rank);
    let (hidden, inner) = (c.hidden_size, c.moe_intermediate_size);
    let input = [hidden, c.q_lora_rank, heads, o_lora, inner].into_iter().max();
    let matrices = [
        heads * c.q_lora_rank,
        o_lora * heads / c.o_groups,
        hidden * o_lora,
        hidden * inner,
        hidden * c.q_lora_rank,
        hidden * 2 * c.head_dim,
    ];
    (input.unwrap_or(0), matrices.into_iter().max().unwrap_or(0))
}

/// A failure of a kernel's launcher.
fn done(result: Result<(), hotseam_cuda_kernels::Error>) -> Done {
    result.map_err(|error| StepError::Device(error.message))
}

impl Ops for Cuda {
    fn memory(&self, bytes: usize, what: &'static str) -> Result<Block, CudaError> {
        Ok(Block::device(Buffer::zeroed(bytes, what)?, self.device.ordinal()))
    }

    fn experts(&self, experts: &[ExpertRef]) -> Result<Block, CudaError> {
        Ok(Block::device(Buffer::of(experts, "the table of a layer's experts")?, self.device.ordinal()))
    }

    fn begin(
        &mut self,
        phase: Phase,
        plan: &Plan,
        tokens: &[i32],
        head: &HeadRows,
        repeats: bool,
    ) -> Result<Lists, StepError> {
        self.phase = phase;
        if let Some(graphs) = &self.graphs {
            graphs.borrow_mut().step();
        }
        let lists = match phase {
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
        };
        Ok(lists.put(plan, tokens, head, repeats, &self.stream)?)
    }

    fn context(&self) -> (u64, *mut c_void, u64) {
        (self.raw(), self.workspace.address() as *mut c_void, self.workspace.bytes() as u64)
    }

    fn repeat(&self, key: Repeat, work: &dyn Work) -> Result<bool, StepError> {
        match &self.graphs {
            Some(graphs) => graphs.borrow_mut().run(key, &self.kernels, &self.stream, work),
            None => do_from(work, 0).map(|()| false),
        }
    }

    fn embed(&self, lists: &Lists, table: &Tensor, hc: usize, streams: &Block) -> Done {
        let rows = lists.rows();
        let (table, tokens) = (refs::tensor(table), self.numbers(lists.tokens, rows));
        let streams = streams.f32([rows, hc, table.shape[1] as usize]);
        done(self.kernels.embed(self.raw(), &table, &tokens, &streams))
    }

    fn rms_norm(&self, rows: usize, x: &Block, weight: &Tensor, eps: f32, out: &Block) -> Done {
        let shape = [rows, weight.len()];
        let (x, out) = (x.f32(shape), out.f32(shape));
        done(self.kernels.rms_norm(self.raw(), &x, &refs::tensor(weight), eps, &out))
    }

    fn products(&self, rows: usize, products: &mut dyn Iterator<Item = Product<'_>>) -> Done {
        let none = (WeightRef::plain(0, TensorRef::NONE), TensorRef::NONE);
        let (mut parts, mut n, mut input) = ([none; TOGETHER], 0, None::<(&Block, usize)>);
        for Product { x, w, y } in products {
            if let Some((before, k)) = input.filter(|(before, _)| n == TOGETHER || before.ptr != x.ptr) {
                self.multiply([rows, 1, k], before, &mut parts[..n])?;
                n = 0;
            }
            (input, parts[n]) = (Some((x, w.k)), (refs::matrix(w), y.f32([rows, w.n])));
            n += 1;
        }
        match input {
            Some((x, k)) => self.multiply([rows, 1, k], x, &mut parts[..n]),
            None => Ok(()),
        }
    }

    fn project(&self, rows: usize, x: &Block, w: &Tensor, y: &Block) -> Done {
        let w = refs::plain(w);
        let [n, k] = [w.data.shape[0] as usize, w.data.shape[1] as usize];
        self.multiply([rows, 1, k], x, &mut [(w, y.f32([rows, n]))])
    }

    fn grouped(&self, rows: usize, groups: usize, x: &Block, w: &Matrix, y: &Block) -> Done {
        // One group, which is what a rank of many has, is a product like any other.
        let y = match groups {
            1 => y.f32([rows, w.n]),
            _ => y.f32([rows, groups, w.n / groups]),
        };
        self.multiply([rows, groups, w.k], x, &mut [(refs::matrix(w), y)])
    }

    fn queries(
        &self,
        lists: &Lists,
        q: &Block,
        heads: usize,
        dim: usize,
        rope: &RopeTable,
        eps: f32,
    ) -> Done {
        let (q, rope) = (q.f32([lists.rows(), heads, dim]), refs::rope(rope));
        let positions = self.numbers(lists.batch.positions, lists.rows());
        done(self.kernels.norm_and_rope(self.raw(), &q, &positions, &rope, eps))
    }

    fn inverse_rope(&self, lists: &Lists, o: &Block, heads: usize, dim: usize, rope: &RopeTable) -> Done {
        let (o, rope) = (o.f32([lists.rows(), heads, dim]), refs::rope(rope));
        let positions = self.numbers(lists.batch.positions, lists.rows());
        done(self.kernels.inverse_rope(self.raw(), &o, &positions, &rope))
    }

    fn swiglu(&self, rows: usize, width: usize, gate: &Block, up: &Block, limit: f32) -> Done {
        let shape = [rows, width];
        done(self.kernels.swiglu(self.raw(), &gate.f32(shape), &up.f32(shape), limit))
    }

    fn add(&self, n: usize, y: &Block, x: &Block) -> Done {
        done(self.kernels.add(self.raw(), &x.f32([n]), &y.f32([n])))
    }

    fn local_experts(&self, n: usize, ids: &Block, experts: Range<usize>, out: &Block) -> Done {
        let (ids, out) = (self.numbers(ids.ptr(), n), self.numbers(out.ptr(), n));
        let own = (experts.start as i32, experts.len() as i32);
        done(self.kernels.local_experts(self.raw(), &ids, own, &out))
    }

    fn gather(&self, lists: &Lists, width: usize, x: &Block, out: &Block) -> Done {
        let n = lists.head.n_rows as usize;
        let (x, out) = (x.f32([lists.rows(), width]), out.f32([n, width]));
        done(self.kernels.gather(self.raw(), &x, &self.numbers(lists.head_rows, n), &out))
    }

    fn choose(
        &self,
        draws: &[Draw],
        vocab: usize,
        logits: &Block,
        chosen: &Block,
    ) -> Result<bool, StepError> {
        let rows = draws.len();
        if size_of_val(draws) > self.draws.bytes() {
            return Ok(false);
        }
        copy_to_device_on(self.draws.address(), draws, self.raw())?;
        let (logits, chosen) = (logits.f32([rows, vocab]), chosen.f32([rows, 2]));
        done(self.kernels.sample(self.raw(), &logits, self.draws.address(), &chosen)).map(|()| true)
    }

    fn read<'a>(&self, block: &'a Block, n: usize, copy: &'a mut Vec<f32>) -> Result<&'a [f32], StepError> {
        copy.resize(n.max(copy.len()), 0.0);
        self.stream.synchronize()?;
        if let Some(graphs) = &self.graphs {
            graphs.borrow_mut().all_ran()?;
        }
        copy_from_device(&mut copy[..n], block.ptr as u64)?;
        Ok(&copy[..n])
    }
}
