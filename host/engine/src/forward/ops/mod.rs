//! What a forward pass does itself between the calls of the seams, and the memory it does it in: on the CPU or on a device.
//!
//! Tensors are the contract's descriptors, since seam calls take the same ones; all are contiguous f32 unless said otherwise.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod rows;

pub(crate) use cpu::Cpu;
#[cfg(feature = "cuda")]
pub(crate) use cuda::Cuda;

use super::lists::{HeadRows, Lists};
use crate::sampler::Draw;
use hotseam_abi::{ExpertRef, TensorRef, device, dtype};
use hotseam_cuda::CudaError;
use hotseam_kv::Plan;
use hotseam_model::{Matrix, RopeTable, Tensor};
use hotseam_ranks::RankError;
use hotseam_slots::{CallError, Phase};
use std::ffi::c_void;
use std::ops::Range;

/// Why a forward pass ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StepError {
    /// A seam call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A rank of the group is gone, or does not come to a sum.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// The device failed under the host's own work.
    #[error("E-CUDA-001 {0}")]
    Device(String),
}

impl From<CudaError> for StepError {
    fn from(error: CudaError) -> Self {
        Self::Device(error.to_string())
    }
}

/// Result of host work.
pub(crate) type Done = Result<(), StepError>;

/// Memory of a pass; its address does not change.
#[derive(Debug)]
pub(crate) struct Block {
    /// First byte.
    pub(crate) ptr: *mut u8,
    /// Bytes.
    pub(crate) bytes: usize,
    /// One of [`device`].
    pub(crate) device: u32,
    /// Ordinal of the device.
    pub(crate) device_id: u32,
    _owner: Owner,
}

// SAFETY: a plain owned block.
unsafe impl Send for Block {}

#[derive(Debug)]
#[allow(dead_code, reason = "they are kept for their memory")]
enum Owner {
    Host(Vec<u64>),
    #[cfg(feature = "cuda")]
    Device(hotseam_cuda::Buffer),
}

impl Block {
    /// `bytes` zeros in host memory.
    pub(crate) fn host(bytes: usize) -> Self {
        let mut words = vec![0u64; bytes.div_ceil(8)];
        let (ptr, device) = (words.as_mut_ptr().cast(), device::CPU);
        Self { ptr, bytes, device, device_id: 0, _owner: Owner::Host(words) }
    }

    /// Memory of device `device_id`.
    #[cfg(feature = "cuda")]
    pub(crate) fn device(buffer: hotseam_cuda::Buffer, device_id: u32) -> Self {
        let (ptr, bytes) = (buffer.address() as *mut u8, buffer.bytes());
        Self { ptr, bytes, device: device::CUDA, device_id, _owner: Owner::Device(buffer) }
    }

    /// The first values as an f32 tensor.
    pub(crate) fn f32<const N: usize>(&self, shape: [usize; N]) -> TensorRef {
        debug_assert!(shape.iter().product::<usize>() * 4 <= self.bytes, "{shape:?} in {} bytes", self.bytes);
        let mut t = TensorRef { data: self.ptr.cast(), shape: [1; 4], ndim: N as u32, ..TensorRef::NONE };
        (t.dtype, t.device, t.device_id) = (dtype::F32, self.device, self.device_id);
        let mut stride = 1;
        for d in (0..N).rev() {
            (t.shape[d], t.strides[d]) = (shape[d] as i64, stride);
            stride *= shape[d] as i64;
        }
        t
    }

    /// The first value.
    pub(crate) fn ptr<T>(&self) -> *mut T {
        self.ptr.cast()
    }
}

/// A product `y = x W^T` of some rows.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// `[rows, w.k]`.
    pub(crate) x: &'a Block,
    /// `[n, k]`.
    pub(crate) w: &'a Matrix,
    /// `[rows, w.n]`.
    pub(crate) y: &'a Block,
}

/// What work that may be repeated depends on, apart from the values in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Repeat {
    /// Layer.
    pub(crate) layer: u32,
    /// Rows, padded ones included.
    pub(crate) rows: u32,
    /// [`hotseam_slots::LayerCells::served_by`].
    pub(crate) served_by: u64,
}

/// The work of a layer.
pub(crate) trait Work {
    /// Number of parts that it is done in, one after the other.
    fn parts(&self) -> usize;

    /// Does a part. What it enqueues on a device may be recorded and launched again.
    fn part(&self, part: usize) -> Done;

    /// Does what follows a part and is never recorded.
    fn after(&self, part: usize) -> Done;
}

