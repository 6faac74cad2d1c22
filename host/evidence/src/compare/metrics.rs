//! Distances of an output from truth.

use serde::{Deserialize, Serialize};

use super::values::Values;
use crate::finite;

/// A unit whose size is less than this share of the whole output's is measured against the whole output: it cancelled.
const UNIT_FLOOR: f64 = 1e-3;

/// A place in an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// Number of the call in the request, from 0.
    pub call: u64,
    /// Name and number along each axis, such as `row 3 head 1 channel 70`.
    pub coordinate: String,
}

/// How far an output is from truth, over one call or many.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FloatError {
    /// Values compared.
    pub values: u64,
    /// Largest absolute error.
    #[serde(with = "finite")]
    pub max_abs: f64,
    /// Where it is.
    pub at: Option<At>,
    /// The value there.
    #[serde(with = "finite")]
    pub got: f64,
    /// Truth there.
    #[serde(with = "finite")]
    pub want: f64,
    /// Mean absolute error; the largest of all calls.
    #[serde(with = "finite")]
    pub mean_abs: f64,
    /// `|a - b| / |b|` over all values.
    #[serde(with = "finite")]
    pub rms: f64,
    /// `1 - 2 <a, b> / (|a|^2 + |b|^2)`, which sees scale as well; the largest of all calls.
    #[serde(with = "finite")]
    pub calc_diff: f64,
    /// 99th percentile of the absolute errors; the largest of all calls.
    #[serde(with = "finite")]
    pub p99: f64,
    /// 99.9th percentile of the absolute errors; the largest of all calls.
    #[serde(with = "finite")]
    pub p999: f64,
    /// Largest `|a - b| / |b|` of one row or entry.
    #[serde(with = "finite")]
    pub row: f64,
    /// Places where one side is a number and the other is not, or the infinities differ.
    pub non_finite: u64,
    #[serde(skip)]
    squares: [f64; 2],
}

/// Compares `got` with `want`, items that are not `live` aside.
pub(crate) fn floats(
    got: &Values,
    want: &Values,
    live: impl Fn(&Values, usize) -> bool,
    call: u64,
) -> FloatError {
    let (Some(a), Some(b)) = (got.floats(), want.floats()) else { return FloatError::default() };
    let width = want.width.max(1);
    let mut e = FloatError::default();
    let mut errors = Vec::with_capacity(b.len());
    let mut rows = Vec::new();
    let (mut aa, mut ab) = (0f64, 0f64);
    for (item, (a, b)) in a.chunks_exact(width).zip(b.chunks_exact(width)).enumerate() {
        if !live(want, item) {
            continue;
        }
        let (mut dd, mut bb) = (0f64, 0f64);
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            e.values += 1;
            if !(x.is_finite() && y.is_finite()) {
                // Two infinities of one sign and two NaN agree; what agrees has no distance.
                if x.to_bits() != y.to_bits() && !(x.is_nan() && y.is_nan()) {
                    e.non_finite += 1;
                    if e.at.is_none() || e.max_abs.is_finite() {
                        e.note(f64::INFINITY, *x, *y, || place(want, item, i), call);
                    }
                }
                continue;
            }
            let (x64, y64) = (f64::from(*x), f64::from(*y));
            let d = (x64 - y64).abs();
            if d > e.max_abs {
                e.note(d, *x, *y, || place(want, item, i), call);
            }
            errors.push(d as f32);
            dd += d * d;
            bb += y64 * y64;
            aa += x64 * x64;
            ab += x64 * y64;
        }
        e.squares[0] += dd;
        e.squares[1] += bb;
        rows.push((dd, bb));
    }
    let n = errors.len().max(1);
    let overall = e.squares[1] / rows.len().max(1) as f64;
    let relative = |(dd, bb): &(f64, f64)| ratio(dd.sqrt(), bb.max(UNIT_FLOOR * UNIT_FLOOR * overall).sqrt());
    e.row = rows.iter().map(relative).fold(0.0, f64::max);
    e.mean_abs = errors.iter().map(|d| f64::from(*d)).sum::<f64>() / n as f64;
    errors.sort_unstable_by(f32::total_cmp);
    let percentile = |per_mille: usize| {
        errors.get((errors.len() * per_mille).div_ceil(1000).saturating_sub(1)).map_or(0.0, |d| f64::from(*d))
    };
    (e.p99, e.p999) = (percentile(990), percentile(999));
    let sum = aa + e.squares[1];
    e.calc_diff = if sum > 0.0 { (1.0 - 2.0 * ab / sum).max(0.0) } else { 0.0 };
    e.finish();
    e
}

