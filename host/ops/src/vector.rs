//! Operations on one vector, or on one vector and a few strided rows.

use crate::isa::{Kernel, dispatch};
use crate::lanes::{LANES, Lanes, padded};
use crate::linear::tile::{strided, tile};

/// Dot product, summed in the same order as a result of [`crate::linear`].
///
/// # Panics
/// If the lengths differ.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot: lengths of a and b");
    dispatch(Dot { a, b })
}

pub(crate) struct Dot<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
}

impl Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f32 {
        // SAFETY: both slices have the same length.
        unsafe { tile(lanes, [self.a.as_ptr()], [self.b.as_ptr()], self.a.len())[0][0] }
    }
}

/// Sum of all values, in the order of a dot product with ones.
pub fn sum(x: &[f32]) -> f32 {
    dispatch(Sum(x))
}

pub(crate) struct Sum<'a>(pub(crate) &'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f32 {
        let (eights, tail) = self.0.as_chunks::<LANES>();
        let mut sum = lanes.splat(0.0);
        for x in eights {
            sum = lanes.add(lanes.get(x), sum);
        }
        if !tail.is_empty() {
            sum = lanes.add(lanes.get(&padded(tail)), sum);
        }
        lanes.sum(sum)
    }
}

/// Greatest value; negative infinity for an empty slice. NaN are skipped.
pub fn max(x: &[f32]) -> f32 {
    dispatch(Max(x))
}

pub(crate) struct Max<'a>(pub(crate) &'a [f32]);

impl Kernel for Max<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f32 {
        let (eights, tail) = self.0.as_chunks::<LANES>();
        let mut greatest = lanes.splat(f32::NEG_INFINITY);
        for x in eights {
            greatest = lanes.max(lanes.get(x), greatest);
        }
        let mut last = [f32::NEG_INFINITY; LANES];
        lanes.put(greatest, &mut last);
        last.iter().chain(tail).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
    }
}

/// `y += alpha * x`, one fused multiply-add per value.
///
/// # Panics
/// If the lengths differ.
pub fn axpy(alpha: f32, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "axpy: lengths of x and y");
    dispatch(Axpy { alpha, x, y });
}

pub(crate) struct Axpy<'a> {
    pub(crate) alpha: f32,
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a mut [f32],
}

impl Kernel for Axpy<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let alpha = lanes.splat(self.alpha);
        let (x, x_tail) = self.x.as_chunks::<LANES>();
        let (y, y_tail) = self.y.as_chunks_mut::<LANES>();
        for (x, y) in x.iter().zip(y) {
            lanes.put(lanes.fma(alpha, lanes.get(x), lanes.get(y)), y);
        }
        for (x, y) in x_tail.iter().zip(y_tail) {
            *y = self.alpha.mul_add(*x, *y);
        }
    }
}

/// `x *= alpha`.
pub fn scale(alpha: f32, x: &mut [f32]) {
    for x in x {
        *x *= alpha;
    }
}

/// `out[j] = q . rows[j]` for `n` rows of `q.len()` values that start every `row_stride` values; each result has
/// the bits of [`dot`].
///
/// # Panics
/// If `out` does not have `n` values, or `rows` ends before the last row.
pub fn dot_rows(q: &[f32], rows: &[f32], row_stride: usize, n: usize, out: &mut [f32]) {
    assert_eq!(out.len(), n, "dot_rows: length of out for n {n}");
    check_rows("dot_rows", rows.len(), row_stride, n, q.len());
    dispatch(DotRows { q, rows, row_stride, out });
}

/// Checks that `n` strided rows of `width` values exist.
fn check_rows(name: &str, length: usize, stride: usize, n: usize, width: usize) {
    if n > 0 {
        let needs = (n - 1).saturating_mul(stride).saturating_add(width);
        assert!(length >= needs, "{name}: rows has {length} values, {n} rows every {stride} need {needs}");
    }
}

pub(crate) struct DotRows<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) rows: &'a [f32],
    pub(crate) row_stride: usize,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for DotRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { q, rows, row_stride, out } = self;
        let (eights, tail) = out.as_chunks_mut::<8>();
        let mut row = 0;
        // SAFETY: `dot_rows` checked that all rows exist.
        unsafe {
            for out in eights {
                let keys = strided(rows.as_ptr().add(row * row_stride), row_stride);
                [*out] = tile::<L, 1, 8>(lanes, [q.as_ptr()], keys, q.len());
                row += 8;
            }
            for out in tail {
                let key = rows.as_ptr().add(row * row_stride);
                [[*out]] = tile(lanes, [q.as_ptr()], [key], q.len());
                row += 1;
            }
        }
    }
}

/// `out = sum of weights[j] * rows[j]` over rows of `out.len()` values that start every `row_stride` values. Each
/// channel starts at zero and takes one fused multiply-add per row, in the order of the rows.
///
/// # Panics
/// If `rows` ends before the last row.
pub fn weighted_sum_rows(weights: &[f32], rows: &[f32], row_stride: usize, out: &mut [f32]) {
    check_rows("weighted_sum_rows", rows.len(), row_stride, weights.len(), out.len());
    dispatch(WeightedSum { weights, rows, row_stride, out });
}

