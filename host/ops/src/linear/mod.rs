//! `y = x W^T` with f32 activations, weights of any format and f32 results, the same bits for any batch.
//!
//! Each result is one sum in the order of [`crate::lanes`], whatever the path:
//!
//! - few rows ([`few`]): weights are read once, straight from memory, and widened on the fly;
//! - many rows ([`many`]): a block of rows is multiplied with one panel of weights after the other, each of which
//!   is widened once and fits the L1 cache.
//!
//! Both read weights through a [`source::Source`]. Pieces for threads are rectangles of `y`. Who asks for matrix tiles has
//! sums of another order, the same for few rows and many: [`tiles`].

mod few;
mod many;
mod source;
pub(crate) mod tile;
mod tiles;
mod weight;

use std::cell::RefCell;

use source::Source;

use crate::amx::Amx;
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
/// values, for products on a slice of the channels. The last row may end its slice; values of `y` between the rows
/// are left alone.
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
    linears(par, rows, [Linear { x, x_stride, w, y, y_stride }]);
}

/// One of several products that are made at once, see [`linear_into`].
#[derive(Debug)]
pub struct Linear<'a> {
    /// Rows of activations, the last one may end the slice.
    pub x: &'a [f32],
    /// Values from one row of `x` to the next.
    pub x_stride: usize,
    /// `[n, k]`.
    pub w: Mat<'a>,
    /// Rows of results, the last one may end the slice.
    pub y: &'a mut [f32],
    /// Values from one row of `y` to the next.
    pub y_stride: usize,
}

impl<'a> Linear<'a> {
    /// A product of dense rows.
    pub fn dense(x: &'a [f32], w: Mat<'a>, y: &'a mut [f32]) -> Self {
        Self { x, x_stride: w.k, y_stride: w.n, w, y }
    }

    fn check(&self, rows: usize) {
        self.w.check("linear");
        let (Mat { n, k, .. }, x_stride, y_stride) = (self.w, self.x_stride, self.y_stride);
        if rows == 0 || n == 0 {
            return;
        }
        assert!(rows == 1 || x_stride >= k, "linear: x_stride {x_stride} is shorter than k {k}");
        assert!(rows == 1 || y_stride >= n, "linear: y_stride {y_stride} is shorter than n {n}");
        for (name, length, stride, width) in
            [("x", self.x.len(), x_stride, k), ("y", self.y.len(), y_stride, n)]
        {
            let needs = (rows - 1).saturating_mul(stride).saturating_add(width);
            assert!(
                length >= needs,
                "linear: {name} has {length} values, {rows} rows every {stride} need {needs}"
            );
        }
    }

    /// Makes this product alone, through a copy of one operand.
    fn run(self, par: &dyn Parallel, rows: usize) {
        let Self { x, x_stride, w, y, y_stride } = self;
        if !in_nibbles(w.data) {
            // Nothing real has such scales: no kernel is made for them.
            let mut wide = vec![0.0; w.n * w.k];
            dequantise(w, &mut wide);
            return linear_into(par, x, x_stride, rows, Mat { data: Weight::F32(&wide), ..w }, y, y_stride);
        }
        let mut shuffled = NIBBLES.take();
        shuffled.resize(rows * w.k, 0.0);
        let isa = Isa::best();
        for (row, to) in shuffled.chunks_exact_mut(w.k.max(1)).enumerate() {
            isa.run(Shuffle { from: &x[row * x_stride..][..w.k], to });
        }
        let product = Product { x: shuffled.as_ptr(), x_stride: w.k, y: y.as_mut_ptr(), y_stride, k: w.k };
        // SAFETY: the operands were checked.
        unsafe { run(par, &[Some(Task::new(par, rows, w, product))]) };
        NIBBLES.set(shuffled);
    }
}

/// Whether a product needs a copy of one operand before the threads share it.
fn copies(par: &dyn Parallel, rows: usize, data: Weight<'_>) -> bool {
    match data {
        Weight::Fp8 { scales, .. } => !source::fp8_fits(scales),
        data => in_nibbles(data) && rows < many_rows(data) && par.amx().is_none(),
    }
}

/// Several products of the same number of rows: the threads share all of them at once, so small products do not wait
/// for each other.
///
/// # Panics
/// As [`linear_into`].
pub fn linears<'a>(par: &dyn Parallel, rows: usize, products: impl IntoIterator<Item = Linear<'a>>) {
    let mut tasks = [const { None }; TOGETHER];
    let mut count = 0;
    for one in products {
        one.check(rows);
        if rows == 0 || one.w.n == 0 {
            continue;
        }
        if copies(par, rows, one.w.data) {
            one.run(par, rows);
            continue;
        }
        if count == TOGETHER {
            // SAFETY: the operands were checked, and the results are in slices of their own.
            unsafe { run(par, &tasks) };
            count = 0;
        }
        let (x, y) = (one.x.as_ptr(), one.y.as_mut_ptr());
        let product = Product { x, x_stride: one.x_stride, y, y_stride: one.y_stride, k: one.w.k };
        tasks[count] = Some(Task::new(par, rows, one.w, product));
        count += 1;
    }
    // SAFETY: as above.
    unsafe { run(par, &tasks[..count]) };
}

/// Most products that are shared out together.
const TOGETHER: usize = 16;

