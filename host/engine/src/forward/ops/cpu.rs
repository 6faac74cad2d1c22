//! The host's own operations on the CPU.

use super::rows::{for_rows, mat};
use super::{Block, Done, Ops, Product, StepError};
use crate::forward::lists::{HeadRows, Lists};
use hotseam_abi::ExpertRef;
use hotseam_cuda::CudaError;
use hotseam_kv::Plan;
use hotseam_loader::pool;
use hotseam_model::{Matrix, RopeTable, Tensor};
use hotseam_ops::{Amx, Linear, WithAmx, dot, linear, linear_grouped, linears, rms_norm, rope, swiglu};
use hotseam_slots::Phase;
use std::ops::Range;

/// On the threads of the host's pool.
pub(crate) struct Cpu {
    /// What products of prefill steps use.
    amx: Option<Amx>,
    /// Whether the running step is one.
    prefill: bool,
}

impl Cpu {
    /// With the processor's matrix tiles for products of prefill steps, if `amx` and it has them.
    pub(crate) fn new(amx: bool) -> Self {
        Self { amx: amx.then(Amx::detect).and_then(Result::ok), prefill: false }
    }

    fn pool(&self) -> WithAmx<'static> {
        WithAmx::new(pool(), self.amx.filter(|_| self.prefill))
    }
}

/// The first `n` values of a block.
fn read(block: &Block, n: usize) -> &[f32] {
    assert!(n * 4 <= block.bytes, "{n} values of {} bytes", block.bytes);
    // SAFETY: inside the block, which is initialised host memory; the operations below write other blocks meanwhile.
    unsafe { std::slice::from_raw_parts(block.ptr(), n) }
}

/// As [`read`], to be written.
#[allow(clippy::mut_from_ref, reason = "blocks are written through their address, as seam calls do")]
fn write(block: &Block, n: usize) -> &mut [f32] {
    assert!(n * 4 <= block.bytes, "{n} values of {} bytes", block.bytes);
    // SAFETY: as in `read`; only the engine thread works on blocks, and each operation takes a block once.
    unsafe { std::slice::from_raw_parts_mut(block.ptr(), n) }
}

/// The positions of a step's rows.
fn positions(lists: &Lists) -> &[i32] {
    // SAFETY: the lists are the host's own, and live until the next step.
    unsafe { slice(lists.batch.positions, lists.rows()) }
}

/// A slice at `data`, which may be null or dangling if it is empty.
///
/// # Safety
/// As [`std::slice::from_raw_parts`].
unsafe fn slice<'a, T>(data: *const T, n: usize) -> &'a [T] {
    match n == 0 || data.is_null() {
        true => &[],
        // SAFETY: the caller's contract.
        false => unsafe { std::slice::from_raw_parts(data, n) },
    }
}

impl Ops for Cpu {
    fn memory(&self, bytes: usize, _what: &'static str) -> Result<Block, CudaError> {
        Ok(Block::host(bytes))
    }

    fn experts(&self, _experts: &[ExpertRef]) -> Result<Block, CudaError> {
        Ok(Block::host(0))
    }

    fn begin(
        &mut self,
        phase: Phase,
        plan: &Plan,
        tokens: &[i32],
        head: &HeadRows,
        _repeats: bool,
    ) -> Result<Lists, StepError> {
        self.prefill = phase == Phase::Prefill;
        Ok(Lists::in_host_memory(plan, tokens, head))
    }

    fn embed(&self, lists: &Lists, table: &Tensor, hc: usize, streams: &Block) -> Done {
        let (rows, table) = (lists.rows(), mat(table));
        // SAFETY: as for positions.
        let tokens = unsafe { slice(lists.tokens, rows) };
        let hidden = table.k;
        for_rows(&self.pool(), write(streams, rows * hc * hidden), hc * hidden, |row, streams| {
            let (first, rest) = streams.split_at_mut(hidden);
            table.row_f32(tokens[row] as usize, first);
            rest.chunks_exact_mut(hidden).for_each(|stream| stream.copy_from_slice(first));
        });
        Ok(())
    }

    fn rms_norm(&self, rows: usize, x: &Block, weight: &Tensor, eps: f32, out: &Block) -> Done {
        let (weight, par) = (weight.f32(), self.pool());
        let width = weight.len();
        if x.ptr == out.ptr {
            for_rows(&par, write(x, rows * width), width, |_, row| {
                let scale = 1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt();
                row.iter_mut().zip(weight).for_each(|(v, w)| *v = w * (*v * scale));
            });
        } else {
            let x = read(x, rows * width);
            for_rows(&par, write(out, rows * width), width, |row, out| {
                rms_norm(&x[row * width..(row + 1) * width], Some(weight), eps, out);
            });
        }
        Ok(())
    }

