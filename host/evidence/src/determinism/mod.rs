//! The same call again and again: equal inputs must give equal bits. What differs is a race, or memory that nobody wrote.
//!
//! Needs no reference. It accuses and never clears: a race may sleep.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hotseam_engine::Engine;
use hotseam_engine::observe::{Call, Observer, Scratch, Stepping};
use hotseam_slots::{CallError, CellId, Generation};
use serde::{Deserialize, Serialize};

use crate::EvidenceError;
use crate::compare::{Place, Weighed, Workload, observed};

/// Times a call is made, unless asked otherwise.
pub const REPEATS: usize = 20;
/// Calls of each cell that are repeated: those of the first and of the last prefill chunk are unlike.
const CALLS_PER_CELL: u64 = 3;
/// Likelihood ratio of a change whose cell gives different bits on the same inputs.
const RACES: f64 = 30.0;

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeated {
    /// The cell.
    pub cell: CellId,
    /// Its variant.
    pub variant: String,
    /// Calls that were repeated.
    pub calls: u64,
    /// Runs of those calls, the first of each aside.
    pub runs: u64,
    /// Runs whose outputs were not those of the first, bit for bit.
    pub differing: u64,
    /// The first of them.
    pub first: Option<Difference>,
    /// Set if the variant failed.
    pub failure: Option<String>,
}

/// A run that gave other bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The call.
    pub place: Place,
    /// Number of the run, from 1.
    pub run: usize,
    /// Name of the output.
    pub output: String,
    /// Bytes that differ, of those of the output.
    pub bytes: (usize, usize),
    /// Row or entry of the first.
    pub item: usize,
}

/// What the repeats of one request show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Determinism {
    /// Assignment whose cells were repeated.
    pub assignment: String,
    /// Times each call was made.
    pub repeats: usize,
    /// The cells, those of the assignment in order.
    pub cells: Vec<Repeated>,
}

/// Repeats calls of `cells`, all if empty, as `bad` serves them, on the inputs that a request under `good` gives.
///
/// # Errors
/// [`EvidenceError::Assignment`], [`EvidenceError::Submit`] and [`EvidenceError::Baseline`].
pub fn repeat(
    engine: &Engine,
    good: &str,
    bad: &str,
    cells: &[CellId],
    workload: &Workload,
    repeats: usize,
) -> Result<Determinism, EvidenceError> {
    let bad_end = crate::compare::snapshot(engine, bad)?;
    let good_end = crate::compare::snapshot(engine, good)?;
    let wanted = |cell: &CellId| cells.is_empty() || cells.contains(cell);
    // A variant of another layout would need pools of its own; its entries are the same in any.
    let same_layout = |cell: &CellId| {
        let layer = cell.layer.unwrap_or(0) as usize;
        cell.layer.is_none()
            || (good_end.kv_layout(layer), good_end.key_layout(layer))
                == (bad_end.kv_layout(layer), bad_end.key_layout(layer))
    };
    let variants: BTreeMap<CellId, Arc<Generation>> = bad_end
        .cells()
        .filter(|view| wanted(&view.cell))
        .map(|view| (view.cell, view.generation.clone()))
        .collect();
    // Cells of another layout are driven by the bad end itself.
    let driver = if variants.keys().all(same_layout) { good } else { bad };
    let repeater = Repeater { variants, repeats, chunk: 0, calls: 0, cells: BTreeMap::new() };
    let repeater = Arc::new(Mutex::new(repeater));
    observed(engine, driver, workload, Box::new(Arc::clone(&repeater)))?;
    let mut repeater = repeater.lock().unwrap_or_else(PoisonError::into_inner);
    let cells = std::mem::take(&mut repeater.cells).into_values().collect();
    Ok(Determinism { assignment: bad.to_owned(), repeats, cells })
}

struct Repeater {
    variants: BTreeMap<CellId, Arc<Generation>>,
    repeats: usize,
    chunk: u32,
    calls: u64,
    cells: BTreeMap<CellId, Repeated>,
}

impl Observer for Repeater {
    fn step(&mut self, step: Stepping<'_>) {
        self.chunk = step.chunk;
    }

