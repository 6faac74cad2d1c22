//! The time after a commit in which a swap is watched: when it is over, and a step that does not end.

use super::SwapSettings;
use super::run::Runner;
use super::trial::{Failure, Trial};
use hotseam_slots::SwapStage;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a probation goes on.
pub(super) struct Vigil {
    start: Instant,
    steps: u32,
    used: Instant,
    /// The step that ran at the last look, and when it was first seen.
    stuck: (u64, Instant),
    /// When the time was over.
    over: Option<Instant>,
}

impl Runner {
    /// Waits for enough steps, enough time, enough idle time or a failure.
    pub(super) fn probation(&self, trial: &Trial, tell: &dyn Fn(SwapStage)) -> Option<Failure> {
        let mut vigil = self.vigil();
        while !self.is_over(trial, &mut vigil, tell) && !self.stopping() {
            self.pause();
        }
        trial.close()
    }

    /// Begins to watch a probation.
    pub(super) fn vigil(&self) -> Vigil {
        let now = Instant::now();
        Vigil { start: now, steps: 0, used: now, stuck: (0, now), over: None }
    }

    /// Whether a probation has seen enough steps, enough time, enough idle time or a failure.
    pub(super) fn is_over(&self, trial: &Trial, vigil: &mut Vigil, tell: &dyn Fn(SwapStage)) -> bool {
        let policy = trial.policy.probation;
        let (limit, idle) = (Duration::from_millis(policy.ms), Duration::from_millis(policy.idle_ms));
        let steps = trial.steps.load(Ordering::Acquire);
        if steps >= policy.steps || trial.failure().is_some() {
            return true;
        }
        if steps != vigil.steps || !trial.idle.load(Ordering::Relaxed) {
            (vigil.steps, vigil.used) = (steps, Instant::now());
        }
        self.watch_step(&mut vigil.stuck, tell);
        if vigil.start.elapsed() < limit && vigil.used.elapsed() < idle {
            return false;
        }
        let over = *vigil.over.get_or_insert_with(Instant::now);
        // A step that ran then may hang.
        vigil.stuck.0 == 0 || vigil.stuck.1 > over
    }

    /// Notices a step that does not end. `stuck` is the step that ran at the last look and when it was first seen.
    fn watch_step(&self, stuck: &mut (u64, Instant), tell: &dyn Fn(SwapStage)) {
        let step = if self.published.in_step.load(Ordering::Acquire) { self.step() } else { 0 };
        if step == 0 || step != stuck.0 {
            *stuck = (step, Instant::now());
            return;
        }
        let limit = self.settings.hang;
        if stuck.1.elapsed() < limit {
            return;
        }
        let message = format!(
            "E-PLUG-501 step {step}: a call on the new variants does not return. expected at most {} ms a step. No thread can \
             be ended from outside: restart, the next process starts on the variants before.",
            limit.as_millis()
        );
        tracing::error!("{message}");
        tell(SwapStage::Retried { code: 501, message });
        if self.settings.exit_on_hang {
            // The marker stays, so that the next process knows.
            std::process::exit(SwapSettings::HUNG);
        }
        *stuck = (step, Instant::now());
    }
}
