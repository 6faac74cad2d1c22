//! How outputs are held against the truth's.

use crate::report::{CaseResult, Coordinate};
use crate::tolerances::Tolerance;
use crate::{Op, tolerances};

/// Collects what a case shows; keeps the worst finding.
pub(crate) struct Judge {
    op: Op,
    layout: u32,
    worst: Option<Finding>,
    overlap: Option<f64>,
}

struct Finding {
    error: f64,
    tolerance: f64,
    first: Option<(Coordinate, f64, f64)>,
    /// Set if the case fails.
    message: Option<String>,
}

/// An f32 output of which `unit` neighbouring elements belong together (a head, a row, an entry): errors are relative
/// to the root mean square of the truth over the unit, or to `floor` times that of the whole output if that is more.
pub(crate) struct Floats<'a> {
    pub(crate) output: &'static str,
    pub(crate) want: &'a [f32],
    pub(crate) got: &'a [f32],
    pub(crate) axes: &'a [(&'static str, usize)],
    pub(crate) unit: usize,
    pub(crate) floor: f64,
}

/// Floor for outputs whose units may differ in size, but are each a sum of many terms.
pub(crate) const BY_UNIT: f64 = 1e-3;

/// Floor for outputs whose unit may be a single number that cancelled to nearly nothing.
pub(crate) const BY_OUTPUT: f64 = 1.0;

impl Judge {
    pub(crate) fn new(op: Op, layout: u32) -> Self {
        Self { op, layout, worst: None, overlap: None }
    }

    /// Tolerance of an output of the op.
    pub(crate) fn tolerance(&self, output: &str) -> Tolerance {
        tolerances::of(self.op, output, self.layout)
    }

    /// Reports what is wrong without a number.
    pub(crate) fn fail(&mut self, message: String) {
        self.record(Finding { error: f64::INFINITY, tolerance: 0.0, first: None, message: Some(message) });
    }

    /// Reports a place whose value is not the one it must be.
    pub(crate) fn fail_at(&mut self, at: Coordinate, got: f64, want: f64, message: String) {
        let first = Some((at, got, want));
        self.record(Finding { error: f64::INFINITY, tolerance: 0.0, first, message: Some(message) });
    }

    /// Notes the share of a choice that agrees with the truth's; the lowest is kept.
    pub(crate) fn overlap(&mut self, share: f64) {
        self.overlap = Some(self.overlap.map_or(share, |o: f64| o.min(share)));
    }

    /// Notes a measured error; `what` says what it is.
    pub(crate) fn error(
        &mut self,
        what: &str,
        error: f64,
        tolerance: f64,
        first: Option<(Coordinate, f64, f64)>,
    ) {
        let message = (error > tolerance || error.is_nan()).then(|| {
            let place = first
                .as_ref()
                .map_or(String::new(), |(at, got, want)| format!(" at {at}: got {got}, want {want}"));
            format!("{what} {error:.3e} > tolerance {tolerance:.0e}{place}")
        });
        self.record(Finding { error, tolerance, first, message });
    }

    /// Compares an f32 output, leaving out the padded rows if its outer axis is `row` and places where truth is NaN.
    pub(crate) fn floats(&mut self, floats: &Floats<'_>, live: &dyn Fn(usize) -> bool) {
        let tolerance = self.tolerance(floats.output);
        let row_len = floats.axes[1..].iter().map(|(_, n)| n).product::<usize>().max(1);
        let units = || {
            let pairs = floats.want.chunks(floats.unit).zip(floats.got.chunks(floats.unit)).enumerate();
            pairs.filter(|(u, _)| live(u * floats.unit / row_len))
        };
        let (sum, n) = units()
            .flat_map(|(_, (want, _))| want)
            .filter(|v| v.is_finite())
            .fold((0f64, 0usize), |(sum, n), v| (sum + f64::from(*v).powi(2), n + 1));
        let overall = (sum / n.max(1) as f64).sqrt();
        let (mut largest, mut squares, mut compared, mut first) = (0f64, 0f64, 0usize, None);
        for (u, (want, got)) in units() {
            let finite: Vec<f64> =
                want.iter().filter(|v| v.is_finite()).map(|v| f64::from(*v).powi(2)).collect();
            let rms = (finite.iter().sum::<f64>() / finite.len().max(1) as f64).sqrt();
            let scale = rms.max(floats.floor * overall).max(1e-12);
            for (i, (w, g)) in want.iter().zip(got).enumerate().filter(|(_, (w, _))| !w.is_nan()) {
                let error = match w.to_bits() == g.to_bits() {
                    true => 0.0,
                    false => (f64::from(*g) - f64::from(*w)).abs() / scale,
                };
                let error = if error.is_nan() { f64::INFINITY } else { error };
                largest = largest.max(error);
                squares += error * error;
                compared += 1;
                if error > tolerance.max && first.is_none() {
                    let at = Coordinate::new(floats.output, u * floats.unit + i, floats.axes);
                    first = Some((at, f64::from(*g), f64::from(*w)));
                }
            }
        }
        self.error("max error", largest, tolerance.max, first);
        let rms = (squares / compared.max(1) as f64).sqrt();
        if rms > tolerance.rms && largest <= tolerance.max {
            let message = format!("{}: rms error {rms:.3e} > tolerance {:.0e}", floats.output, tolerance.rms);
            self.record(Finding {
                error: rms,
                tolerance: tolerance.rms,
                first: None,
                message: Some(message),
            });
        }
    }

    fn record(&mut self, finding: Finding) {
        // The first hard failure stays; else the finding that is furthest towards or past its tolerance.
        let weight = |f: &Finding| if f.tolerance > 0.0 { f.error / f.tolerance } else { f.error };
        if self.worst.as_ref().is_none_or(|worst| weight(&finding) > weight(worst)) {
            self.worst = Some(finding);
        }
    }

    /// The result of the case.
    pub(crate) fn finish(self, case: String) -> CaseResult {
        let none = Finding { error: 0.0, tolerance: 0.0, first: None, message: None };
        let worst = self.worst.unwrap_or(none);
        let (first, got, want) = match worst.first {
            Some((at, got, want)) => (Some(at), Some(got), Some(want)),
            None => (None, None, None),
        };
        CaseResult {
            op: self.op,
            case,
            passed: worst.message.is_none(),
            error: worst.error,
            tolerance: worst.tolerance,
            first,
            got,
            want,
            overlap: self.overlap,
            message: worst.message.unwrap_or_default(),
        }
    }
}
