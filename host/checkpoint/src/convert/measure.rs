//! How far stored values are from those that they came from.

use std::thread;

use hotseam_model::{Format, Matrix};
use serde::Serialize;

/// Values below which a second thread costs more than it brings.
const SMALL: usize = 1 << 16;

/// Sums over the values of one or many matrices.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Sums {
    pub(super) values: u64,
    clipped: u64,
    square: f64,
    error_square: f64,
    error_max: f64,
}

impl Sums {
    pub(super) fn add(&mut self, other: &Self) {
        self.values += other.values;
        self.clipped += other.clipped;
        self.square += other.square;
        self.error_square += other.error_square;
        self.error_max = self.error_max.max(other.error_max);
    }

    /// Compares a matrix with the values that it was made of.
    pub(super) fn of(values: &[f32], stored: &Matrix, threads: usize) -> Self {
        let rows = band(stored.n, values.len(), threads);
        let parts: Vec<Self> = thread::scope(|scope| {
            let bands = values.chunks((rows * stored.k).max(1)).enumerate();
            let part = |(number, values): (usize, &[f32])| Self::of_rows(values, stored, number * rows);
            let running: Vec<_> = bands
                .map(|band| {
                    let values: (usize, &[f32]) = band;
                    scope.spawn(move || part(values))
                })
                .collect();
            running.into_iter().map(|handle| handle.join().expect("a sum does not panic")).collect()
        });
        let mut all = Self::default();
        parts.iter().for_each(|part| all.add(part));
        all
    }

    fn of_rows(values: &[f32], stored: &Matrix, first: usize) -> Self {
        let mut sums = Self { values: values.len() as u64, ..Self::default() };
        let mut read = vec![0.0; stored.k];
        for (row, values) in values.chunks(stored.k.max(1)).enumerate() {
            stored.read_row(first + row, &mut read);
            for (column, (&value, &read)) in values.iter().zip(&read).enumerate() {
                let error = f64::from(read) - f64::from(value);
                sums.square += f64::from(value) * f64::from(value);
                sums.error_square += error * error;
                sums.error_max = sums.error_max.max(error.abs());
                let beyond =
                    value.abs() > read.abs() && is_largest(stored, (first + row) * stored.k + column);
                sums.clipped += u64::from(beyond);
            }
        }
        sums
    }

    /// The figures of a report.
    pub(super) fn figures(&self) -> Figures {
        let relative = if self.square > 0.0 { (self.error_square / self.square).sqrt() } else { 0.0 };
        Figures {
            max_error: self.error_max,
            relative_rms: relative,
            snr_db: (relative > 0.0).then(|| -20.0 * relative.log10()),
            clipped: if self.values > 0 { self.clipped as f64 / self.values as f64 } else { 0.0 },
        }
    }
}

/// Error of stored values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Largest absolute difference.
    pub max_error: f64,
    /// Root of the mean square error over that of the mean square value.
    pub relative_rms: f64,
    /// The same in decibels; absent where there is no error.
    pub snr_db: Option<f64>,
    /// Share of values beyond the largest that their scale can hold.
    pub clipped: f64,
}

/// Whether the code at a flat index has the largest magnitude of its format.
fn is_largest(matrix: &Matrix, index: usize) -> bool {
    let codes = matrix.data.bytes();
    match matrix.format {
        Format::F32 | Format::Bf16 => false,
        Format::Fp8Block => codes[index] & 0x7f == 0x7e,
        Format::Mxfp4 | Format::Nvfp4 => codes[index / 2] >> (4 * (index % 2)) & 7 == 7,
    }
}

/// All values of a matrix, on several threads.
pub(super) fn values(matrix: &Matrix, threads: usize) -> Vec<f32> {
    let mut out = vec![0.0; matrix.n * matrix.k];
    let rows = band(matrix.n, out.len(), threads);
    let width = matrix.k.max(1);
    thread::scope(|scope| {
        for (number, band) in out.chunks_mut((rows * matrix.k).max(1)).enumerate() {
            scope.spawn(move || {
                for (row, out) in band.chunks_mut(width).enumerate() {
                    matrix.read_row(number * rows + row, out);
                }
            });
        }
    });
    out
}

/// Rows for each thread.
fn band(rows: usize, values: usize, threads: usize) -> usize {
    if values < SMALL { rows.max(1) } else { rows.div_ceil(threads.max(1)).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantise::quantise;

    #[test]
    fn figures_by_hand() {
        // The first group has the scale 1, the second 1/2, by their largest values 6 and 3; 0.3 and 0.4 round.
        let mut values = vec![0.0f32; 64];
        (values[0], values[1], values[32], values[33]) = (6.0, 0.3, 3.0, 0.4);
        let stored = quantise(Format::Mxfp4, &values, [1, 64], 1.0, 1).unwrap();
        let figures = Sums::of(&values, &stored, 1).figures();
        let (first, second) = (0.5 - f64::from(0.3f32), 0.5 - f64::from(0.4f32));
        assert_eq!(figures.max_error, first);
        let square = 45.0 + f64::from(0.3f32).powi(2) + f64::from(0.4f32).powi(2);
        let relative = ((first * first + second * second) / square).sqrt();
        assert!((figures.relative_rms - relative).abs() < 1e-12);
        assert!((figures.snr_db.unwrap() - 20.0 * (1.0 / relative).log10()).abs() < 1e-9);
        assert_eq!(figures.clipped, 0.0);
        // A factor so small that both scales end at 448: the largest value of each group is cut to 6 * 448 / 1024.
        let stored = quantise(Format::Nvfp4, &values, [1, 64], 1.0 / 1024.0, 1).unwrap();
        let figures = Sums::of(&values, &stored, 1).figures();
        assert_eq!((figures.clipped, figures.max_error), (2.0 / 64.0, 6.0 - 2.625));
    }

    #[test]
    fn threads_change_only_the_order_of_sums() {
        let (n, k) = (700, 128);
        let source: Vec<f32> = (0..n * k).map(|i| ((i * 7919) % 10007) as f32 / 1000.0 - 5.0).collect();
        let stored = quantise(Format::Fp8Block, &source, [n, k], 1.0, 3).unwrap();
        let (one, many) = (Sums::of(&source, &stored, 1), Sums::of(&source, &stored, 4));
        assert_eq!((one.values, one.clipped, one.error_max), (many.values, many.clipped, many.error_max));
        assert!((one.error_square / many.error_square - 1.0).abs() < 1e-12);
        assert_eq!(values(&stored, 4), stored.to_f32_vec());
        let dense = quantise(Format::F32, &source, [n, k], 1.0, 1).unwrap();
        assert_eq!(Sums::of(&source, &dense, 2).figures().snr_db, None);
    }
}
