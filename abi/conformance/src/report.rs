//! What a check found.

use crate::Op;
use serde::Serialize;
use std::fmt;

/// A place in an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Coordinate {
    /// Name of the output, such as `out` or `state`.
    pub output: String,
    /// Name and number along each axis, outermost first.
    pub index: Vec<(String, usize)>,
}

impl Coordinate {
    /// Splits a flat index along `axes` (name and extent, outermost first).
    pub(crate) fn new(output: &str, mut flat: usize, axes: &[(&'static str, usize)]) -> Self {
        let mut index: Vec<(String, usize)> = Vec::with_capacity(axes.len());
        for (name, extent) in axes.iter().rev() {
            index.push(((*name).to_owned(), flat % extent));
            flat /= extent;
        }
        index.reverse();
        Self { output: output.to_owned(), index }
    }
}

impl fmt::Display for Coordinate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.output)?;
        self.index.iter().try_for_each(|(name, at)| write!(f, " {name} {at}"))
    }
}

/// One case of one op.
#[derive(Debug, Clone, Serialize)]
pub struct CaseResult {
    /// The op.
    pub op: Op,
    /// What was run: phase, sequences, shapes, and what is special.
    pub case: String,
    /// Whether it is within tolerance and broke no rule.
    pub passed: bool,
    /// The error nearest to, or furthest past, its tolerance; relative to the size of the output. 0 if nothing was
    /// measured.
    pub error: f64,
    /// Tolerance of `error`.
    pub tolerance: f64,
    /// First place past the tolerance.
    pub first: Option<Coordinate>,
    /// Value at `first`.
    pub got: Option<f64>,
    /// Truth at `first`.
    pub want: Option<f64>,
    /// Share of the truth's choice that was chosen too, for ops that choose.
    pub overlap: Option<f64>,
    /// What is wrong; empty if passed.
    pub message: String,
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} case \"{}\": ", self.op, self.case)?;
        match self.passed {
            true => write!(f, "passed, error {:.2e} of {:.0e}", self.error, self.tolerance),
            false => f.write_str(&self.message),
        }
    }
}

/// Result of a check.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Variant that was checked.
    pub variant: String,
    /// Every case, in the order they ran.
    pub cases: Vec<CaseResult>,
    /// Whether a row gave the same bits alone and in a batch, wherever that was tried. Information, not a demand.
    pub batch_invariant: bool,
}

impl Report {
    /// Whether every case passed. A variant that serves no op passes.
    pub fn passed(&self) -> bool {
        self.cases.iter().all(|c| c.passed)
    }

    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases.iter().filter(|c| !c.passed)
    }
}

impl fmt::Display for Report {
    /// One line, and one more for each failure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failures().count();
        let (verdict, n) = (if failed == 0 { "conforms" } else { "does not conform" }, self.cases.len());
        let invariant = if self.batch_invariant { "batch invariant" } else { "not batch invariant" };
        write!(f, "{} {verdict}: {} of {n} cases passed, {invariant}", self.variant, n - failed)?;
        self.failures().try_for_each(|failure| write!(f, "\n  {failure}"))
    }
}
