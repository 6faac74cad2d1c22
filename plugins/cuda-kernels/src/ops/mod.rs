//! What the host does itself on a device, between the calls of plugins. Everything but the weights is f32 and contiguous; what
//! a step has of it is in `host/engine/src/forward`.

mod dense;
mod linear;
mod shape;

pub use dense::Dense;

use crate::failed;
use crate::images::OPS;
use hotseam_cuda::{Kernel, Module};
use hotseam_sdk::Result;
use hotseam_sdk::abi::{RopeTables, TensorRef, dtype};
use shape::{address, elements, expect};

/// Threads of the kernels that give each value a thread.
const THREADS: u32 = 256;
/// Threads of the kernel that chooses tokens.
const SAMPLE_THREADS: u32 = 1024;
/// Threads of the kernels that give a row a block.
const ROW_THREADS: u32 = 1024;

/// The kernels, loaded into the current context. All methods enqueue on `stream` and do not wait. Tensors are memory of the
/// device, which outlives what is enqueued.
#[derive(Debug)]
pub struct Ops {
    embed: Kernel,
    rms_norm: Kernel,
    heads: Kernel,
    /// With 1, 2 and 4 tiles a block.
    linear_stream: [Kernel; 3],
    linear_few: Kernel,
    linear_many: Kernel,
    swiglu: Kernel,
    add: Kernel,
    local_experts: Kernel,
    gather: Kernel,
    sample: Kernel,
    count: Kernel,
    split: Kernel,
    narrow: Kernel,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct EmbedParams {
    table: TensorRef,
    tokens: u64,
    streams: u64,
    hc: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct NormParams {
    x: u64,
    weight: u64,
    out: u64,
    width: u32,
    eps: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct HeadsParams {
    heads_data: u64,
    positions: u64,
    rope: RopeTables,
    rows: u32,
    heads: u32,
    dim: u32,
    eps: f32,
    norm: u32,
    inverse: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SwigluParams {
    gate: u64,
    up: u64,
    n: u64,
    limit: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AddParams {
    x: u64,
    y: u64,
    n: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct LocalExpertsParams {
    ids: u64,
    out: u64,
    n: u64,
    first: i32,
    count: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GatherParams {
    x: u64,
    rows: u64,
    out: u64,
    x_rows: u32,
    width: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CountParams {
    counter: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SampleParams {
    logits: u64,
    draws: u64,
    chosen: u64,
    width: u32,
}

impl Ops {
    /// Loads the kernels. May synchronise the device.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load() -> Result<Self> {
        let module = Module::load(OPS).map_err(failed)?;
        let kernel = |name: &str| module.kernel(&format!("hotseam_ops_{name}")).map_err(failed);
        Ok(Self {
            embed: kernel("embed")?,
            rms_norm: kernel("rms_norm")?,
            heads: kernel("heads")?,
            linear_stream: [kernel("linear_stream1")?, kernel("linear_stream2")?, kernel("linear_stream4")?],
            linear_few: kernel("linear_few")?,
            linear_many: kernel("linear_many")?,
            swiglu: kernel("swiglu")?,
            add: kernel("add")?,
            local_experts: kernel("local_experts")?,
            gather: kernel("gather")?,
            sample: kernel("sample")?,
            count: kernel("count")?,
            split: kernel("split")?,
            narrow: kernel("narrow")?,
        })
    }

    /// The embedding of each token in all streams of its row: `table [vocab, hidden]` f32 or bf16, `tokens [rows]` i32,
    /// `streams [rows, hc, hidden]`. A token outside the table gives zeros.
    ///
    /// # Errors
    /// If shapes or dtypes are others, or the driver refuses.
    pub fn embed(
        &self,
        stream: u64,
        table: &TensorRef,
        tokens: &TensorRef,
        streams: &TensorRef,
    ) -> Result<()> {
        let [rows, hc, hidden] = [streams.shape[0], streams.shape[1], streams.shape[2]];
        expect(tokens, "tokens", dtype::I32, &[rows])?;
        expect(streams, "streams", dtype::F32, &[rows, hc, hidden])?;
        if table.dtype != dtype::BF16 {
            expect(table, "table", dtype::F32, &[table.shape[0], hidden])?;
        }
        let params =
            EmbedParams { table: *table, tokens: address(tokens), streams: address(streams), hc: hc as u32 };
        let grid = [(hidden as u32).div_ceil(THREADS), rows as u32, 1];
        // SAFETY: the struct is the kernel's; what it names is memory of the device, as this type says.
        unsafe { self.embed.launch_early(stream, grid, THREADS, 0, &params).map_err(failed) }
    }

    /// `out = x * rsqrt(mean(x^2) + eps) * weight` for each row of `x [rows, width]`; `out` may be `x`.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn rms_norm(
        &self,
        stream: u64,
        x: &TensorRef,
        weight: &TensorRef,
        eps: f32,
        out: &TensorRef,
    ) -> Result<()> {
        let (rows, width) = (x.shape[0], x.shape[1]);
        expect(x, "x", dtype::F32, &[rows, width])?;
        expect(weight, "weight", dtype::F32, &[width])?;
        expect(out, "out", dtype::F32, &[rows, width])?;
        let width = width as u32;
        let params = NormParams { x: address(x), weight: address(weight), out: address(out), width, eps };
        // SAFETY: as for `embed`.
        unsafe {
            self.rms_norm
                .launch_early(stream, [rows as u32, 1, 1], row_threads(width), 0, &params)
                .map_err(failed)
        }
    }

    /// RMS norm without a weight, then rope, of each head of `q [rows, heads, dim]`, in place. `positions [rows]` i32; a row
    /// whose position is not in the tables is left alone.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn norm_and_rope(
        &self,
        stream: u64,
        q: &TensorRef,
        positions: &TensorRef,
        rope: &RopeTables,
        eps: f32,
    ) -> Result<()> {
        self.turn(stream, q, positions, rope, Some(eps), false)
    }

    /// Turns each head of `x [rows, heads, dim]` back, in place; otherwise as [`Self::norm_and_rope`].
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn inverse_rope(
        &self,
        stream: u64,
        x: &TensorRef,
        positions: &TensorRef,
        rope: &RopeTables,
    ) -> Result<()> {
        self.turn(stream, x, positions, rope, None, true)
    }

    fn turn(
        &self,
        stream: u64,
        x: &TensorRef,
        positions: &TensorRef,
        rope: &RopeTables,
        eps: Option<f32>,
        inverse: bool,
    ) -> Result<()> {
        let [rows, heads, dim] = [x.shape[0], x.shape[1], x.shape[2]];
        let table = [rope.cos.shape[0], rope.cos.shape[1].min(dim / 2)];
        expect(x, "heads", dtype::F32, &[rows, heads, dim])?;
        expect(positions, "positions", dtype::I32, &[rows])?;
        expect(&rope.cos, "rope.cos", dtype::F32, &table)?;
        expect(&rope.sin, "rope.sin", dtype::F32, &table)?;
        let params = HeadsParams {
            heads_data: address(x),
            positions: address(positions),
            rope: *rope,
            rows: rows as u32,
            heads: heads as u32,
            dim: dim as u32,
            eps: eps.unwrap_or(0.0),
            norm: u32::from(eps.is_some()),
            inverse: u32::from(inverse),
        };
        let grid = [(params.rows * params.heads).div_ceil(THREADS / 32), 1, 1];
        // SAFETY: as for `embed`.
        unsafe { self.heads.launch_early(stream, grid, THREADS, 0, &params).map_err(failed) }
    }

    /// `up = silu(min(gate, limit)) * clamp(up, -limit, limit)`, for `gate` and `up` of one shape.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn swiglu(&self, stream: u64, gate: &TensorRef, up: &TensorRef, limit: f32) -> Result<()> {
        let n = elements(up, "up")?;
        expect(gate, "gate", dtype::F32, &up.shape[..up.ndim as usize])?;
        let params = SwigluParams { gate: address(gate), up: address(up), n, limit };
        // SAFETY: as for `embed`.
        unsafe { self.swiglu.launch_early(stream, each(n), THREADS, 0, &params).map_err(failed) }
    }

    /// `y += x`, of one shape.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn add(&self, stream: u64, x: &TensorRef, y: &TensorRef) -> Result<()> {
        let n = elements(y, "y")?;
        expect(x, "x", dtype::F32, &y.shape[..y.ndim as usize])?;
        let params = AddParams { x: address(x), y: address(y), n };
        // SAFETY: as for `embed`.
        unsafe { self.add.launch_early(stream, each(n), THREADS, 0, &params).map_err(failed) }
    }

    /// `out[i] = ids[i] - first` where that is one of `count`, else -1; both i32 of one shape.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn local_experts(
        &self,
        stream: u64,
        ids: &TensorRef,
        (first, count): (i32, i32),
        out: &TensorRef,
    ) -> Result<()> {
        let n = ids.shape[..ids.ndim as usize].iter().product::<i64>() as u64;
        expect(ids, "ids", dtype::I32, &ids.shape[..ids.ndim as usize])?;
        expect(out, "out", dtype::I32, &ids.shape[..ids.ndim as usize])?;
        let params = LocalExpertsParams { ids: address(ids), out: address(out), n, first, count };
        // SAFETY: as for `embed`.
        unsafe { self.local_experts.launch_early(stream, each(n), THREADS, 0, &params).map_err(failed) }
    }

    /// `out[i] = x[rows[i]]`: `x [n, width]`, `rows [m]` i32, `out [m, width]`. A row that is not there gives zeros.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn gather(&self, stream: u64, x: &TensorRef, rows: &TensorRef, out: &TensorRef) -> Result<()> {
        let (n, m, width) = (x.shape[0], out.shape[0], out.shape[1]);
        expect(x, "x", dtype::F32, &[n, width])?;
        expect(rows, "rows", dtype::I32, &[m])?;
        expect(out, "out", dtype::F32, &[m, width])?;
        let params = GatherParams {
            x: address(x),
            rows: address(rows),
            out: address(out),
            x_rows: n as u32,
            width: width as u32,
        };
        let grid = [params.width.div_ceil(THREADS), m as u32, 1];
        // SAFETY: as for `embed`.
        unsafe { self.gather.launch_early(stream, grid, THREADS, 0, &params).map_err(failed) }
    }

    /// A token of each row of `logits [rows, width]`. `draws` is the device address of `[rows]` of temperature and `top_p`, f32, and a
    /// number in [0, 1), f64; `chosen` `[rows, 2]` gets the token, an i32 in the place of an f32, and its log-probability at
    /// temperature 1, off by at most `width / 2^32 + (|it| + ln width) / 2^23`. The token is -1 if a logit is NaN or the largest is
    /// not finite, which the sampler refuses.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn sample(&self, stream: u64, logits: &TensorRef, draws: u64, chosen: &TensorRef) -> Result<()> {
        let (rows, width) = (logits.shape[0], logits.shape[1]);
        expect(logits, "logits", dtype::F32, &[rows, width])?;
        expect(chosen, "chosen", dtype::F32, &[rows, 2])?;
        let params =
            SampleParams { logits: address(logits), draws, chosen: address(chosen), width: width as u32 };
        // SAFETY: as for `embed`.
        unsafe {
            self.sample.launch_early(stream, [rows as u32, 1, 1], SAMPLE_THREADS, 0, &params).map_err(failed)
        }
    }

    /// Adds one to the u64 at the device address `counter`, behind what is on the stream.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn count(&self, stream: u64, counter: u64) -> Result<()> {
        // SAFETY: as for `embed`.
        unsafe { self.count.launch_early(stream, [1, 1, 1], 32, 0, &CountParams { counter }).map_err(failed) }
    }
}

/// Threads of a block that has a row of `width` values.
fn row_threads(width: u32) -> u32 {
    width.div_ceil(4).next_multiple_of(32).clamp(32, ROW_THREADS)
}

/// A thread for each of `n` values.
fn each(n: u64) -> [u32; 3] {
    [n.div_ceil(u64::from(THREADS)) as u32, 1, 1]
}
