//! Products of many rows by cuBLASLt, as exact as those of the kernels: an input is the sum of three bf16, 8 bits of it each, weights
//! are bf16 as they are or made so without rounding, and sums are f32.

use super::Ops;
use super::shape::{address, elements, expect, of_weight};
use crate::failed;
use hotseam_cuda::Buffer;
use hotseam_cuda::cublaslt::{CublasLt, LtError, Plan, Product};
use hotseam_sdk::abi::{TensorRef, WeightRef, dtype, weight_format};
use hotseam_sdk::{Error, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Fewest rows: for fewer, reading the weights and making bf16 of them is most of the time, and the kernels do both at once.
const LEAST_ROWS: i64 = 256;
/// Parts of an input.
const PARTS: usize = 3;
/// Threads of the kernels that give sixteen values a thread.
const THREADS: u32 = 256;
/// Values of a thread of those.
const EACH: u64 = 16;
/// What the library takes for granted of the addresses of matrices.
const ALIGNMENT: u64 = 256;

/// The library, what it was found to do for each shape, and memory for bf16 copies.
#[derive(Debug)]
pub struct Dense {
    lt: CublasLt,
    plans: HashMap<Product, Option<Plan>>,
    parts: Buffer,
    weights: Buffer,
}

/// `SplitParams` of `cuda/ops.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SplitParams {
    x: u64,
    parts: u64,
    n: u64,
    pitch: u64,
}

/// `NarrowParams` of `cuda/ops.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NarrowParams {
    w: WeightRef,
    out: u64,
    n: u64,
    k: u64,
}

/// Values from one part of an input of `n` values to the next.
fn pitch(n: u64) -> u64 {
    n.next_multiple_of(ALIGNMENT / 2)
}

fn refused(error: LtError) -> Error {
    Error::internal(error.to_string())
}

impl Dense {
    /// Opens the library for the current context, for inputs of at most `input` values and weights in FP8 of at most `weights`.
    ///
    /// # Errors
    /// If it is not there or refuses, or there is not the memory.
    pub fn open(input: usize, weights: usize) -> Result<Self> {
        let lt = CublasLt::open().map_err(refused)?;
        let room = |bytes: usize| Buffer::new(bytes.max(1), "bf16 copies for cuBLASLt").map_err(failed);
        let parts = room(PARTS * 2 * pitch(input as u64) as usize)?;
        Ok(Self { lt, plans: HashMap::new(), parts, weights: room(2 * weights)? })
    }

    /// Whether it makes a product of these.
    pub fn serves(rows: i64, w: &WeightRef) -> bool {
        rows >= LEAST_ROWS && matches!(w.format, weight_format::BF16 | weight_format::FP8_BLOCK)
    }

    /// Takes the input of the products that follow: `x` `[rows, groups, k]` f32. `false` if it is larger than any that was announced.
    ///
    /// # Errors
    /// If its shape or dtype is another, or the driver refuses.
    pub fn input(&mut self, ops: &Ops, stream: u64, x: &TensorRef) -> Result<bool> {
        let [rows, groups, k] = [x.shape[0], x.shape[1], x.shape[2]];
        expect(x, "x", dtype::F32, &[rows, groups, k])?;
        let n = (rows * groups * k) as u64;
        if PARTS * 2 * pitch(n) as usize > self.parts.bytes() {
            return Ok(false);
        }
        let params = SplitParams { x: address(x), parts: self.parts.address(), n, pitch: pitch(n) };
        let grid = [n.div_ceil(EACH * u64::from(THREADS)) as u32, 1, 1];
        // SAFETY: the struct is the kernel's; what it names is memory of the device.
        unsafe { ops.split.launch_early(stream, grid, THREADS, 0, &params).map_err(failed)? };
        Ok(true)
    }

    /// The product of the input `x`, which was taken last, and `w` `[groups * n, k]` into `y`, `[rows, groups, n]` f32 in order. `false` if
    /// the library has no way to make it.
    ///
    /// # Errors
    /// If shapes are others, or the driver or the library refuses.
    pub fn product(
        &mut self,
        ops: &Ops,
        stream: u64,
        x: &TensorRef,
        w: &WeightRef,
        y: &TensorRef,
    ) -> Result<bool> {
        let [rows, groups, k] = [x.shape[0], x.shape[1], x.shape[2]];
        let (outputs, inputs) = of_weight(w);
        let n = outputs / groups.max(1);
        if inputs != k || n * groups != outputs || elements(y, "y")? != (rows * outputs) as u64 {
            let (w, y) = (w.data.shape, y.shape);
            return Err(Error::argument(format!("w is {w:?} of {groups} groups of {k} inputs, y {y:?}")));
        }
        let sizes = [rows, n, k, groups * k, groups * n].map(|size| size as usize);
        let [of_rows, of_n, of_k, x_pitch, y_pitch] = sizes;
        let product = Product { rows: of_rows, n: of_n, k: of_k, x_pitch, y_pitch };
        let lt = &self.lt;
        let plan = match self.plans.entry(product) {
            Entry::Occupied(plan) => plan.into_mut(),
            Entry::Vacant(place) => place.insert(lt.plan(product).map_err(refused)?),
        };
        let Some(made) = &*plan else { return Ok(false) };
        let weights = match w.format {
            weight_format::BF16 => w.data.data as u64,
            _ if 2 * (outputs * k) as usize > self.weights.bytes() => return Ok(false),
            _ => {
                let out = self.weights.address();
                let params = NarrowParams { w: *w, out, n: outputs as u64, k: k as u64 };
                let grid = [outputs as u32, (k as u64).div_ceil(EACH).div_ceil(u64::from(THREADS)) as u32, 1];
                // SAFETY: as for `input`.
                unsafe { ops.narrow.launch_early(stream, grid, THREADS, 0, &params).map_err(failed)? };
                out
            }
        };
        let bytes = 2 * pitch((rows * groups * k) as u64);
        for group in 0..groups as u64 {
            let (n, k) = (n as u64, k as u64);
            // The smallest first.
            for part in (0..PARTS as u64).rev() {
                let x = self.parts.address() + part * bytes + 2 * group * k;
                let operands = [weights + 2 * group * n * k, x, address(y) + 4 * group * n];
                // SAFETY: the shapes are those of the plan, and the memory outlives the stream's work.
                let there = unsafe { lt.product(made, operands, part + 1 < PARTS as u64, stream) };
                if !there.map_err(refused)? {
                    *plan = None;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
