//! The engine thread's side of swaps: which table a step runs on, when a step is given up, and what is counted.
//!
//! A table that failed is left at once: steps run on the one before it until the swap thread has put that back.

use crate::forward::ops::StepError;
use crate::swaps::trial::{Failure, Fault, Link, Stage, Trial};
use hotseam_slots::{CallError, Phase, Probation, Slots, Snapshot};
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
    /// The device failed under the host's own work, which a call before may be the cause of.
    Device(String),
    /// Numbers that are not finite came out, on a table in probation.
    NotFinite,
    /// A rank of the tensor-parallel group is gone.
    Lost(String),
}

impl From<StepError> for StepFault {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Call(error) => Self::Call(error),
            StepError::Device(error) => Self::Device(error),
            StepError::Rank(error) => Self::Lost(error.to_string()),
        }
    }
}

impl StepFault {
    fn failure(&self, step: u64) -> Failure {
        match self {
            Self::Call(error) => Failure { code: 501, message: format!("step {step}: {error}") },
            Self::Device(error) | Self::Lost(error) => {
                Failure { code: 501, message: format!("E-PLUG-501 step {step}: {error}") }
            }
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

/// A table that was kept before it had made all steps of its probation.
#[derive(Debug)]
struct Young {
    table: Arc<Snapshot>,
    steps_left: u32,
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
    young: Vec<Young>,
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
            young: Vec::with_capacity(4),
            paces: Vec::new(),
            max_rows,
            slow: 0,
            ratios: (0.0, 0),
        }
    }

    /// What is due at the begin of a turn: looks for a new trial, and forgets tables that are no longer in force.
    pub(crate) fn turn(&mut self, slots: &Slots) {
        self.look();
        let in_force =
            |table: &Arc<Snapshot>| slots.snapshot(table.name()).is_some_and(|now| Arc::ptr_eq(&now, table));
        self.retreats.retain(|r| in_force(&r.bad));
        self.young.retain(|y| in_force(&y.table));
    }

    /// Looks for a new trial.
    fn look(&mut self) {
        let Some(trial) = self.link.changed(self.trial.as_ref()) else { return };
        let old = std::mem::replace(&mut self.trial, trial);
        self.slow = 0;
        self.ratios = (0.0, 0);
        if let Some(old) = old.filter(|old| old.is_kept() && old.policy.probation.nan_guard) {
            let steps_left = old.policy.probation.steps.saturating_sub(old.steps.load(Ordering::Relaxed));
            if steps_left > 0 {
                self.young.push(Young { table: Arc::clone(&old.to), steps_left });
            }
        }
    }

    /// The table of an assignment for a step that begins.
    pub(crate) fn table(&mut self, slots: &Slots, assignment: &str) -> Option<Arc<Snapshot>> {
        let now = slots.snapshot(assignment)?;
        // In this order: a trial is put up before its table is.
        self.look();
        let retreat = self.retreats.iter().find(|r| Arc::ptr_eq(&r.bad, &now));
        Some(retreat.map_or(now, |r| Arc::clone(&r.good)))
    }

    fn trial_of(&self, assignment: &str, stage: Stage) -> Option<&Arc<Trial>> {
        self.trial.as_ref().filter(|t| t.from.name() == assignment && t.is(stage))
    }

    /// The tables before and after a swap of the group, while it lasts: requests of either may come.
    pub(crate) fn of_group(&self, assignment: &str) -> Option<[&Arc<Snapshot>; 2]> {
        let trial = self.trial.as_ref().filter(|t| t.of_group && t.from.name() == assignment)?;
        Some([&trial.from, &trial.to])
    }

    /// Whether an assignment admits no requests.
    pub(crate) fn drains(&self, assignment: &str) -> bool {
        self.trial_of(assignment, Stage::Drain).is_some()
    }

    /// Whether a swap of the group keeps requests of an assignment from being asked for.
    pub(crate) fn group_holds(&self, assignment: &str) -> bool {
        self.of_group(assignment).is_some() && self.drains(assignment)
    }

    /// Tells the trial how many requests of its assignment run, whether any waits, and how many a drain is to wait for.
    pub(crate) fn report(
        &self,
        turn: u64,
        running: impl Fn(&str) -> usize,
        waits: impl Fn(&str) -> bool,
        left: impl Fn(&Trial) -> usize,
    ) {
        let Some(trial) = &self.trial else { return };
        let name = trial.from.name();
        trial.idle.store(running(name) == 0 && !waits(name), Ordering::Relaxed);
        if trial.is(Stage::Drain) {
            trial.left.store(left(trial), Ordering::Relaxed);
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
        self.on_probation(table).is_some_and(|t| t.policy.probation.nan_guard)
            || self.young.iter().any(|y| Arc::ptr_eq(&y.table, table))
    }

    /// Notes a request that is prefilled again.
    pub(crate) fn recomputed(&self, assignment: &str) {
        if let Some(trial) = self.trial.as_ref().filter(|t| t.to.name() == assignment) {
            trial.recomputed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// After a fault on `table`: the table on which the step is to be repeated, if the last change may have caused the
    /// fault. `table` is then left.
    pub(crate) fn leave(
        &mut self,
        slots: &Slots,
        table: &Arc<Snapshot>,
        fault: &StepFault,
        step: u64,
    ) -> Option<Arc<Snapshot>> {
        let differs = |other: &Snapshot| match fault {
            StepFault::NotFinite | StepFault::Device(_) => true,
            // No table helps.
            StepFault::Lost(_) => false,
            StepFault::Call(error) => {
                let of = |table: &Snapshot| {
                    let cell = table.cells().find(|c| c.cell == error.cell)?;
                    Some((cell.generation.id, cell.generation.is_poisoned()))
                };
                matches!((of(table), of(other)), (Some((bad, _)), Some((good, false))) if bad != good)
            }
        };
        // A swap, or its end, came in between.
        let now = self.table(slots, table.name())?;
        if !Arc::ptr_eq(&now, table) {
            return differs(&now).then_some(now);
        }
        let failure = fault.failure(step);
        let good = match self.on_probation(table) {
            Some(trial) if differs(&trial.from) && trial.fail(failure.clone()) => Arc::clone(&trial.from),
            _ => {
                let before = slots.fallback(table.name())?;
                if Arc::ptr_eq(&before, table) || !differs(&before) {
                    return None;
                }
                self.link.report(Fault { bad: Arc::clone(table), failure: failure.clone() });
                before
            }
        };
        self.retreat(table, &good, &failure);
        Some(good)
    }

    fn retreat(&mut self, bad: &Arc<Snapshot>, good: &Arc<Snapshot>, failure: &Failure) {
        tracing::warn!(assignment = bad.name(), code = failure.code, "step given up: {}", failure.message);
        self.retreats.push(Retreat { bad: Arc::clone(bad), good: Arc::clone(good) });
    }

    /// Counts a step that succeeded, and leaves a table that is too slow.
    pub(crate) fn passed(&mut self, slots: &Slots, table: &Arc<Snapshot>, timed: Timed<'_>) {
        let Some(trial) = self.on_probation(table).map(Arc::clone) else {
            if let Some(young) = self.young.iter_mut().find(|y| Arc::ptr_eq(&y.table, table)) {
                young.steps_left -= 1;
                self.young.retain(|y| y.steps_left > 0);
            }
            return self.learn(slots, timed);
        };
        let phase = if timed.decode_rows.is_some() { Phase::Decode } else { Phase::Prefill };
        if !trial.count(Some(phase)) {
            return self.learn(slots, timed);
        }
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
        if self.slow == Probation::SLOW_STEPS {
            let message = format!(
                "E-PLUG-502 step {}: decode steps of {rows} rows take {:.2} ms, {ratio:.1} times the {:.2} ms before. \
                 expected at most {limit} times, for {} steps in a row. Raise latency_factor if that is meant.",
                timed.number,
                timed.seconds * 1e3,
                known * 1e3,
                Probation::SLOW_STEPS
            );
            let failure = Failure { code: 502, message };
            if trial.fail(failure.clone()) {
                self.retreat(table, &trial.from, &failure);
            }
        }
    }

    /// Counts a hand-off that succeeded.
    pub(crate) fn handed_over(&self, table: &Arc<Snapshot>) {
        if let Some(trial) = self.on_probation(table) {
            trial.count(None);
        }
    }

    fn known(&self, assignment: &Arc<str>, rows: usize) -> Option<f32> {
        let pace = self.paces.iter().find(|p| *p.assignment == **assignment)?;
        pace.by_rows.get(rows).filter(|(seen, _)| *seen >= WARM).map(|(_, mean)| *mean)
    }

    fn learn(&mut self, slots: &Slots, timed: Timed<'_>) {
        let Some(rows) = timed.decode_rows else { return };
        let at = self.paces.iter().position(|p| *p.assignment == **timed.assignment).unwrap_or_else(|| {
            self.paces.retain(|p| slots.snapshot(&p.assignment).is_some());
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
