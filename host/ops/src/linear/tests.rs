//! Bits, not tolerances: every result is compared with one dot product of its own with the f32 form of the weights.

use super::*;
use crate::isa::Isa;
use crate::testing::{Random, bits};
use crate::{Pool, Serial, dot};

/// A matrix in one format, and its f32 form.
pub(super) struct Matrix {
    pub(super) n: usize,
    pub(super) k: usize,
    skip: usize,
    pub(super) format: Format,
    pub(super) wide: Vec<f32>,
    narrow: Vec<u16>,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Format {
    F32,
    Bf16,
    Fp8,
    Mxfp4,
    Nvfp4,
}

impl Format {
    const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::Fp8, Self::Mxfp4, Self::Nvfp4];

    /// The nearest `k` that the format allows.
    fn k(self, k: usize) -> usize {
        match self {
            Self::Mxfp4 => k.next_multiple_of(32),
            Self::Nvfp4 => k.next_multiple_of(16),
            _ => k,
        }
    }
}

const GLOBAL: f32 = 0.012_345_678;

impl Matrix {
    fn new(random: &mut Random, format: Format, n: usize, k: usize) -> Self {
        let k = format.k(k);
        let skip = if format == Format::Fp8 { random.below(128) } else { 0 };
        let narrow = random.normals(n * k).into_iter().map(crate::bf16::from_f32).collect();
        let (count, scales) = match format {
            Format::Fp8 if n > 0 => (n * k, (skip + n).div_ceil(128) * k.div_ceil(128)),
            Format::Mxfp4 => (n * k / 2, n * (k / 32)),
            Format::Nvfp4 => (n * k / 2, n * (k / 16)),
            _ => (0, 0),
        };
        let mut numbers = |count: usize| (0..count).map(|_| number(random)).collect::<Vec<u8>>();
        let (mut codes, mut scales) = (numbers(count), numbers(scales));
        if format == Format::Fp8 {
            codes.iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code ^= 1);
        }
        if format == Format::Nvfp4 {
            scales.iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code ^= 1);
        } else {
            // Around 1, so that sums round.
            scales.iter_mut().for_each(|code| *code = 120 + *code % 12);
        }
        let mut matrix = Self { n, k, skip, format, wide: Vec::new(), narrow, codes, scales };
        if format == Format::F32 {
            matrix.wide = random.normals(n * k);
        } else {
            let mut wide = vec![0.0; n * k];
            dequantise(matrix.mat(), &mut wide);
            matrix.wide = wide;
        }
        matrix
    }

    pub(super) fn all(random: &mut Random, n: usize, k: usize) -> [Self; 5] {
        Format::ALL.map(|format| Self::new(random, format, n, k))
    }

    pub(super) fn mat(&self) -> Mat<'_> {
        let Self { n, k, skip, codes, scales, .. } = self;
        let data = match self.format {
            Format::F32 => Weight::F32(&self.wide),
            Format::Bf16 => Weight::Bf16(&self.narrow),
            Format::Fp8 => Weight::Fp8 { codes, scales, skip: *skip },
            Format::Mxfp4 => Weight::Mxfp4 { codes, scales },
            Format::Nvfp4 => Weight::Nvfp4 { codes, scales, global: GLOBAL },
        };
        Mat { data, n: *n, k: *k }
    }

    /// One dot product for each result.
    fn expected(&self, x: &[f32], rows: usize) -> Vec<f32> {
        let k = self.k;
        (0..rows * self.n)
            .map(|i| dot(&x[i / self.n * k..][..k], &self.wide[i % self.n * k..][..k]))
            .collect()
    }

    /// Where a failure happened.
    pub(super) fn name(&self) -> String {
        format!("{:?} n {} k {} skip {}", self.format, self.n, self.k, self.skip)
    }
}

/// A byte.
fn number(random: &mut Random) -> u8 {
    random.below(256) as u8
}