    fn call(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        if let Some(variant) = self.variants.get(&call.cell) {
            let place = Place {
                call: self.calls,
                cell: call.cell,
                chunk: self.chunk,
                first_position: call.positions().ok().and_then(|all| all.first().copied()).unwrap_or(-1),
            };
            let entry = self.cells.entry(call.cell).or_insert_with(|| Repeated {
                cell: call.cell,
                variant: variant.spec.to_string(),
                calls: 0,
                runs: 0,
                differing: 0,
                first: None,
                failure: None,
            });
            if entry.calls < CALLS_PER_CELL && entry.failure.is_none() {
                entry.calls += 1;
                repeat_call(call, variant, self.repeats, place, entry);
            }
        }
        self.calls += 1;
        call.run()
    }
}

fn repeat_call(
    call: &Call<'_>,
    variant: &Arc<Generation>,
    repeats: usize,
    place: Place,
    entry: &mut Repeated,
) {
    let mut scratch = match call.scratch(None) {
        Ok(scratch) => scratch,
        Err(error) => {
            entry.failure = Some(error.to_string());
            return;
        }
    };
    let run = |scratch: &mut Scratch| {
        scratch.reset().map_err(|error| error.to_string())?;
        call.invoke(variant, scratch).map_err(|error| error.message)?;
        scratch.outputs().map_err(|error| error.to_string())
    };
    let first = match run(&mut scratch) {
        Ok(first) => first,
        Err(error) => {
            entry.failure = Some(error);
            return;
        }
    };
    for number in 1..repeats {
        entry.runs += 1;
        let again = match run(&mut scratch) {
            Ok(again) => again,
            Err(error) => {
                entry.failure = Some(error);
                return;
            }
        };
        let Some(output) = (0..first.len()).find(|i| again[*i] != first[*i]) else { continue };
        entry.differing += 1;
        if entry.first.is_none() {
            let differing = |(a, b): &(&u8, &u8)| a != b;
            let pairs = || first[output].iter().zip(&again[output]);
            let at = pairs().position(|pair| differing(&pair)).unwrap_or(0);
            let spot = &scratch.places()[output];
            entry.first = Some(Difference {
                place: place.clone(),
                run: number,
                output: spot.name.to_owned(),
                bytes: (pairs().filter(differing).count(), first[output].len()),
                item: spot.items.get(at / spot.item_bytes.max(1)).map_or(0, |(item, _)| *item),
            });
        }
    }
}

impl Repeated {
    /// Share of the runs that gave other bits.
    pub fn rate(&self) -> f64 {
        self.differing as f64 / self.runs.max(1) as f64
    }
}

impl Determinism {
    /// The cells that gave other bits.
    pub fn races(&self) -> impl Iterator<Item = &Repeated> {
        self.cells.iter().filter(|cell| cell.differing > 0)
    }

    /// Weighs changes, each given by its cells; `None` for those without a race, which this clears of nothing.
    pub fn suspicions(&self, changes: &[Vec<CellId>]) -> Vec<Option<Weighed>> {
        let weigh = |cells: &Vec<CellId>| {
            let found =
                self.races().filter(|race| cells.contains(&race.cell)).max_by_key(|race| race.differing)?;
            let evidence = format!("E2 repeat: {found}");
            Some(Weighed { weight: RACES, evidence })
        };
        changes.iter().map(weigh).collect()
    }
}

impl fmt::Display for Repeated {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {} of {} repeats gave other bits", self.cell, self.differing, self.runs)?;
        match &self.first {
            Some(d) => write!(
                out,
                ", first in {} item {} ({} of {} bytes, call {}, chunk {})",
                d.output, d.item, d.bytes.0, d.bytes.1, d.place.call, d.place.chunk
            ),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Determinism {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: u64 = self.cells.iter().map(|cell| cell.calls).sum();
        let (assignment, repeats) = (&self.assignment, self.repeats);
        writeln!(out, "determinism  assignment {assignment}  {calls} calls, each made {repeats} times")?;
        for race in self.races() {
            writeln!(out, "  {race}\n    {}", race.variant)?;
        }
        for cell in &self.cells {
            if let Some(failure) = &cell.failure {
                writeln!(out, "  {}: {} failed: {failure}", cell.cell, cell.variant)?;
            }
        }
        match self.races().next() {
            Some(_) => Ok(()),
            None => writeln!(out, "  every repeat gave the same bits"),
        }
    }
}
