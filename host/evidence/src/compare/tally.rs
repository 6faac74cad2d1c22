//! What the calls of one cell add up to.

use std::sync::Arc;

use hotseam_slots::{CellId, Generation};
use serde::{Deserialize, Serialize};

use super::choice::ChoiceError;
use super::judge::Judged;
use super::metrics::FloatError;
use crate::finite;

/// A call of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Number of the call in the request, from 0.
    pub call: u64,
    /// Its cell.
    pub cell: CellId,
    /// Number of the prefill chunk; in decode the number of chunks that prefilled the request.
    pub chunk: u32,
    /// Position of its first row.
    pub first_position: i32,
}

/// A call in which something was beyond the floor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// Where.
    pub place: Place,
    /// What.
    pub what: String,
}

/// Who is wrong against truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Nobody, beyond the floor.
    Neither,
    /// The bad end's variant.
    Patched,
    /// The good end's variant.
    Stock,
    /// Both.
    Both,
}

/// One output of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputError {
    /// Name of the output.
    pub output: String,
    /// The good end's variant against truth.
    pub stock: FloatError,
    /// The bad end's variant against truth on the same inputs.
    pub patched: FloatError,
    /// `patched.rms / stock.rms`; 1 if both are exact.
    #[serde(with = "finite")]
    pub ratio: f64,
    /// Error that the number formats of the op allow, or stock's where that is larger.
    #[serde(with = "finite")]
    pub floor: f64,
}

/// One cell that differs between the two ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellTally {
    /// The cell.
    pub cell: CellId,
    /// The good end's variant.
    pub stock: String,
    /// The bad end's variant.
    pub patched: String,
    /// Calls compared.
    pub calls: u64,
    /// Rows in them.
    pub rows: u64,
    /// Outputs that are numbers.
    pub outputs: Vec<OutputError>,
    /// Choices of the good end's variant, for ops that choose.
    pub stock_choice: Option<ChoiceError>,
    /// Choices of the bad end's variant.
    pub patched_choice: Option<ChoiceError>,
    /// Calls in which the bad end's variant was beyond the floor, and the first of them.
    pub patched_alarms: u64,
    /// The first of them.
    pub first_patched: Option<Alarm>,
    /// The first in which a choice was wrong.
    pub first_discrete: Option<Alarm>,
    /// Calls in which the good end's variant was beyond the floor.
    pub stock_alarms: u64,
    /// The first of them.
    pub first_stock: Option<Alarm>,
    /// Calls that could not be compared, and why the first could not.
    pub skipped: Option<(u64, String)>,
}

impl CellTally {
    pub(super) fn new(cell: CellId, good: &Arc<Generation>, bad: &Arc<Generation>) -> Self {
        Self {
            cell,
            stock: good.spec.to_string(),
            patched: bad.spec.to_string(),
            calls: 0,
            rows: 0,
            outputs: Vec::new(),
            stock_choice: None,
            patched_choice: None,
            patched_alarms: 0,
            first_patched: None,
            first_discrete: None,
            stock_alarms: 0,
            first_stock: None,
            skipped: None,
        }
    }

    pub(super) fn add(
        &mut self,
        place: Place,
        rows: usize,
        stock: Result<Judged, Fault>,
        patched: Result<Judged, Fault>,
    ) {
        self.calls += 1;
        self.rows += rows as u64;
        for (side, result) in [(Side::Stock, &stock), (Side::Patched, &patched)] {
            match result {
                Err(Fault::Skipped(why)) => {
                    let (count, _) = self.skipped.get_or_insert_with(|| (0, why.clone()));
                    *count += 1;
                }
                Err(Fault::Wrong(what)) => self.alarm(side, &place, what.clone(), false),
                Ok(_) => {}
            }
        }
        let (good, bad) = (stock.as_ref().ok(), patched.as_ref().ok());
        if let Some(what) = good.and_then(|judged| judged.alarm(None)) {
            self.alarm(Side::Stock, &place, what, false);
        }
        // A wrong stock is no measure for anybody.
        let measure = good.filter(|judged| judged.alarm(None).is_none());
        if let Some(judged) = bad
            && let Some(what) = judged.alarm(measure)
        {
            self.alarm(Side::Patched, &place, what, judged.discrete());
        }
        if let (Ok(stock), Ok(patched)) = (stock, patched) {
            self.sum(stock, patched);
        }
    }

    fn alarm(&mut self, side: Side, place: &Place, what: String, discrete: bool) {
        let alarm = || Alarm { place: place.clone(), what: what.clone() };
        match side {
            Side::Stock => {
                self.stock_alarms += 1;
                self.first_stock.get_or_insert_with(alarm);
            }
            _ => {
                self.patched_alarms += 1;
                self.first_patched.get_or_insert_with(alarm);
                if discrete {
                    self.first_discrete.get_or_insert_with(alarm);
                }
            }
        }
    }

    fn sum(&mut self, stock: Judged, patched: Judged) {
        for (i, ((name, good, tolerance), (_, bad, own))) in
            stock.outputs.into_iter().zip(patched.outputs).enumerate()
        {
            if self.outputs.len() <= i {
                self.outputs.push(OutputError {
                    output: name.to_owned(),
                    stock: FloatError::default(),
                    patched: FloatError::default(),
                    ratio: 1.0,
                    floor: 0.0,
                });
            }
            let output = &mut self.outputs[i];
            output.stock.add(good);
            output.patched.add(bad);
            output.ratio = match (output.patched.rms, output.stock.rms) {
                (a, b) if a == b => 1.0,
                (a, b) => a / b,
            };
            output.floor = tolerance.rms.max(own.rms).max(output.stock.rms);
        }
        for (mine, its) in
            [(&mut self.stock_choice, stock.choice), (&mut self.patched_choice, patched.choice)]
        {
            if let Some(its) = its {
                mine.get_or_insert_default().add(its);
            }
        }
    }

    /// Who is wrong.
    pub fn side(&self) -> Side {
        match (self.patched_alarms > 0, self.stock_alarms > 0) {
            (false, false) => Side::Neither,
            (true, false) => Side::Patched,
            (false, true) => Side::Stock,
            (true, true) => Side::Both,
        }
    }

    /// The largest error of the bad end's variant, in floors.
    pub fn floors(&self) -> f64 {
        let floats = self.outputs.iter().map(|o| {
            let beyond = o.patched.rms.max(o.patched.row / super::judge::ROW_FLOORS);
            if o.patched.non_finite > 0 { f64::INFINITY } else { beyond / o.floor.max(f64::MIN_POSITIVE) }
        });
        let gap =
            self.patched_choice.as_ref().map_or(0.0, |c| if c.broken() > 0 { f64::INFINITY } else { c.gap });
        floats.fold(gap, f64::max)
    }

    /// The largest ratio of the two sides' errors.
    pub fn ratio(&self) -> f64 {
        self.outputs.iter().map(|o| o.ratio).fold(1.0, f64::max)
    }
}

/// Why a side gave nothing to judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The variant failed, or wrote where it may not.
    Wrong(String),
    /// It could not be tried on these inputs.
    Skipped(String),
}