/// Does the parts of `work` from `first` on.
pub(crate) fn do_from(work: &dyn Work, first: usize) -> Done {
    (first..work.parts()).try_for_each(|part| {
        work.part(part)?;
        work.after(part)
    })
}

/// The host's own operations. Blocks are at least as large as the rows need; outputs never alias inputs unless said.
pub(crate) trait Ops: Send {
    /// Zeroed memory; `what` names it in an error.
    fn memory(&self, bytes: usize, what: &'static str) -> Result<Block, CudaError>;

    /// A copy of a layer's experts where calls read them; empty on the CPU.
    fn experts(&self, experts: &[ExpertRef]) -> Result<Block, CudaError>;

    /// A step begins: its index lists, where calls can read them. They may be padded for [`Ops::repeat`] if the step
    /// `repeats`.
    fn begin(
        &mut self,
        phase: Phase,
        plan: &Plan,
        tokens: &[i32],
        head: &HeadRows,
        repeats: bool,
    ) -> Result<Lists, StepError>;

    /// Stream, workspace and its bytes, for the calls of the step.
    fn context(&self) -> (u64, *mut c_void, u64) {
        (0, std::ptr::null_mut(), 0)
    }

    /// Does the work of a layer in a decode step, or, on a device, launches what its parts enqueued when they were done with an
    /// equal key. Returns whether it was launched without being done.
    fn repeat(&self, key: Repeat, work: &dyn Work) -> Result<bool, StepError> {
        let _ = key;
        do_from(work, 0).map(|()| false)
    }

    /// `[rows, hc, hidden]`: each row's token from `table`, in every stream.
    fn embed(&self, lists: &Lists, table: &Tensor, hc: usize, streams: &Block) -> Done;

    /// RMS norm of `rows` rows of `x` with `weight` into `out`, which may be `x`.
    fn rms_norm(&self, rows: usize, x: &Block, weight: &Tensor, eps: f32, out: &Block) -> Done;

    /// Products of `rows` rows, which do not read each other's results.
    fn products(&self, rows: usize, products: &mut dyn Iterator<Item = Product<'_>>) -> Done;

    /// As one of [`Ops::products`], with a table of plain numbers.
    fn project(&self, rows: usize, x: &Block, w: &Tensor, y: &Block) -> Done;

    /// Grouped product: group `g` of `x` `[rows, groups, w.k]` with the rows of `w` that are the group's gives group `g` of `y`
    /// `[rows, groups, w.n / groups]`.
    fn grouped(&self, rows: usize, groups: usize, x: &Block, w: &Matrix, y: &Block) -> Done;

    /// Per-head RMS norm without weight, then rope, of `q` `[rows, heads, dim]` in place.
    fn queries(&self, lists: &Lists, q: &Block, heads: usize, dim: usize, rope: &RopeTable, eps: f32)
    -> Done;

    /// Inverse rope of `o` `[rows, heads, dim]` in place.
    fn inverse_rope(&self, lists: &Lists, o: &Block, heads: usize, dim: usize, rope: &RopeTable) -> Done;

    /// `up = silu(min(gate, limit)) * clamp(up, limit)` of `[rows, width]`.
    fn swiglu(&self, rows: usize, width: usize, gate: &Block, up: &Block, limit: f32) -> Done;

    /// `y += x` of `n` values.
    fn add(&self, n: usize, y: &Block, x: &Block) -> Done;

    /// Numbers of the experts `ids`, `n` i32, among those of this rank, which are `experts` of all; -1 for others.
    fn local_experts(&self, n: usize, ids: &Block, experts: Range<usize>, out: &Block) -> Done;

    /// The rows of `x`, `width` wide, that [`Lists::head_rows`] names, one after another in `out`.
    fn gather(&self, lists: &Lists, width: usize, x: &Block, out: &Block) -> Done;

    /// A token of each of the first rows of `logits` `[draws, vocab]`, in two values of its row of `chosen`: the
    /// token, an i32 in the place of an f32 and -1 if it cannot be chosen, and its log-probability.
    /// `false` if the host is to choose.
    fn choose(
        &self,
        draws: &[Draw],
        vocab: usize,
        logits: &Block,
        chosen: &Block,
    ) -> Result<bool, StepError> {
        let _ = (draws, vocab, logits, chosen);
        Ok(false)
    }

    /// The first values of a block, once everything before has been done; `copy` is where they are put if they are not in
    /// host memory.
    fn read<'a>(&self, block: &'a Block, n: usize, copy: &'a mut Vec<f32>) -> Result<&'a [f32], StepError>;
}