pub(crate) struct WeightedSum<'a> {
    pub(crate) weights: &'a [f32],
    pub(crate) rows: &'a [f32],
    pub(crate) row_stride: usize,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for WeightedSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let width = self.out.len();
        self.out.fill(0.0);
        for (j, &alpha) in self.weights.iter().enumerate() {
            let start = j * self.row_stride;
            Axpy { alpha, x: &self.rows[start..start + width], y: self.out }.run(lanes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::testing::{Random, bits};

    const LENGTHS: [usize; 12] = [0, 1, 3, 7, 8, 9, 15, 16, 31, 64, 100, 517];

    /// The order of a sum, written out a third time.
    fn slow_dot(a: &[f32], b: &[f32]) -> f32 {
        let mut lane = [0.0f32; 8];
        for i in 0..a.len().next_multiple_of(8) {
            let (a, b) = (a.get(i).unwrap_or(&0.0), b.get(i).unwrap_or(&0.0));
            lane[i % 8] = a.mul_add(*b, lane[i % 8]);
        }
        let pair = |i: usize| lane[i] + lane[i + 4];
        (pair(0) + pair(2)) + (pair(1) + pair(3))
    }

    #[test]
    fn dot_has_the_documented_order_on_every_path() {
        let mut random = Random::new(1);
        for k in LENGTHS {
            let (a, b) = (random.normals(k), random.normals(k));
            let expected = slow_dot(&a, &b).to_bits();
            assert_eq!(dot(&a, &b).to_bits(), expected, "k {k}");
            for (isa, run) in Isa::all() {
                assert_eq!(run.run(Dot { a: &a, b: &b }).to_bits(), expected, "{isa}, k {k}");
            }
        }
    }

    #[test]
    fn sum_is_a_dot_with_ones_and_max_skips_nan() {
        let mut random = Random::new(2);
        for k in LENGTHS {
            let x = random.normals(k);
            assert_eq!(sum(&x).to_bits(), slow_dot(&x, &vec![1.0; k]).to_bits(), "k {k}");
            let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(&x), expected, "k {k}");
            for (isa, run) in Isa::all() {
                assert_eq!(run.run(Sum(&x)).to_bits(), sum(&x).to_bits(), "{isa}, k {k}");
                assert_eq!(run.run(Max(&x)), expected, "{isa}, k {k}");
            }
            for at in 0..k {
                let mut x = x.clone();
                x[at] = f32::NAN;
                assert_eq!(
                    max(&x),
                    x.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                    "k {k}, NaN at {at}"
                );
            }
        }
    }

    #[test]
    fn axpy_and_scale_round_once() {
        let mut random = Random::new(3);
        for k in LENGTHS {
            let (x, y) = (random.normals(k), random.normals(k));
            let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 0.3f32.mul_add(*x, *y)).collect();
            let mut fast = y.clone();
            axpy(0.3, &x, &mut fast);
            assert_eq!(bits(&fast), bits(&expected), "k {k}");
            for (isa, run) in Isa::all() {
                let mut y = y.clone();
                run.run(Axpy { alpha: 0.3, x: &x, y: &mut y });
                assert_eq!(bits(&y), bits(&expected), "{isa}, k {k}");
            }
            scale(0.5, &mut fast);
            assert!(fast.iter().zip(&expected).all(|(a, b)| *a == b * 0.5), "k {k}");
        }
    }

    #[test]
    fn rows_are_independent_of_their_neighbours() {
        let mut random = Random::new(4);
        for width in LENGTHS {
            for n in [0, 1, 2, 7, 8, 9, 16, 19] {
                let stride = width + 3;
                let rows = random.normals(n * stride);
                let q = random.normals(width);
                let row = |j: usize| &rows[j * stride..j * stride + width];
                let mut scores = vec![f32::NAN; n];
                dot_rows(&q, &rows, stride, n, &mut scores);
                let expected: Vec<f32> = (0..n).map(|j| dot(&q, row(j))).collect();
                assert_eq!(bits(&scores), bits(&expected), "width {width}, n {n}");
                for (isa, run) in Isa::all() {
                    scores.fill(f32::NAN);
                    run.run(DotRows { q: &q, rows: &rows, row_stride: stride, out: &mut scores });
                    assert_eq!(bits(&scores), bits(&expected), "{isa}, width {width}, n {n}");
                }

                let weights = random.normals(n);
                let mut out = vec![f32::NAN; width];
                weighted_sum_rows(&weights, &rows, stride, &mut out);
                let mut expected = vec![0.0; width];
                for (j, &weight) in weights.iter().enumerate() {
                    axpy(weight, row(j), &mut expected);
                }
                assert_eq!(bits(&out), bits(&expected), "width {width}, n {n}");
                for (isa, run) in Isa::all() {
                    out.fill(f32::NAN);
                    run.run(WeightedSum {
                        weights: &weights,
                        rows: &rows,
                        row_stride: stride,
                        out: &mut out,
                    });
                    assert_eq!(bits(&out), bits(&expected), "{isa}, width {width}, n {n}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "rows has 11 values, 3 rows every 4 need 12")]
    fn missing_rows_are_named() {
        dot_rows(&[0.0; 4], &[0.0; 11], 4, 3, &mut [0.0; 3]);
    }
}
