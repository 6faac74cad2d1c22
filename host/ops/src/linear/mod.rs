//! `y = x W^T` with f32 activations, weights of any format and f32 results, the same bits for any batch.
//!
//! Each result is one sum in the order of [`crate::lanes`], whatever the path:
//!
//! - few rows ([`few`]): weights are read once, straight from memory, and widened on the fly;
//! - many rows ([`many`]): a block of rows is multiplied with one panel of weights after the other, each of which
//!   is widened once and fits the L1 cache.
//!
//! Both read weights through a [`source::Source`]. Pieces for threads are rectangles of `y`.

mod few;
mod many;
mod source;
pub(crate) mod tile;
mod weight;

use std::cell::RefCell;

use source::Source;

use crate::isa::{Isa, Kernel};
use crate::lanes::Lanes;
use crate::parallel::Parallel;

pub use weight::{Mat, Weight, dequantise};

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

    match data {
        Weight::Fp8 { scales, .. } if !source::fp8_fits(scales) => {
            let mut wide = vec![0.0; n * k];
            dequantise(w, &mut wide);
            let wide = Mat { data: Weight::F32(&wide), n, k };
            return linear_into(par, x, x_stride, rows, wide, y, y_stride);
        }
        _ => {}
    }
    let product = Product { x: x.as_ptr(), x_stride, y: y.as_mut_ptr(), y_stride, k };
    let grid = Grid::new(par.threads(), rows, n, k, many_rows(data));
    let isa = Isa::best();
    let run = |product: &Product| {
        let body = |pieces: std::ops::Range<usize>| {
            for piece in pieces {
                // SAFETY: the lengths above cover every row and column of the grid, whose rectangles do not overlap.
                unsafe { rectangle(isa, product, data, grid.rectangle(piece)) };
            }
        };
        if grid.pieces() == 1 { body(0..1) } else { par.run(grid.pieces(), 1, &body) }
    };
    if grid.many || !in_nibbles(data) {
        return run(&product);
    }
    let mut shuffled = NIBBLES.take();
    shuffled.resize(rows * k, 0.0);
    for row in 0..rows {
        isa.run(Shuffle { from: &x[row * x_stride..][..k], to: &mut shuffled[row * k..][..k] });
    }
    run(&Product { x: shuffled.as_ptr(), x_stride: k, ..product });
    NIBBLES.set(shuffled);
}

thread_local! {
    /// Rows of `x` in the order of nibbles; grows to the largest seen.
    static NIBBLES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Copies numbers, each eight of them in the order of nibbles; there are as many as FP4 allows: eights.
struct Shuffle<'a> {
    from: &'a [f32],
    to: &'a mut [f32],
}

impl Kernel for Shuffle<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (from, to) = (self.from.as_chunks().0, self.to.as_chunks_mut().0);
        for (from, to) in from.iter().zip(to) {
            lanes.put(lanes.nibble_order(lanes.get(from)), to);
        }
    }
}

/// Calls a body with the source of a weight and its number of vectors.
macro_rules! with_source {
    ($data:expr, $k:expr, $w:ident => $body:expr) => {
        match $data {
            Weight::F32(data) => {
                let $w = $crate::linear::source::Plain { data: data.as_ptr(), k: $k };
                $body
            }
            Weight::Bf16(data) => {
                let $w = $crate::linear::source::Plain { data: data.as_ptr(), k: $k };
                $body
            }
            Weight::Fp8 { codes, scales, skip } => {
                let (codes, scales) = (codes.as_ptr(), scales.as_ptr());
                let $w = $crate::linear::source::Fp8::<false> { codes, scales, skip, k: $k };
                $body
            }
            Weight::Mxfp4 { codes, scales } => {
                let $w =
                    $crate::linear::source::Mxfp4 { codes: codes.as_ptr(), scales: scales.as_ptr(), k: $k };
                $body
            }
            Weight::Nvfp4 { codes, scales, global } => {
                let $w = $crate::linear::source::Nvfp4 {
                    codes: codes.as_ptr(),
                    scales: scales.as_ptr(),
                    global,
                    k: $k,
                };
                $body
            }
        }
    };
}

use with_source;

/// Number of rows from which on weights are unpacked into panels.
fn many_rows(data: Weight<'_>) -> usize {
    fn of<const S: usize, W: Source<S>>(_: W) -> usize {
        W::MANY_ROWS
    }
    with_source!(data, 0, w => of(w))
}

/// Whether few rows of `x` must come in the order of nibbles.
fn in_nibbles(data: Weight<'_>) -> bool {
    fn of<const S: usize, W: Source<S>>(_: W) -> bool {
        W::NIBBLES
    }
    with_source!(data, 0, w => of(w))
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

impl Product {
    /// A row of `x`.
    ///
    /// # Safety
    /// It exists.
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> &[f32] {
        // SAFETY: as promised by the caller.
        unsafe { std::slice::from_raw_parts(self.x.add(row * self.x_stride), self.k) }
    }
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
    fn new(threads: usize, rows: usize, n: usize, k: usize, many_rows: usize) -> Self {
        let many = rows >= many_rows;
        let work = rows * n * k.max(1);
        let wanted = if threads == 1 { 1 } else { (work / WORTH_A_THREAD).clamp(1, 4 * threads) };
        let (row_step, n_step) = if many {
            let row_step = many::row_block(rows);
            let row_pieces = rows.div_ceil(row_step);
            (row_step, n.div_ceil(wanted.div_ceil(row_pieces)).next_multiple_of(many::COLUMNS))
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

/// Computes one rectangle of `y`.
///
/// # Safety
/// The area lies within `x`, `y` and `data`, and nobody else touches the area of `y`.
unsafe fn rectangle(isa: Isa, product: &Product, data: Weight<'_>, (area, many): (Area, bool)) {
    if many {
        // SAFETY: as promised by the caller.
        unsafe { many::multiply(isa, product, data, area) }
    } else {
        isa.run(Few { product, data, area });
    }
}

/// Kernel: a rectangle of few rows. Made by [`rectangle`] only.
struct Few<'a> {
    product: &'a Product,
    data: Weight<'a>,
    area: Area,
}

impl Kernel for Few<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { product, data, area } = self;
        if let Weight::Fp8 { codes, scales, skip } = data {
            let seen = (0..area.rows).fold(source::NO_NUMBERS, |seen, row| {
                // SAFETY: `rectangle` was promised that the rows are in bounds.
                let x = unsafe { product.row(area.row + row) };
                source::exponents(x, seen)
            });
            if source::fp8_exact(seen, scales) {
                let (codes, scales) = (codes.as_ptr(), scales.as_ptr());
                let w = source::Fp8::<true> { codes, scales, skip, k: product.k };
                // SAFETY: `rectangle` was promised that the area is in bounds and ours.
                return unsafe { few::multiply(lanes, product, w, area) };
            }
        }
        // SAFETY: `rectangle` was promised that the area is in bounds and ours.
        with_source!(data, product.k, w => unsafe { few::multiply(lanes, product, w, area) });
    }
}

#[cfg(test)]
mod tests;