    fn products(&self, rows: usize, products: &mut dyn Iterator<Item = Product<'_>>) -> Done {
        linears(
            &self.pool(),
            rows,
            products.map(|p| Linear::dense(read(p.x, rows * p.w.k), p.w.mat(), write(p.y, rows * p.w.n))),
        );
        Ok(())
    }

    fn project(&self, rows: usize, x: &Block, w: &Tensor, y: &Block) -> Done {
        let w = mat(w);
        linear(&self.pool(), read(x, rows * w.k), rows, w, write(y, rows * w.n));
        Ok(())
    }

    fn grouped(&self, rows: usize, groups: usize, x: &Block, w: &Matrix, y: &Block) -> Done {
        let (x, y) = (read(x, rows * groups * w.k), write(y, rows * w.n));
        linear_grouped(&self.pool(), x, rows, groups, w.mat(), y);
        Ok(())
    }

    fn queries(
        &self,
        lists: &Lists,
        q: &Block,
        heads: usize,
        dim: usize,
        tables: &RopeTable,
        eps: f32,
    ) -> Done {
        let (positions, width) = (positions(lists), heads * dim);
        for_rows(&self.pool(), write(q, positions.len() * width), width, |row, heads| {
            let (cos, sin) = tables.row(positions[row] as usize);
            for head in heads.chunks_exact_mut(dim) {
                let scale = 1.0 / (dot(head, head) / dim as f32 + eps).sqrt();
                head.iter_mut().for_each(|v| *v *= scale);
                rope(head, cos, sin, false);
            }
        });
        Ok(())
    }

    fn inverse_rope(&self, lists: &Lists, o: &Block, heads: usize, dim: usize, tables: &RopeTable) -> Done {
        let (positions, width) = (positions(lists), heads * dim);
        for_rows(&self.pool(), write(o, positions.len() * width), width, |row, heads| {
            let (cos, sin) = tables.row(positions[row] as usize);
            heads.chunks_exact_mut(dim).for_each(|head| rope(head, cos, sin, true));
        });
        Ok(())
    }

    fn swiglu(&self, rows: usize, width: usize, gate: &Block, up: &Block, limit: f32) -> Done {
        let gate = read(gate, rows * width);
        for_rows(&self.pool(), write(up, rows * width), width, |row, up| {
            swiglu_in_place(&gate[row * width..(row + 1) * width], up, limit);
        });
        Ok(())
    }

    fn add(&self, n: usize, y: &Block, x: &Block) -> Done {
        write(y, n).iter_mut().zip(read(x, n)).for_each(|(y, x)| *y += x);
        Ok(())
    }

    fn local_experts(&self, n: usize, ids: &Block, experts: Range<usize>, out: &Block) -> Done {
        // SAFETY: both hold `n` i32 and no reference to them is alive.
        let (ids, out) = unsafe {
            (
                std::slice::from_raw_parts(ids.ptr::<i32>(), n),
                std::slice::from_raw_parts_mut(out.ptr::<i32>(), n),
            )
        };
        for (out, id) in out.iter_mut().zip(ids) {
            let own = usize::try_from(*id).ok().filter(|id| experts.contains(id));
            *out = own.map_or(-1, |id| (id - experts.start) as i32);
        }
        Ok(())
    }

    fn gather(&self, lists: &Lists, width: usize, x: &Block, out: &Block) -> Done {
        let n = lists.head.n_rows as usize;
        // SAFETY: as for positions.
        let rows = unsafe { slice(lists.head_rows, n) };
        let x = read(x, lists.rows() * width);
        for (out, row) in write(out, n * width).chunks_exact_mut(width).zip(rows) {
            out.copy_from_slice(&x[*row as usize * width..][..width]);
        }
        Ok(())
    }

    fn read<'a>(&self, block: &'a Block, n: usize, _copy: &'a mut Vec<f32>) -> Result<&'a [f32], StepError> {
        Ok(read(block, n))
    }
}

/// `up = silu(min(gate, limit)) * clamp(up)`, through a block of the stack.
fn swiglu_in_place(gate: &[f32], up: &mut [f32], limit: f32) {
    const BLOCK: usize = 64;
    let mut out = [0.0; BLOCK];
    for (gate, up) in gate.chunks(BLOCK).zip(up.chunks_mut(BLOCK)) {
        let out = &mut out[..up.len()];
        swiglu(gate, up, limit, out);
        up.copy_from_slice(out);
    }
}