/// `y[g] = x[g] W[g]^T` for groups of channels: `x [rows, groups * k]`, `w [groups * rank, k]`, `y [rows, groups *
/// rank]` (the grouped `wo_a`).
///
/// # Panics
/// If a length does not match, or the rows of `w` are no multiple of `groups`.
pub fn linear_grouped(par: &dyn Parallel, x: &[f32], rows: usize, groups: usize, w: Mat<'_>, y: &mut [f32]) {
    w.check("linear_grouped");
    assert!(groups > 0 && w.n.is_multiple_of(groups), "linear_grouped: {} rows in {groups} groups", w.n);
    let rank = w.n / groups;
    let (x_width, y_width) = (groups * w.k, w.n);
    assert_eq!(
        x.len(),
        rows * x_width,
        "linear_grouped: length of x for [rows {rows}, {groups} * k {}]",
        w.k
    );
    assert_eq!(y.len(), rows * y_width, "linear_grouped: length of y for [rows {rows}, n {}]", w.n);
    if rows == 0 || rank == 0 {
        return;
    }
    if copies(par, rows, w.data) {
        for g in 0..groups {
            linear_into(
                par,
                &x[g * w.k..],
                x_width,
                rows,
                w.rows(g * rank, rank),
                &mut y[g * rank..],
                y_width,
            );
        }
        return;
    }
    let (x, y) = (x.as_ptr(), y.as_mut_ptr());
    let mut tasks = [const { None }; TOGETHER];
    for first in (0..groups).step_by(TOGETHER) {
        let count = TOGETHER.min(groups - first);
        for (g, task) in (first..).zip(&mut tasks[..count]) {
            // SAFETY: the channels of a group are within a row.
            let (x, y) = unsafe { (x.add(g * w.k), y.add(g * rank)) };
            let product = Product { x, x_stride: x_width, y, y_stride: y_width, k: w.k };
            *task = Some(Task::new(par, rows, w.rows(g * rank, rank), product));
        }
        // SAFETY: the lengths were checked, and groups write channels of their own.
        unsafe { run(par, &tasks[..count]) };
    }
}

/// A product that is cut into pieces.
struct Task<'a> {
    product: Product,
    data: Weight<'a>,
    grid: Grid,
}

impl<'a> Task<'a> {
    fn new(par: &dyn Parallel, rows: usize, w: Mat<'a>, product: Product) -> Self {
        let way = match par.amx() {
            Some(amx) if tiles::fits(w.data) => Way::Tiles(amx),
            _ if rows >= many_rows(w.data) => Way::Many,
            _ => Way::Few,
        };
        Self { product, data: w.data, grid: Grid::new(par.threads(), rows, w.n, w.k, way) }
    }
}

/// Makes products.
///
/// # Safety
/// The operands of each are in bounds, and nobody else touches its results.
unsafe fn run(par: &dyn Parallel, tasks: &[Option<Task<'_>>]) {
    let isa = Isa::best();
    let tasks = || tasks.iter().flatten();
    let pieces = tasks().map(|task| task.grid.pieces()).sum();
    let body = |range: std::ops::Range<usize>| {
        for mut piece in range {
            for task in tasks() {
                let here = task.grid.pieces();
                if piece < here {
                    // SAFETY: as promised by the caller; rectangles of a grid cover the product and do not overlap.
                    unsafe { rectangle(isa, &task.product, task.data, task.grid.rectangle(piece)) };
                    break;
                }
                piece -= here;
            }
        }
    };
    if pieces == 1 { body(0..1) } else { par.run(pieces, 1, &body) }
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
    way: Way,
}

/// Which kernel makes a product.
#[derive(Clone, Copy, Debug)]
enum Way {
    Few,
    Many,
    Tiles(Amx),
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
    fn new(threads: usize, rows: usize, n: usize, k: usize, way: Way) -> Self {
        let work = rows * n * k.max(1);
        let wanted = if threads == 1 { 1 } else { (work / WORTH_A_THREAD).clamp(1, 4 * threads) };
        let (row_step, columns) = match way {
            Way::Few => (rows, 8),
            Way::Many => (many::row_block(rows), many::COLUMNS),
            Way::Tiles(_) => (tiles::row_block(rows, wanted), tiles::COLUMNS),
        };
        let n_step = n.div_ceil(wanted.div_ceil(rows.div_ceil(row_step))).next_multiple_of(columns);
        Self { rows, n, row_step, n_step, way }
    }

    fn pieces(&self) -> usize {
        self.rows.div_ceil(self.row_step) * self.n.div_ceil(self.n_step)
    }

    /// Neighbouring pieces share rows of `x`, which are then still in the cache.
    fn rectangle(&self, piece: usize) -> (Area, Way) {
        let across = self.n.div_ceil(self.n_step);
        let (row, col) = (piece / across * self.row_step, piece % across * self.n_step);
        let area =
            Area { row, rows: self.row_step.min(self.rows - row), col, cols: self.n_step.min(self.n - col) };
        (area, self.way)
    }
}

/// Computes one rectangle of `y`.
///
/// # Safety
/// The area lies within `x`, `y` and `data`, and nobody else touches the area of `y`.
unsafe fn rectangle(isa: Isa, product: &Product, data: Weight<'_>, (area, way): (Area, Way)) {
    match way {
        Way::Few => isa.run(Few { product, data, area }),
        // SAFETY: as promised by the caller.
        Way::Many => unsafe { many::multiply(isa, product, data, area) },
        // SAFETY: as promised by the caller; `Task::new` has asked whether the weights fit.
        Way::Tiles(amx) => unsafe { tiles::multiply(isa, amx, product, data, area) },
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
            if source::fp8_exact(seen, scales, L::E4M3_RAW_PLACES) {
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
pub(crate) mod tests;
