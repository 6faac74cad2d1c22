//! `y = x W^T` with f32 activations, f32 or bf16 weights and f32 results, the same bits for any batch.
//!
//! Each result is one sum in the order of [`crate::lanes`], whatever the path:
//!
//! - few rows ([`few`]): weights are read once, straight from memory, and bf16 is widened on the fly;
//! - many rows ([`many`]): a block of rows is multiplied with one panel of weights after the other, each of which
//!   fits the L1 cache; bf16 panels are widened and interleaved first.
//!
//! Both share the register tiles of [`tile`]. Pieces for threads are rectangles of `y`.

mod few;
mod many;
pub(crate) mod tile;
mod weight;

use crate::isa::{Kernel, dispatch};
use crate::lanes::Lanes;
use crate::parallel::Parallel;

pub use weight::{Mat, Weight, dequantise};

/// From this number of rows on, packing a panel of weights costs less than it saves.
const MANY_ROWS: usize = 8;
/// Multiply-adds that are worth waking a thread for: a few microseconds.
const WORTH_A_THREAD: usize = 64 * 1024;

/// `y = x W^T` for `x [rows, k]` and `y [rows, n]`, both dense.
///
/// # Panics
/// If a length does not match.
pub fn linear(par: &dyn Parallel, x: &[f32], rows: usize, w: Mat<'_>, y: &mut [f32]) {
    let (x_needs, y_needs) = (rows.saturating_mul(w.k), rows.saturating_mul(w.n));
    assert_eq!(x.len(), x_needs, "linear: length of x for [rows {rows}, k {}]", w.k);
    assert_eq!(y.len(), y_needs, "linear: length of y for [rows {rows}, n {}]", w.n);
    linear_into(par, x, w.k, rows, w, y, w.n);
}

/// [`linear`] with rows of `x` that start every `x_stride` values and rows of `y` that start every `y_stride`
/// values, for products on a slice of the channels (grouped `wo_a`). The last row may end its slice; values of
/// `y` between the rows are left alone.
///
/// # Panics
/// If a length does not match, or a stride is shorter than its row.
pub fn linear_into(
    par: &dyn Parallel,
    x: &[f32],
    x_stride: usize,
    rows: usize,
    w: Mat<'_>,
    y: &mut [f32],
    y_stride: usize,
) {
    w.check("linear");
    let Mat { data, n, k } = w;
    if rows == 0 || n == 0 {
        return;
    }
    assert!(rows == 1 || x_stride >= k, "linear: x_stride {x_stride} is shorter than k {k}");
    assert!(rows == 1 || y_stride >= n, "linear: y_stride {y_stride} is shorter than n {n}");
    for (name, length, stride, width) in [("x", x.len(), x_stride, k), ("y", y.len(), y_stride, n)] {
        let needs = (rows - 1).saturating_mul(stride).saturating_add(width);
        assert!(
            length >= needs,
            "linear: {name} has {length} values, {rows} rows every {stride} need {needs}"
        );
    }

    let mut wide = Vec::new();
    let data = match data {
        Weight::F32(_) | Weight::Bf16(_) => data,
        _ => {
            wide.resize(n * k, 0.0);
            dequantise(w, &mut wide);
            Weight::F32(&wide)
        }
    };
    let product = Product { x: x.as_ptr(), x_stride, y: y.as_mut_ptr(), y_stride, k };
    let grid = Grid::new(par.threads(), rows, n, k);
    let body = |pieces: std::ops::Range<usize>| {
        for piece in pieces {
            // SAFETY: the lengths above cover every row and column of the grid, whose rectangles do not overlap.
            let kernel = unsafe { Rectangle::new(&product, data, grid.rectangle(piece)) };
            dispatch(kernel);
        }
    };
    if grid.pieces() == 1 { body(0..1) } else { par.run(grid.pieces(), 1, &body) }
}

/// Where the operands of a product lie.
#[derive(Clone, Copy)]
struct Product {
    x: *const f32,
    x_stride: usize,
    y: *mut f32,
    y_stride: usize,
    k: usize,
}

// SAFETY: threads read `x` and write disjoint rectangles of `y`.
unsafe impl Sync for Product {}

/// How `y` is cut into rectangles for threads.
#[derive(Clone, Copy)]
struct Grid {
    rows: usize,
    n: usize,
    row_step: usize,
    n_step: usize,
    /// Use the kernel for many rows.
    many: bool,
}

/// A range of rows and a range of columns of `y`.
#[derive(Clone, Copy)]
struct Area {
    row: usize,
    rows: usize,
    col: usize,
    cols: usize,
}

impl Grid {
    fn new(threads: usize, rows: usize, n: usize, k: usize) -> Self {
        let many = rows >= MANY_ROWS;
        let work = rows * n * k.max(1);
        let wanted = if threads == 1 { 1 } else { (work / WORTH_A_THREAD).clamp(1, 4 * threads) };
        let (row_step, n_step) = if many {
            let row_step = many::row_block(rows, k);
            let row_pieces = rows.div_ceil(row_step);
            (row_step, n.div_ceil(wanted.div_ceil(row_pieces)).next_multiple_of(many::panel_rows(k)))
        } else {
            (rows, n.div_ceil(wanted).next_multiple_of(8))
        };
        Self { rows, n, row_step, n_step, many }
    }

    fn pieces(&self) -> usize {
        self.rows.div_ceil(self.row_step) * self.n.div_ceil(self.n_step)
    }

    /// Neighbouring pieces share rows of `x`, which are then still in the cache.
    fn rectangle(&self, piece: usize) -> (Area, bool) {
        let across = self.n.div_ceil(self.n_step);
        let (row, col) = (piece / across * self.row_step, piece % across * self.n_step);
        let area =
            Area { row, rows: self.row_step.min(self.rows - row), col, cols: self.n_step.min(self.n - col) };
        (area, self.many)
    }
}

/// One rectangle of `y` as a kernel.
struct Rectangle<'a> {
    product: &'a Product,
    data: Weight<'a>,
    area: Area,
    many: bool,
}

impl<'a> Rectangle<'a> {
    /// # Safety
    /// The area lies within `x`, `y` and `data`, and nobody else touches the area of `y`.
    unsafe fn new(product: &'a Product, data: Weight<'a>, (area, many): (Area, bool)) -> Self {
        Self { product, data, area, many }
    }
}

impl Kernel for Rectangle<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { product, data, area, many } = self;
        // SAFETY: `new` was promised that the area is in bounds and ours.
        unsafe {
            match (data, many) {
                (Weight::F32(w), false) => few::multiply(lanes, product, w.as_ptr(), area),
                (Weight::Bf16(w), false) => few::multiply(lanes, product, w.as_ptr(), area),
                (Weight::F32(w), true) => many::multiply(lanes, product, w.as_ptr(), area),
                (Weight::Bf16(w), true) => many::multiply(lanes, product, w.as_ptr(), area),
                _ => unreachable!("packed weights were dequantised"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
