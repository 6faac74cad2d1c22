//! Products on tiles: exact operands, sums of f32 quality, the same bits for any batch. The processor's tiles are tested where
//! there are some, plain arithmetic on the same layout everywhere.

use super::rows::cut;
use super::*;
use crate::isa::{Isa, Kernel};
use crate::lanes::Lanes;
use crate::linear::tests::{Format, Matrix};
use crate::testing::{Random, bits};

/// A product by plain arithmetic on tiles, and by the processor's tiles if it has some.
fn products(isa: Isa, x: &[f32], rows: usize, matrix: &Matrix) -> Vec<(&'static str, Vec<f32>)> {
    let (w, poison) = (matrix.mat(), f32::NAN);
    let one = |name, unit: &dyn Fn(&Product, Area)| {
        let mut y = vec![poison; rows * w.n];
        let p = Product { x: x.as_ptr(), x_stride: w.k, y: y.as_mut_ptr(), y_stride: w.n, k: w.k };
        unit(&p, Area { row: 0, rows, col: 0, cols: w.n });
        (name, y)
    };
    // SAFETY: the area is all of the operands.
    let mut all = vec![one("plain", &|p, area| unsafe { run(isa, unit::Plain, p, w.data, area) })];
    match Amx::detect() {
        // SAFETY: as above.
        Ok(amx) => all.push(one("AMX", &|p, area| unsafe { run(isa, amx, p, w.data, area) })),
        Err(why) => eprintln!("tiles of the processor are not tested: {why}"),
    }
    all
}

/// Sums in f64, and what rounding of f32 may change: the sums of absolute products, times `2^-24` and the square root of the
/// number of roundings that follow each other, times three.
fn expected(x: &[f32], rows: usize, matrix: &Matrix) -> Vec<(f64, f64)> {
    let (n, k) = (matrix.n, matrix.k);
    let mut all = Vec::new();
    for (row, column) in (0..rows).flat_map(|row| (0..n).map(move |column| (row, column))) {
        let products = || {
            let x = &x[row * k..][..k];
            x.iter().zip(&matrix.wide[column * k..][..k]).map(|(&x, &w)| f64::from(x) * f64::from(w))
        };
        let size: f64 = products().map(f64::abs).sum();
        let roundings = 16.0 + 3.0 * k as f64 / 32.0;
        all.push((products().sum(), 3.0 * size * roundings.sqrt() / f64::from(1 << 24)));
    }
    all
}

#[test]
fn three_parts_are_the_number() {
    let mut random = Random::new(91);
    let mut numbers = [0.0; DEPTH];
    for round in 0..200 {
        for (number, value) in numbers.iter_mut().zip(random.normals(DEPTH)) {
            *number = value * 2.0_f32.powi(round % 120 - 60);
        }
        numbers[0] = 0.0;
        numbers[1] = f32::MAX;
        let parts = cut(&numbers);
        for (i, &number) in numbers.iter().enumerate() {
            let value = |part: usize| {
                let two = parts[part][i / 2];
                f64::from(f32::from_bits(if i % 2 == 0 { two << 16 } else { two & 0xffff_0000 }))
            };
            assert_eq!(value(0) + value(1) + value(2), f64::from(number), "{number}");
            assert!(value(0).abs() <= value(1).abs() || value(1) == 0.0, "the least comes first");
        }
    }
}

struct Turn<'a>(&'a [[u32; SIDE]; SIDE], &'a mut [u32]);

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        assert_eq!(self.1.len(), SIDE * SIDE);
        // SAFETY: there is room for 256 numbers.
        unsafe { lanes.transpose16(self.0, self.1.as_mut_ptr()) }
    }
}

#[test]
fn turned_tiles_have_rows_for_columns() {
    let from: [[u32; SIDE]; SIDE] = std::array::from_fn(|r| std::array::from_fn(|c| (r * SIDE + c) as u32));
    let want: Vec<u32> = (0..SIDE * SIDE).map(|i| from[i % SIDE][i / SIDE]).collect();
    for (isa, run) in Isa::all() {
        let mut to = vec![7; SIDE * SIDE];
        run.run(Turn(&from, &mut to));
        assert_eq!(to, want, "{isa}");
    }
}

#[test]
fn sums_are_as_exact_as_those_of_f32() {
    let mut random = Random::new(92);
    for (n, k) in [(37, 64), (8, 83), (130, 40), (21, 300), (70, 1100), (64, 512), (1, 1), (33, 257)] {
        for matrix in Matrix::all(&mut random, n, k).iter().filter(|m| m.format != Format::F32) {
            for rows in [1, 2, 5, 15, 16, 17, 31, 33, 64, 70] {
                let x = random.normals(rows * matrix.k);
                let expected = expected(&x, rows, matrix);
                for (isa, run) in Isa::all() {
                    for (unit, y) in products(run, &x, rows, matrix) {
                        for (at, (&y, &(exact, bound))) in y.iter().zip(&expected).enumerate() {
                            // The one scale of NVFP4 rounds once more.
                            let bound = bound + exact.abs() / f64::from(1 << 22);
                            let error = (f64::from(y) - exact).abs();
                            assert!(
                                error <= bound,
                                "{} on {isa} and {unit}: number {at} of {rows} rows is {y}, not {exact}",
                                matrix.name()
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn any_batch_and_any_part_give_the_same_bits() {
    let mut random = Random::new(93);
    for (n, k) in [(150, 1088), (70, 83)] {
        for matrix in Matrix::all(&mut random, n, k).iter().filter(|m| m.format != Format::F32) {
            let (k, rows) = (matrix.k, 70);
            let x = random.normals(rows * k);
            let isa = Isa::best();
            for (unit, whole) in products(isa, &x, rows, matrix) {
                for count in [1, 2, 3, 16, 17, 40] {
                    let first = random.below(rows - count + 1);
                    for (other, part) in products(isa, &x[first * k..][..count * k], count, matrix) {
                        let name = format!("{}: rows {first}.. of {count} on {unit}", matrix.name());
                        let same = bits(&whole[first * n..][..count * n]) == bits(&part);
                        assert!(other != unit || same, "{name}");
                    }
                }
            }
        }
    }
}

#[test]
fn asking_for_tiles_reaches_them_and_f32_weights_do_not() {
    let Ok(amx) = Amx::detect() else {
        eprintln!("no tiles: {}", Amx::detect().unwrap_err());
        return;
    };
    let mut random = Random::new(94);
    for matrix in &Matrix::all(&mut random, 160, 256) {
        let (w, rows) = (matrix.mat(), 300);
        let x = random.normals(rows * w.k);
        let (pool, mut asked, mut not) = (crate::Pool::new(3), vec![0.0; rows * w.n], vec![0.0; rows * w.n]);
        crate::linear(&crate::WithAmx::new(&pool, Some(amx)), &x, rows, w, &mut asked);
        crate::linear(&pool, &x, rows, w, &mut not);
        let direct = products(Isa::best(), &x, rows, matrix).pop().expect("the processor's").1;
        if matrix.format == Format::F32 {
            assert_eq!(bits(&asked), bits(&not));
        } else {
            assert_eq!(bits(&asked), bits(&direct), "{}", matrix.name());
            assert_ne!(bits(&asked), bits(&not), "{}", matrix.name());
        }
    }
}