/// `a / b`, where 0 of 0 is 0 and anything else of 0 is infinite.
fn ratio(a: f64, b: f64) -> f64 {
    match (a == 0.0, b == 0.0) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => a / b,
    }
}

fn place(values: &Values, item: usize, mut flat: usize) -> String {
    let mut parts = Vec::new();
    for (name, extent) in values.inner.iter().rev() {
        parts.push(format!("{name} {}", flat % extent.max(&1)));
        flat /= extent.max(&1);
    }
    parts.push(format!("{} {} {}", values.name, values.axis, values.items[item]));
    parts.reverse();
    parts.join(" ")
}

impl FloatError {
    fn note(&mut self, error: f64, got: f32, want: f32, at: impl FnOnce() -> String, call: u64) {
        self.max_abs = error;
        self.at = Some(At { call, coordinate: at() });
        (self.got, self.want) = (f64::from(got), f64::from(want));
    }

    fn finish(&mut self) {
        self.rms = ratio(self.squares[0].sqrt(), self.squares[1].sqrt());
    }

    /// Adds the errors of another call of the same output.
    pub(crate) fn add(&mut self, other: Self) {
        self.values += other.values;
        self.non_finite += other.non_finite;
        if other.max_abs > self.max_abs || self.at.is_none() {
            (self.max_abs, self.at) = (other.max_abs, other.at);
            (self.got, self.want) = (other.got, other.want);
        }
        for (mine, its) in [
            (&mut self.mean_abs, other.mean_abs),
            (&mut self.calc_diff, other.calc_diff),
            (&mut self.p99, other.p99),
            (&mut self.p999, other.p999),
            (&mut self.row, other.row),
        ] {
            *mine = mine.max(its);
        }
        self.squares = [self.squares[0] + other.squares[0], self.squares[1] + other.squares[1]];
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::super::values::Data;
    use super::*;

    fn values(data: &[f32]) -> Values {
        Values {
            name: "out",
            axis: "row",
            inner: vec![("head", 2), ("channel", 2)],
            items: (0..data.len() / 4).map(|i| i + 5).collect(),
            width: 4,
            data: Data::Floats(data.to_vec()),
        }
    }

    #[test]
    fn distances_of_known_values() {
        let want = values(&[1.0, 2.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0]);
        let got = values(&[1.0, 2.0, 2.0, 0.0, 3.0, 0.0, 4.5, 0.0]);
        let e = floats(&got, &want, |_, _| true, 7);
        assert_eq!((e.values, e.max_abs, e.non_finite), (8, 0.5, 0));
        assert_eq!(e.at, Some(At { call: 7, coordinate: "out row 6 head 1 channel 0".into() }));
        assert_eq!((e.got, e.want), (4.5, 4.0));
        assert!((e.rms - 0.5 / 34f64.sqrt()).abs() < 1e-12 && (e.row - 0.1).abs() < 1e-12);
        assert!((e.calc_diff - (1.0 - 2.0 * 36.0 / (34.0 + 38.25))).abs() < 1e-12);
        assert_eq!((e.p99, e.p999, e.mean_abs), (0.5, 0.5, 0.5 / 8.0));
        assert_eq!(floats(&want, &want, |_, _| true, 0).rms, 0.0);
        assert_eq!(floats(&got, &want, |_, item| item == 0, 0).max_abs, 0.0, "dead rows do not count");
    }

    #[test]
    fn numbers_that_are_none_are_counted_by_place() {
        let want = values(&[1.0, f32::NAN, f32::INFINITY, 1.0]);
        let same = values(&[1.0, f32::NAN, f32::INFINITY, 1.0]);
        assert_eq!(floats(&same, &want, |_, _| true, 0).non_finite, 0);
        let got = values(&[1.0, 1.0, f32::NEG_INFINITY, f32::NAN]);
        let e = floats(&got, &want, |_, _| true, 0);
        assert_eq!((e.non_finite, e.max_abs), (3, f64::INFINITY));
        assert_eq!(e.at.unwrap().coordinate, "out row 5 head 0 channel 1");
    }

    #[test]
    fn calls_add_up_to_their_union() {
        let (want, got) = (values(&[1.0, 2.0, 3.0, 4.0]), values(&[1.0, 2.0, 3.0, 5.0]));
        let mut sum = floats(&want, &want, |_, _| true, 0);
        sum.add(floats(&got, &want, |_, _| true, 1));
        assert_eq!((sum.values, sum.max_abs, sum.at.as_ref().unwrap().call), (8, 1.0, 1));
        assert!((sum.rms - 1.0 / 60f64.sqrt()).abs() < 1e-12);
    }
}