#[test]
fn any_batch_gives_each_row_its_own_bits() {
    let mut random = Random::new(61);
    for (n, k) in [(37, 64), (8, 83), (130, 40), (21, 300)] {
        for matrix in Matrix::all(&mut random, n, k) {
            let (k, w, name) = (matrix.k, matrix.mat(), matrix.name());
            let x = random.normals(70 * k);
            let expected = matrix.expected(&x, 70);
            for row in 0..70 {
                let mut alone = vec![f32::NAN; n];
                linear(&Serial, &x[row * k..][..k], 1, w, &mut alone);
                assert_eq!(bits(&alone), bits(&expected[row * n..][..n]), "{name}, row {row}");
            }
            for rows in 1..=70 {
                let mut y = vec![f32::NAN; rows * n];
                linear(&Serial, &x[..rows * k], rows, w, &mut y);
                assert_eq!(bits(&y), bits(&expected[..rows * n]), "{name}, rows {rows}");
            }
        }
    }
}

#[test]
fn any_shape_gives_the_bits_of_dot() {
    let mut random = Random::new(62);
    for k in [0, 1, 7, 8, 9, 16, 31, 256, 511, 512, 513, 1029] {
        for n in [0, 1, 3, 4, 5, 7, 8, 9, 17, 70, 131] {
            for matrix in Matrix::all(&mut random, n, k) {
                for rows in [0, 1, 2, 3, 4, 5, 8, 9, 11, 12, 13, 50] {
                    let x = random.normals(rows * matrix.k);
                    let expected = bits(&matrix.expected(&x, rows));
                    let mut y = vec![f32::NAN; rows * n];
                    linear(&Serial, &x, rows, matrix.mat(), &mut y);
                    assert_eq!(bits(&y), expected, "{}, rows {rows}", matrix.name());
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
        for matrix in Matrix::all(&mut random, n, k) {
            let x = random.normals(rows * matrix.k);
            let mut alone = vec![f32::NAN; rows * n];
            linear(&Serial, &x, rows, matrix.mat(), &mut alone);
            for pool in &pools {
                let mut y = vec![f32::NAN; rows * n];
                linear(pool, &x, rows, matrix.mat(), &mut y);
                assert_eq!(bits(&y), bits(&alone), "{pool:?}, {}, rows {rows}", matrix.name());
            }
        }
    }
}

#[test]
fn every_instruction_set_and_path_has_the_same_bits() {
    let mut random = Random::new(64);
    for (rows, n, k) in [(1, 21, 77), (2, 9, 64), (3, 30, 520), (7, 12, 33), (12, 10, 256), (29, 140, 1045)] {
        for matrix in Matrix::all(&mut random, n, k) {
            let (k, data) = (matrix.k, matrix.mat().data);
            let x = random.normals(rows * k);
            let expected = bits(&matrix.expected(&x, rows));
            for (isa, run) in Isa::all() {
                for way in [Way::Few, Way::Many] {
                    let mut x = x.clone();
                    if in_nibbles(data) && matches!(way, Way::Few) {
                        for x in x.as_chunks_mut::<8>().0 {
                            *x = [0, 2, 4, 6, 1, 3, 5, 7].map(|i| x[i]);
                        }
                    }
                    let mut y = vec![f32::NAN; rows * n];
                    let product = Product { x: x.as_ptr(), x_stride: k, y: y.as_mut_ptr(), y_stride: n, k };
                    let area = Area { row: 0, rows, col: 0, cols: n };
                    // SAFETY: the area is all of `y`.
                    unsafe { rectangle(run, &product, data, (area, way)) };
                    assert_eq!(bits(&y), expected, "{isa}, {}, rows {rows}, {way:?}", matrix.name());
                }
            }
        }
    }
}

#[test]
fn row_ranges_are_products_of_their_own() {
    let mut random = Random::new(67);
    for matrix in Matrix::all(&mut random, 300, 160) {
        for rows in [1, 3, 20] {
            let x = random.normals(rows * matrix.k);
            let expected = matrix.expected(&x, rows);
            for (first, count) in [(0, 300), (1, 299), (127, 2), (100, 150), (129, 0), (256, 44), (299, 1)] {
                let mut y = vec![f32::NAN; rows * count];
                linear(&Serial, &x, rows, matrix.mat().rows(first, count), &mut y);
                for row in 0..rows {
                    let (y, expected) = (&y[row * count..][..count], &expected[row * 300 + first..][..count]);
                    assert_eq!(bits(y), bits(expected), "{}, {count} rows from {first} on", matrix.name());
                }
            }
        }
    }
}

/// Every code under every scale: one product picks one number, so each result is a weight.
#[test]
fn every_code_and_scale_is_exact() {
    let mut identity = vec![0.0; 256 * 256];
    (0..256).for_each(|i| identity[i * 257] = 1.0);
    for scale in 0..=254u8 {
        let codes: Vec<u8> = (0..=255).map(|code| if code & 0x7f == 0x7f { 0 } else { code }).collect();
        let nvfp4_scale = if scale & 0x7f == 0x7f { 0 } else { scale };
        for data in [
            Weight::Fp8 { codes: &codes, scales: &[scale; 2], skip: 0 },
            Weight::Mxfp4 { codes: &codes[..128], scales: &[scale; 8] },
            Weight::Nvfp4 { codes: &codes[128..], scales: &[nvfp4_scale; 16], global: GLOBAL },
        ] {
            let w = Mat { data, n: 1, k: 256 };
            let mut wide = vec![0.0; 256];
            w.row_f32(0, &mut wide);
            // A number beyond f32 times zero is no zero: then all products of the row are NaN, as in f32.
            let expected: Vec<f32> = identity.chunks(256).map(|x| dot(x, &wide)).collect();
            assert_eq!(wide.iter().all(|w| w.is_finite()), expected.iter().all(|y| !y.is_nan()));
            for rows in [1, 256] {
                let mut y = vec![f32::NAN; 256];
                for (x, y) in identity.chunks(rows * 256).zip(y.chunks_mut(rows)) {
                    linear(&Serial, x, rows, w, y);
                }
                for (i, (y, expected)) in y.iter().zip(&expected).enumerate() {
                    let same = y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan());
                    assert!(same, "{data:?}, number {i}: {y:e}, not {expected:e}");
                }
            }
        }
    }
}

/// FP8 scales go to `x` where that is exact, else to the weights.
#[test]
fn inputs_at_the_edges_of_f32_keep_their_bits() {
    let mut random = Random::new(69);
    let edges = [1e-45, -1e-40, f32::MIN_POSITIVE, 1e-37, 3e30, -2e36, 0.0, -0.0];
    for matrix in Matrix::all(&mut random, 20, 160) {
        for rows in [1, 2, 3, 4, 9] {
            for edge in edges {
                let mut x = random.normals(rows * matrix.k);
                x[5] = edge;
                let mut y = vec![f32::NAN; rows * 20];
                linear(&Serial, &x, rows, matrix.mat(), &mut y);
                assert_eq!(bits(&y), bits(&matrix.expected(&x, rows)), "{}, {edge:e}", matrix.name());
            }
        }
    }
    let exact_by = |x: &[f32], scales: &[u8], places| {
        source::fp8_exact(source::exponents(x, source::NO_NUMBERS), scales, places)
    };
    let exact = |x: &[f32], scales: &[u8]| exact_by(x, scales, 8);
    assert!(exact(&[0.0, 1.0, -1e-30], &[127, 100]));
    assert!(exact(&[f32::MIN_POSITIVE], &[119]) && !exact(&[f32::MIN_POSITIVE], &[119, 118]));
    assert!(exact(&[1.0], &[246]) && !exact(&[2.0], &[0, 246]));
    assert!(
        exact_by(&[1.0], &[134], 120) && !exact_by(&[2.0], &[134], 120) && !exact_by(&[0.5], &[135], 120)
    );
    assert!(!exact(&[1.0, 1e-40], &[127]) && !exact(&[f32::INFINITY], &[100]) && !exact(&[f32::NAN], &[100]));
}

#[test]
fn strides_leave_the_gaps_alone() {
    let mut random = Random::new(65);
    let pool = Pool::new(2);
    for rows in [1, 4, 33] {
        let (n, k, x_stride, y_stride) = (150, 96, 101, 163);
        for matrix in Matrix::all(&mut random, n, k) {
            let x = random.normals(rows * x_stride);
            let dense: Vec<f32> = x.chunks(x_stride).flat_map(|row| row[..k].to_vec()).collect();
            let expected = matrix.expected(&dense, rows);
            // The last rows end with their slices.
            let mut y = vec![-7.0; (rows - 1) * y_stride + n];
            let x = &x[..(rows - 1) * x_stride + k];
            linear_into(&pool, x, x_stride, rows, matrix.mat(), &mut y, y_stride);
            for (row, y) in y.chunks(y_stride).enumerate() {
                assert_eq!(bits(&y[..n]), bits(&expected[row * n..][..n]), "{}, row {row}", matrix.name());
                assert!(y[n..].iter().all(|&gap| gap == -7.0), "{}, row {row}", matrix.name());
            }
        }
    }
}

#[test]
fn products_made_at_once_have_the_bits_of_each() {
    let mut random = Random::new(70);
    let pools = [1, 2, 3].map(Pool::new);
    for rows in [0, 1, 5, 40] {
        // More than are shared out together, of all formats, one without columns, one with scales beyond the kernels.
        let mut weights: Vec<Matrix> =
            [9, 0, 130, 33].iter().flat_map(|n| Matrix::all(&mut random, *n, 96)).collect();
        weights.push(Matrix::new(&mut random, Format::Fp8, 7, 96));
        let last = weights.last_mut().expect("just pushed");
        last.scales.fill(250);
        let mut wide = vec![0.0; 7 * 96];
        dequantise(last.mat(), &mut wide);
        last.wide = wide;
        let x = random.normals(rows * 96);
        for pool in &pools {
            let mut results: Vec<Vec<f32>> = weights.iter().map(|w| vec![f32::NAN; rows * w.n]).collect();
            linears(pool, rows, weights.iter().zip(&mut results).map(|(w, y)| Linear::dense(&x, w.mat(), y)));
            for (w, y) in weights.iter().zip(&results) {
                assert_eq!(bits(y), bits(&w.expected(&x, rows)), "{pool:?}, {}, rows {rows}", w.name());
            }
        }
    }
}

#[test]
fn groups_of_channels_have_the_bits_of_each() {
    let mut random = Random::new(71);
    let pool = Pool::new(2);
    for (rows, groups, rank) in [(0, 2, 3), (1, 4, 128), (3, 1, 5), (20, 17, 9), (7, 3, 0)] {
        for matrix in Matrix::all(&mut random, groups * rank, 64) {
            let x = random.normals(rows * groups * 64);
            let mut y = vec![f32::NAN; rows * groups * rank];
            linear_grouped(&pool, &x, rows, groups, matrix.mat(), &mut y);
            for (i, y) in y.iter().enumerate() {
                let (row, column) = (i / (groups * rank), i % (groups * rank));
                let x = &x[(row * groups + column / rank) * 64..][..64];
                let expected = dot(x, &matrix.wide[column * 64..][..64]);
                assert_eq!(y.to_bits(), expected.to_bits(), "{}, rows {rows}, {i}", matrix.name());
            }
        }
    }
}

#[test]
#[should_panic(expected = "linear_grouped: 7 rows in 2 groups")]
fn uneven_groups_are_named() {
    let w = Mat { data: Weight::F32(&[0.0; 28]), n: 7, k: 4 };
    linear_grouped(&Serial, &[0.0; 8], 1, 2, w, &mut [0.0; 7]);
}

#[test]
fn one_row_needs_no_stride() {
    let mut random = Random::new(68);
    for matrix in Matrix::all(&mut random, 5, 64) {
        let x = random.normals(64);
        let mut y = vec![f32::NAN; 5];
        linear_into(&Serial, &x, 0, 1, matrix.mat(), &mut y, 0);
        assert_eq!(bits(&y), bits(&matrix.expected(&x, 1)), "{}", matrix.name());
    }
}

#[test]
fn a_row_with_nan_does_not_touch_the_others() {
    let mut random = Random::new(66);
    let (rows, n) = (15, 10);
    for matrix in Matrix::all(&mut random, n, 43) {
        let mut x = random.normals(rows * matrix.k);
        let expected = matrix.expected(&x, rows);
        x[7 * matrix.k + 42] = f32::NAN;
        let mut y = vec![0.0; rows * n];
        linear(&Serial, &x, rows, matrix.mat(), &mut y);
        for row in 0..rows {
            let y = &y[row * n..][..n];
            if row == 7 {
                assert!(y.iter().all(|y| y.is_nan()), "{}", matrix.name());
            } else {
                assert_eq!(bits(y), bits(&expected[row * n..][..n]), "{}, row {row}", matrix.name());
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
