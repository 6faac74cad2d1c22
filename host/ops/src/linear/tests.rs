//! Bits, not tolerances: every result is compared with one dot product of its own.

use super::*;
use crate::testing::{Random, bits};
use crate::{Pool, Serial, dot};

/// A matrix in both number formats; the f32 form holds the rounded values.
struct Matrix {
    n: usize,
    k: usize,
    narrow: Vec<u16>,
    wide: Vec<f32>,
}

impl Matrix {
    fn new(random: &mut Random, n: usize, k: usize) -> Self {
        let narrow: Vec<u16> = random.normals(n * k).into_iter().map(crate::bf16::from_f32).collect();
        let wide = narrow.iter().map(|&x| crate::bf16::to_f32(x)).collect();
        Self { n, k, narrow, wide }
    }

    fn forms(&self) -> [Mat<'_>; 2] {
        [Weight::F32(&self.wide), Weight::Bf16(&self.narrow)].map(|data| Mat { data, n: self.n, k: self.k })
    }

    /// One dot product for each result.
    fn expected(&self, x: &[f32], rows: usize) -> Vec<f32> {
        let row = |data: &[f32], i: usize| data[i * self.k..][..self.k].to_vec();
        (0..rows * self.n).map(|i| dot(&row(x, i / self.n), &row(&self.wide, i % self.n))).collect()
    }
}

#[test]
fn any_batch_gives_each_row_its_own_bits() {
    let mut random = Random::new(61);
    for (n, k) in [(37, 64), (8, 83), (130, 40)] {
        let matrix = Matrix::new(&mut random, n, k);
        let x = random.normals(70 * k);
        let expected = matrix.expected(&x, 70);
        for w in matrix.forms() {
            for row in 0..70 {
                let mut alone = vec![f32::NAN; n];
                linear(&Serial, &x[row * k..][..k], 1, w, &mut alone);
                assert_eq!(bits(&alone), bits(&expected[row * n..][..n]), "n {n}, k {k}, row {row}");
            }
            for rows in 1..=70 {
                let mut y = vec![f32::NAN; rows * n];
                linear(&Serial, &x[..rows * k], rows, w, &mut y);
                assert_eq!(bits(&y), bits(&expected[..rows * n]), "n {n}, k {k}, rows {rows}");
            }
        }
    }
}

#[test]
fn any_shape_gives_the_bits_of_dot() {
    let mut random = Random::new(62);
    for k in [0, 1, 7, 8, 9, 16, 31, 256, 1029] {
        for n in [0, 1, 3, 4, 5, 7, 8, 9, 17, 70] {
            let matrix = Matrix::new(&mut random, n, k);
            for rows in [0, 1, 2, 3, 11, 12, 13, 50] {
                let x = random.normals(rows * k);
                let expected = bits(&matrix.expected(&x, rows));
                for w in matrix.forms() {
                    let mut y = vec![f32::NAN; rows * n];
                    linear(&Serial, &x, rows, w, &mut y);
                    assert_eq!(bits(&y), expected, "n {n}, k {k}, rows {rows}");
                }
            }
        }
    }
}

#[test]
fn threads_do_not_change_bits() {
    let mut random = Random::new(63);
    let pools = [2, 3, 7].map(Pool::new);
    for (rows, n, k) in [(1, 1500, 256), (5, 300, 200), (64, 300, 130), (700, 70, 300), (40, 9, 4000)] {
        let matrix = Matrix::new(&mut random, n, k);
        let x = random.normals(rows * k);
        for w in matrix.forms() {
            let mut alone = vec![f32::NAN; rows * n];
            linear(&Serial, &x, rows, w, &mut alone);
            for pool in &pools {
                let mut y = vec![f32::NAN; rows * n];
                linear(pool, &x, rows, w, &mut y);
                assert_eq!(bits(&y), bits(&alone), "{pool:?}, rows {rows}, n {n}, k {k}");
            }
        }
    }
}

#[test]
fn the_portable_path_has_the_same_bits() {
    let mut random = Random::new(64);
    for (rows, n, k) in [(1, 21, 77), (2, 9, 64), (7, 12, 33), (12, 10, 256), (29, 23, 45)] {
        let matrix = Matrix::new(&mut random, n, k);
        let x = random.normals(rows * k);
        for w in matrix.forms() {
            let mut fast = vec![f32::NAN; rows * n];
            linear(&Serial, &x, rows, w, &mut fast);
            for many in [false, true] {
                let mut plain = vec![f32::NAN; rows * n];
                let product = Product { x: x.as_ptr(), x_stride: k, y: plain.as_mut_ptr(), y_stride: n, k };
                let area = Area { row: 0, rows, col: 0, cols: n };
                // SAFETY: the area is all of `plain`.
                crate::isa::portable(unsafe { Rectangle::new(&product, w.data, (area, many)) });
                assert_eq!(bits(&plain), bits(&fast), "rows {rows}, n {n}, k {k}, many {many}");
            }
        }
    }
}

#[test]
fn strides_leave_the_gaps_alone() {
    let mut random = Random::new(65);
    let pool = Pool::new(2);
    for rows in [1, 4, 33] {
        let (n, k, x_stride, y_stride) = (150, 96, 101, 163);
        let matrix = Matrix::new(&mut random, n, k);
        let x = random.normals(rows * x_stride);
        let dense: Vec<f32> = x.chunks(x_stride).flat_map(|row| row[..k].to_vec()).collect();
        let expected = matrix.expected(&dense, rows);
        for w in matrix.forms() {
            // The last rows end with their slices.
            let mut y = vec![-7.0; (rows - 1) * y_stride + n];
            let x = &x[..(rows - 1) * x_stride + k];
            linear_into(&pool, x, x_stride, rows, w, &mut y, y_stride);
            for (row, y) in y.chunks(y_stride).enumerate() {
                assert_eq!(bits(&y[..n]), bits(&expected[row * n..][..n]), "rows {rows}, row {row}");
                assert!(y[n..].iter().all(|&gap| gap == -7.0), "rows {rows}, row {row}");
            }
        }
    }
}

#[test]
fn a_row_with_nan_does_not_touch_the_others() {
    let mut random = Random::new(66);
    let (rows, n, k) = (15, 10, 43);
    let matrix = Matrix::new(&mut random, n, k);
    let mut x = random.normals(rows * k);
    let expected = matrix.expected(&x, rows);
    x[7 * k + 42] = f32::NAN;
    for w in matrix.forms() {
        let mut y = vec![0.0; rows * n];
        linear(&Serial, &x, rows, w, &mut y);
        for row in 0..rows {
            let y = &y[row * n..][..n];
            if row == 7 {
                assert!(y.iter().all(|y| y.is_nan()));
            } else {
                assert_eq!(bits(y), bits(&expected[row * n..][..n]), "row {row}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "linear: length of the weight for [n 3, k 4]")]
fn a_short_weight_is_named() {
    let w = Mat { data: Weight::F32(&[0.0; 11]), n: 3, k: 4 };
    linear(&Serial, &[0.0; 4], 1, w, &mut [0.0; 3]);
}

#[test]
#[should_panic(expected = "x has 9 values, 2 rows every 6 need 10")]
fn a_short_input_is_named() {
    let w = Mat { data: Weight::F32(&[0.0; 12]), n: 3, k: 4 };
    linear_into(&Serial, &[0.0; 9], 6, 2, w, &mut [0.0; 6], 3);
}
