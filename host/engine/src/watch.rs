//! The engine thread's side of swaps: which table a step runs on, when a step is given up, and what is counted.
//!
//! A table that failed is left at once: steps run on the one before it until the swap thread has put that back.

use crate::swaps::trial::{Failure, Fault, Link, Stage, Trial};
use hotseam_slots::{CallError, Probation, Slots, Snapshot};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Decode steps of a size that are seen before their time counts as known.
const WARM: u32 = 4;
/// Weight of a new step in the mean time of its size.
const WEIGHT: f32 = 0.1;

/// Why a step was given up.
#[derive(Debug)]
pub(crate) enum StepFault {
    /// A call failed.
    Call(CallError),
    /// Numbers that are not finite came out, on a table in probation.
    NotFinite,
}

impl StepFault {
    fn failure(&self, step: u64) -> Failure {
        match self {
            Self::Call(error) => Failure { code: 501, message: format!("step {step}: {error}") },
            Self::NotFinite => Failure {
                code: 502,
                message: format!(
                    "E-PLUG-502 step {step}: its numbers are not finite on the new variants. Look at them with \
                     `hotseam compare` or the engine's guard."
                ),
            },
        }
    }
}

/// A table that failed, until it is no longer in force.
#[derive(Debug)]
struct Retreat {
    bad: Arc<Snapshot>,
    good: Arc<Snapshot>,
}

/// Mean times of decode steps of an assignment, by rows.
#[derive(Debug)]
struct Pace {
    assignment: Arc<str>,
    /// Steps seen and mean seconds.
    by_rows: Vec<(u32, f32)>,
}

/// What a step was, for its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timed<'a> {
    pub(crate) assignment: &'a Arc<str>,
    /// Rows, if it was a decode step.
    pub(crate) decode_rows: Option<usize>,
    pub(crate) seconds: f32,
    pub(crate) number: u64,
}

#[derive(Debug)]
pub(crate) struct Watch {
    link: Arc<Link>,
    trial: Option<Arc<Trial>>,
    retreats: Vec<Retreat>,
    paces: Vec<Pace>,
    max_rows: usize,
    /// Slow steps in a row, and the sum and number of compared times, of the trial.
    slow: u32,
    ratios: (f32, u32),
}

impl Watch {
    /// `max_rows` bounds the rows of a decode step.
    pub(crate) fn new(link: Arc<Link>, max_rows: usize) -> Self {
        Self {
            link,
            trial: None,
            retreats: Vec::with_capacity(4),
            paces: Vec::new(),
            max_rows,
            slow: 0,
            ratios: (0.0, 0),
        }
    }

    /// Looks for a new trial, at the begin of a turn.
    pub(crate) fn turn(&mut self, slots: &Slots) {
        if let Some(trial) = self.link.changed(self.trial.as_ref()) {
            self.trial = trial;
            self.slow = 0;
            self.ratios = (0.0, 0);
        }
        if !self.retreats.is_empty() {
            self.retreats
                .retain(|r| slots.snapshot(r.bad.name()).is_some_and(|now| Arc::ptr_eq(&now, &r.bad)));
        }
    }

    /// The table of an assignment for a step that begins.
    pub(crate) fn table(&self, slots: &Slots, assignment: &str) -> Option<Arc<Snapshot>> {
        let now = slots.snapshot(assignment)?;
        let retreat = self.retreats.iter().find(|r| Arc::ptr_eq(&r.bad, &now));
        Some(retreat.map_or(now, |r| Arc::clone(&r.good)))
    }

    fn trial_of(&self, assignment: &str, stage: Stage) -> Option<&Arc<Trial>> {
        self.trial.as_ref().filter(|t| t.from.name() == assignment && t.is(stage))
    }

    /// Whether an assignment admits no requests.
    pub(crate) fn drains(&self, assignment: &str) -> bool {
        self.trial_of(assignment, Stage::Drain).is_some()
    }

    /// Says how many requests of the draining assignment still run; `count` counts them.
    pub(crate) fn report_left(&self, turn: u64, count: impl Fn(&str) -> usize) {
        if let Some(trial) = self.trial.as_ref().filter(|t| t.is(Stage::Drain)) {
            trial.left.store(count(trial.from.name()), Ordering::Relaxed);
            trial.drained_at.store(turn, Ordering::Release);
        }
    }

    /// The trial that is to run beside a step on `table`.
    pub(crate) fn shadow(&self, table: &Arc<Snapshot>) -> Option<Arc<Trial>> {
        let trial = self.trial_of(table.name(), Stage::Shadow)?;
        let due = trial.shadow_steps.load(Ordering::Relaxed) < trial.policy.shadow_steps
            && trial.failure().is_none();
        (due && Arc::ptr_eq(&trial.from, table)).then(|| Arc::clone(trial))
    }

    /// The trial whose new table this is.
    fn on_probation(&self, table: &Arc<Snapshot>) -> Option<&Arc<Trial>> {
        self.trial.as_ref().filter(|t| Arc::ptr_eq(&t.to, table))
    }

