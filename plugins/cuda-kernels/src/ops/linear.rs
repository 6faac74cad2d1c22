//! Products with weight matrices.

use super::Ops;
use super::shape::{address, expect, of_weight};
use crate::failed;
use crate::gemm::{FEW_ROWS, TILE, TILE_THREADS, few_threads, is_few};
use crate::stream;
use hotseam_sdk::abi::{TensorRef, WeightRef, dtype};
use hotseam_sdk::{Error, Result};

/// Most matrices of one launch.
const PARTS_MOST: usize = 6;

#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    w: WeightRef,
    y: u64,
    n: u32,
    first_block: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: u64,
    rows: u32,
    groups: u32,
    k: u32,
    parts: u32,
    part: [Part; PARTS_MOST],
}

impl Ops {
    /// `y = x W^T` for each matrix `W [n, k]` and its `y [rows, n]`, all of the same `x [rows, k]`, in one launch. At most six.
    ///
    /// # Errors
    /// If shapes or dtypes are others, or the driver refuses.
    pub fn linears(&self, stream: u64, x: &TensorRef, products: &[(WeightRef, TensorRef)]) -> Result<()> {
        let (rows, k) = (x.shape[0], x.shape[1]);
        expect(x, "x", dtype::F32, &[rows, k])?;
        for (w, y) in products {
            expect(y, "y", dtype::F32, &[rows, of_weight(w).0])?;
        }
        self.products(stream, x, rows, 1, k, products)
    }

    /// `y = x W^T`: `x [rows, k]`, `w [n, k]`, `y [rows, n]`.
    ///
    /// # Errors
    /// As [`Self::linears`].
    pub fn linear(&self, stream: u64, x: &TensorRef, w: &WeightRef, y: &TensorRef) -> Result<()> {
        self.linears(stream, x, &[(*w, *y)])
    }

    /// `y[g] = x[g] W[g]^T`: `x [rows, groups, k]`, `w [groups * n, k]`, `y [rows, groups, n]` (the grouped `wo_a`).
    ///
    /// # Errors
    /// As [`Self::linears`].
    pub fn linear_grouped(&self, stream: u64, x: &TensorRef, w: &WeightRef, y: &TensorRef) -> Result<()> {
        let [rows, groups, k] = [x.shape[0], x.shape[1], x.shape[2]];
        expect(x, "x", dtype::F32, &[rows, groups, k])?;
        expect(y, "y", dtype::F32, &[rows, groups, y.shape[2]])?;
        if of_weight(w).0 != groups * y.shape[2] {
            return Err(Error::argument(format!("w is {:?}, y {:?}", w.data.shape, y.shape)));
        }
        self.products(stream, x, rows, groups, k, &[(*w, *y)])
    }

    fn products(
        &self,
        stream: u64,
        x: &TensorRef,
        rows: i64,
        groups: i64,
        k: i64,
        products: &[(WeightRef, TensorRef)],
    ) -> Result<()> {
        let Some((first, _)) = products.first() else { return Ok(()) };
        if products.len() > PARTS_MOST {
            return Err(Error::argument(format!(
                "{} matrices at once, at most {PARTS_MOST}",
                products.len()
            )));
        }
        if let Some((w, _)) = products.iter().find(|(w, _)| of_weight(w).1 != k) {
            return Err(Error::argument(format!("w is {:?} of {k} inputs", w.data.shape)));
        }
        let outputs = |w: &WeightRef| (of_weight(w).0 / groups.max(1)) as u32;
        let all = products.iter().map(|(w, _)| outputs(w)).sum::<u32>() * groups as u32;
        let rows = rows as u32;
        // The scales of FP8 are of 128 outputs, and a block has those of one.
        let whole = |w: &WeightRef| groups == 1 || outputs(w) % (4 * stream::OUTPUTS) == 0;
        let streams = rows <= stream::MOST_ROWS
            && stream::aligned(x.data)
            && products.iter().all(|(w, _)| stream::serves(w, k) && whole(w));
        let (kernel, of_block, threads, of_y) = if streams {
            let blocks = |tiles: u32| {
                let of_rows = rows.div_ceil(stream::ROWS) * groups as u32;
                products.iter().map(|(w, _)| outputs(w).div_ceil(tiles * stream::OUTPUTS)).sum::<u32>()
                    * of_rows
            };
            let tiles = stream::tiles(blocks);
            let kernel = &self.linear_stream[tiles.trailing_zeros() as usize];
            (kernel, tiles * stream::OUTPUTS, stream::THREADS, stream::ROWS)
        } else if is_few(rows, all) {
            let threads = few_threads(all);
            (&self.linear_few, threads / 32 * 2, threads, FEW_ROWS)
        } else {
            (&self.linear_many, TILE, TILE_THREADS, TILE)
        };
        let none = Part { w: *first, y: 0, n: 0, first_block: u32::MAX };
        let (mut part, mut blocks) = ([none; PARTS_MOST], 0);
        for (part, (w, y)) in part.iter_mut().zip(products) {
            *part = Part { w: *w, y: address(y), n: outputs(w), first_block: blocks };
            blocks += part.n.div_ceil(of_block);
        }
        let (x, k, parts) = (address(x), k as u32, products.len() as u32);
        let params = Params { x, rows, groups: groups as u32, k, parts, part };
        let row_blocks = rows.div_ceil(of_y);
        let grid = match streams {
            true => [blocks * row_blocks, 1, params.groups],
            false => [blocks, row_blocks, params.groups],
        };
        // SAFETY: the struct is the kernels'; what it names is memory of the device, as this type says.
        unsafe { kernel.launch_early(stream, grid, threads, 0, &params).map_err(failed) }
    }
}
