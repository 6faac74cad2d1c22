//! What the swap thread and the engine thread share of a swap. The engine thread takes no lock of it and allocates
//! nothing, except where a step has failed or a shadow runs.

use super::run::Job;
use arc_swap::ArcSwapOption;
use crossbeam_channel::Sender;
use hotseam_slots::{CellId, Generation, Layout, Phase, Snapshot, SwapPlan, SwapPolicy};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Why a step was given up, or a swap has to be.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// `E-PLUG` number; 0 if a person wants it.
    pub(crate) code: u16,
    /// What happened, for people.
    pub(crate) message: String,
}

/// A step that failed on tables that are in force, and would not on those before them.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) bad: Arc<Snapshot>,
    pub(crate) failure: Failure,
}

/// What the swap thread wants of the engine thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Nothing; the commit is near, or over.
    Open = 0,
    /// Run old and new side by side.
    Shadow = 1,
    /// Admit nothing new, and say how many are left.
    Drain = 2,
}

/// A swap that is being tried.
#[derive(Debug)]
pub(crate) struct Trial {
    /// Number of the swap.
    pub(crate) id: u64,
    pub(crate) from: Arc<Snapshot>,
    pub(crate) to: Arc<Snapshot>,
    pub(crate) policy: SwapPolicy,
    /// Whether other workers swap with this one, so that requests reserved under either table come.
    pub(crate) of_group: bool,
    /// The new generations of changed cells that can run on the inputs of the old.
    pub(crate) comparable: HashMap<CellId, Arc<Generation>>,
    stage: AtomicU8,
    /// Steps in which both ran.
    pub(crate) shadow_steps: AtomicU32,
    /// Calls that were compared.
    pub(crate) shadow_calls: AtomicU64,
    worst: Mutex<(f32, Option<CellId>)>,
    /// Sequences that still run, as of turn `drained_at`; that is 0 until the engine has seen the stage.
    pub(crate) left: AtomicUsize,
    pub(crate) drained_at: AtomicU64,
    /// Whether no request of the assignment ran or waited when the engine last looked.
    pub(crate) idle: AtomicBool,
    /// Phases of the cells that change; `None` is the hand-off.
    phases: Vec<Option<Phase>>,
    /// Steps and hand-offs on the new table that used a cell that changed.
    pub(crate) steps: AtomicU32,
    /// Sequences that were sent back to prefill.
    pub(crate) recomputed: AtomicUsize,
    /// Mean step time against that before, as bits of an f32; 0 while unknown.
    latency: AtomicU32,
    /// How it ended: with a failure, or kept.
    verdict: OnceLock<Option<Failure>>,
}

impl Trial {
    pub(crate) fn new(id: u64, plan: &SwapPlan, policy: SwapPolicy) -> Self {
        let (from, to) = (Arc::clone(plan.from()), Arc::clone(plan.to()));
        let old: HashMap<CellId, &Arc<Generation>> = from.cells().map(|c| (c.cell, c.generation)).collect();
        let comparable = to.cells().filter(|c| {
            old.get(&c.cell)
                .is_some_and(|o| o.id != c.generation.id && Layout::of(o) == Layout::of(c.generation))
        });
        let comparable = comparable.map(|c| (c.cell, Arc::clone(c.generation))).collect();
        let mut phases: Vec<_> = plan.changes.iter().map(|change| change.cell.phase).collect();
        phases.sort_unstable();
        phases.dedup();
        Self {
            id,
            from,
            to,
            policy,
            of_group: false,
            comparable,
            stage: AtomicU8::new(Stage::Open as u8),
            shadow_steps: AtomicU32::new(0),
            shadow_calls: AtomicU64::new(0),
            worst: Mutex::new((0.0, None)),
            left: AtomicUsize::new(0),
            drained_at: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            phases,
            steps: AtomicU32::new(0),
            recomputed: AtomicUsize::new(0),
            latency: AtomicU32::new(0),
            verdict: OnceLock::new(),
        }
    }

    /// As [`Trial::new`], of a swap group.
    pub(crate) fn of_group(id: u64, plan: &SwapPlan, policy: SwapPolicy) -> Self {
        Self { of_group: true, ..Self::new(id, plan, policy) }
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
    }

    pub(crate) fn is(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Acquire) == stage as u8
    }

    /// Counts a step, or without a phase a hand-off, on the new table; returns whether it used a cell that changed.
    pub(crate) fn count(&self, phase: Option<Phase>) -> bool {
        let used = self.phases.contains(&phase);
        if used {
            self.steps.fetch_add(1, Ordering::Release);
        }
        used
    }

    /// Notes what failed; the first failure counts. Returns false if it comes too late, since the swap is kept.
    pub(crate) fn fail(&self, failure: Failure) -> bool {
        self.verdict.get_or_init(|| Some(failure)).is_some()
    }

    /// Keeps the swap if nothing has failed yet, and returns what has.
    pub(crate) fn close(&self) -> Option<Failure> {
        self.verdict.get_or_init(|| None).clone()
    }

    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.verdict.get()?.as_ref()
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.verdict.get().is_some_and(Option::is_none)
    }

    /// Notes a difference that the shadow saw.
    pub(crate) fn note_difference(&self, difference: f32, cell: CellId) {
        let mut worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        if worst.1.is_none() || difference > worst.0 {
            *worst = (difference, Some(cell));
        }
    }

    /// The largest difference so far and where it was.
    pub(crate) fn worst(&self) -> (f32, Option<CellId>) {
        *self.worst.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_latency(&self, mean: f32) {
        self.latency.store(mean.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn latency(&self) -> Option<f32> {
        let bits = self.latency.load(Ordering::Relaxed);
        (bits != 0).then_some(f32::from_bits(bits))
    }
}

/// What the two threads reach each other by.
#[derive(Debug)]
pub(crate) struct Link {
    trial: ArcSwapOption<Trial>,
    faults: Sender<Job>,
}

impl Link {
    pub(crate) fn new(faults: Sender<Job>) -> Self {
        Self { trial: ArcSwapOption::empty(), faults }
    }

    /// Puts a trial up, or takes it down.
    pub(crate) fn set(&self, trial: Option<Arc<Trial>>) {
        self.trial.store(trial);
    }

    /// The trial that is up.
    pub(crate) fn trial(&self) -> Option<Arc<Trial>> {
        self.trial.load_full()
    }

    /// The trial that is up, if it is another than `known`: `Some(None)` if there is none any more.
    pub(crate) fn changed(&self, known: Option<&Arc<Trial>>) -> Option<Option<Arc<Trial>>> {
        let now = self.trial.load();
        let same = match (&*now, known) {
            (Some(now), Some(known)) => Arc::ptr_eq(now, known),
            (None, None) => true,
            _ => false,
        };
        (!same).then(|| Option::clone(&now))
    }

    /// Tells the swap thread of a fault. Called when a step has failed.
    pub(crate) fn report(&self, fault: Fault) {
        // The swap thread ends before the engine thread only when both are being shut down.
        let _ = self.faults.send(Job::Fault(Box::new(fault)));
    }
}