    /// Whether the numbers of a step on `table` are to be looked at.
    pub(crate) fn guards(&self, table: &Arc<Snapshot>) -> bool {
        self.on_probation(table).is_some_and(|t| t.policy.probation.nan_guard && t.failure().is_none())
    }

    /// Notes a request that is prefilled again.
    pub(crate) fn recomputed(&self, assignment: &str) {
        if let Some(trial) = self.trial.as_ref().filter(|t| t.to.name() == assignment) {
            trial.recomputed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The table to go back to after a fault on `table`: that before the last change, if the change is what may have
    /// caused the fault.
    pub(crate) fn refuge(
        &self,
        slots: &Slots,
        table: &Arc<Snapshot>,
        fault: &StepFault,
    ) -> Option<Arc<Snapshot>> {
        let before = match self.on_probation(table) {
            Some(trial) => Arc::clone(&trial.from),
            None => slots.fallback(table.name())?,
        };
        // Only the table in force has a table before it.
        let in_force = slots.snapshot(table.name()).is_some_and(|now| Arc::ptr_eq(&now, table));
        let to_blame = match fault {
            StepFault::NotFinite => true,
            StepFault::Call(error) => {
                let of = |table: &Snapshot| {
                    let cell = table.cells().find(|c| c.cell == error.cell)?;
                    Some((cell.generation.id, cell.generation.is_poisoned()))
                };
                matches!((of(table), of(&before)), (Some((new, _)), Some((old, false))) if new != old)
            }
        };
        (in_force && to_blame).then_some(before)
    }

    /// Leaves a table that failed.
    pub(crate) fn retreat(&mut self, bad: &Arc<Snapshot>, good: Arc<Snapshot>, fault: &StepFault, step: u64) {
        let failure = fault.failure(step);
        tracing::warn!(assignment = bad.name(), code = failure.code, "step given up: {}", failure.message);
        self.leave(bad, good, failure);
    }

    fn leave(&mut self, bad: &Arc<Snapshot>, good: Arc<Snapshot>, failure: Failure) {
        match self.on_probation(bad) {
            Some(trial) => trial.fail(failure),
            None => {
                let (assignment, bad) = (bad.name().to_owned(), Arc::clone(bad));
                self.link.report(Fault { assignment, bad, failure });
            }
        }
        self.retreats.push(Retreat { bad: Arc::clone(bad), good });
    }

    /// Counts a step that succeeded, and leaves a table that is too slow.
    pub(crate) fn passed(&mut self, table: &Arc<Snapshot>, timed: Timed<'_>) {
        let Some(trial) = self.on_probation(table).map(Arc::clone) else {
            return self.learn(timed);
        };
        trial.steps.fetch_add(1, Ordering::Release);
        let Some((rows, known)) =
            timed.decode_rows.and_then(|rows| Some((rows, self.known(timed.assignment, rows)?)))
        else {
            return;
        };
        let ratio = timed.seconds / known;
        self.ratios = (self.ratios.0 + ratio, self.ratios.1 + 1);
        trial.set_latency(self.ratios.0 / self.ratios.1 as f32);
        let Some(limit) = trial.policy.probation.latency_factor else { return };
        self.slow = if ratio > limit { self.slow + 1 } else { 0 };
        if self.slow == Probation::SLOW_STEPS && trial.failure().is_none() {
            let message = format!(
                "E-PLUG-502 step {}: decode steps of {rows} rows take {:.2} ms, {ratio:.1} times the {:.2} ms before. \
                 expected at most {limit} times, for {} steps in a row. Raise latency_factor if that is meant.",
                timed.number,
                timed.seconds * 1e3,
                known * 1e3,
                Probation::SLOW_STEPS
            );
            self.leave(table, Arc::clone(&trial.from), Failure { code: 502, message });
        }
    }

    fn known(&self, assignment: &Arc<str>, rows: usize) -> Option<f32> {
        let pace = self.paces.iter().find(|p| *p.assignment == **assignment)?;
        pace.by_rows.get(rows).filter(|(seen, _)| *seen >= WARM).map(|(_, mean)| *mean)
    }

    fn learn(&mut self, timed: Timed<'_>) {
        let Some(rows) = timed.decode_rows else { return };
        let at = self.paces.iter().position(|p| *p.assignment == **timed.assignment).unwrap_or_else(|| {
            let by_rows = vec![(0, 0.0); self.max_rows + 1];
            self.paces.push(Pace { assignment: Arc::clone(timed.assignment), by_rows });
            self.paces.len() - 1
        });
        let Some((seen, mean)) = self.paces[at].by_rows.get_mut(rows) else { return };
        // A plain mean until the size is known, then one that forgets.
        *seen = (*seen).saturating_add(1);
        let weight = WEIGHT.max(1.0 / *seen as f32);
        *mean += weight * (timed.seconds - *mean);
    }
}
