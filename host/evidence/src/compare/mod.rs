//! Lockstep shadow: both ends of a comparison and truth, on identical inputs, for every call of a request.
//!
//! The good end drives. At each call of a cell that differs, its variant, the bad end's and truth run on the same inputs
//! with outputs of their own ([`hotseam_engine::observe::Scratch`]), and each variant is judged by its distance from
//! truth, so the answer can be that stock is the wrong one. Where the ends store index keys in different layouts, the
//! bad end reads keys that truth stored in its layout: a fault of the store is then not blamed on the reader.
//!
//! An error counts when it is beyond a floor: what the number formats of the op allow (the table of
//! [`hotseam_conformance::tolerances`]), or what stock's own error is where that is larger. Choices are judged by scores
//! recomputed from the same inputs, never by order. A transport that differs is watched in a request of the bad end.

pub(crate) mod choice;
pub(crate) mod judge;
mod keys;
pub(crate) mod metrics;
mod report;
mod shadow;
mod suspect;
mod tally;
mod transport;
pub(crate) mod values;
mod workload;

pub use choice::ChoiceError;
pub use judge::{GAP_FLOORS, RMS_FLOORS, ROW_FLOORS};
pub use metrics::{At, FloatError};
pub use report::Comparison;
pub use shadow::Progress;
pub use suspect::{Weighed, suspicions};
pub use tally::{Alarm, CellTally, OutputError, Place, Side};
pub use workload::Workload;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hotseam_engine::Engine;
use hotseam_engine::observe::Observer;
use hotseam_slots::Snapshot;

use crate::{EvidenceError, RequestFailure, ask};
use shadow::Shadow;
use transport::Handoff;

/// Compares the assignments `good` and `bad` on a request that `good` serves. `progress` hears the rows that are done,
/// on the engine thread.
///
/// # Errors
/// [`EvidenceError::Assignment`] for a name that is not defined, [`EvidenceError::Submit`], and
/// [`EvidenceError::Baseline`] if the request fails under `good`.
pub fn compare(
    engine: &Engine,
    good: &str,
    bad: &str,
    workload: &Workload,
    progress: Progress,
) -> Result<Comparison, EvidenceError> {
    let begin = Instant::now();
    let (good_end, bad_end) = (snapshot(engine, good)?, snapshot(engine, bad)?);
    let shadow = Arc::new(Mutex::new(Shadow::new(&good_end, &bad_end, progress)));
    let tokens = observed(engine, good, workload, Box::new(Arc::clone(&shadow)))?;
    let mut shadow = shadow.lock().unwrap_or_else(PoisonError::into_inner);
    let mut cells: Vec<CellTally> = std::mem::take(&mut shadow.cells).into_values().collect();
    if transport::differs(&good_end, &bad_end) {
        let handoff = Arc::new(Mutex::new(Handoff::default()));
        let prompt = Workload { max_tokens: 1, forced: Vec::new(), ..workload.clone() };
        observed(engine, bad, &prompt, Box::new(Arc::clone(&handoff)))?;
        let handoff = handoff.lock().unwrap_or_else(PoisonError::into_inner);
        // The hand-off comes after the prefill calls; its number says so.
        cells.extend(handoff.tally(&good_end, &bad_end, shadow.prefill_calls));
    }
    let mut comparison = Comparison::new(good, bad, cells);
    comparison.prompt_tokens = workload.prompt.len();
    comparison.decode_tokens = tokens.len();
    comparison.calls = shadow.calls;
    comparison.seconds = begin.elapsed().as_secs_f64();
    Ok(comparison)
}

/// The snapshot of a name.
///
/// # Errors
/// [`EvidenceError::Assignment`].
pub(crate) fn snapshot(engine: &Engine, name: &str) -> Result<Arc<Snapshot>, EvidenceError> {
    engine.slots().snapshot(name).ok_or_else(|| EvidenceError::Assignment {
        name: name.to_owned(),
        known: engine.slots().names().join(", "),
    })
}

/// Runs a request under `assignment` with an observer.
///
/// # Errors
/// [`EvidenceError::Submit`] and [`EvidenceError::Baseline`].
pub(crate) fn observed(
    engine: &Engine,
    assignment: &str,
    workload: &Workload,
    observer: Box<dyn Observer>,
) -> Result<Vec<u32>, EvidenceError> {
    let handle = engine.observe(workload.request(assignment), observer)?;
    ask::finish(&handle, |_, _| {}).map_err(|RequestFailure { code, message }| EvidenceError::Baseline {
        assignment: assignment.to_owned(),
        code,
        message,
    })
}
