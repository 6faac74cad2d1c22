//! The swap thread: drives one swap after another through its stages.

use super::SwapSettings;
use super::group::{Kept, Mates, Node};
use super::log::{Log, now_ms};
use super::prepare::{Preparer, Refusal, prepare};
use super::reaper::Remains;
use super::trial::{Failure, Fault, Link, Stage, Trial};
use crate::engine::{Incoming, Published};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, never, select};
use hotseam_slots::{
    Change, KvPolicy, Slots, Snapshot, SwapMarker, SwapPlan, SwapRequest, SwapStage, Verdicts,
};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the engine's counts are looked at.
const PERIOD: Duration = Duration::from_millis(2);

/// How long the engine may take to count what runs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Work for the swap thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// Run a swap.
    Swap(u64, Box<SwapRequest>),
    /// Take a table back that the engine has given up.
    Fault(Box<Fault>),
    /// Nothing but a reason to see that `stop` is set.
    Stop,
}

/// How a swap ends before its commit.
pub(super) enum Early {
    Refused(Refusal),
    AlreadyActive,
}

impl From<Refusal> for Early {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The swap thread's state.
pub(super) struct Runner {
    pub(super) slots: Arc<Slots>,
    pub(super) log: Arc<Log>,
    pub(super) link: Arc<Link>,
    pub(super) engine: Sender<Incoming>,
    pub(super) jobs: Receiver<Job>,
    pub(super) published: Arc<Published>,
    pub(super) verdicts: Arc<Verdicts>,
    pub(super) settings: SwapSettings,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) reaper: Sender<Remains>,
    pub(super) preparer: RefCell<Preparer>,
    /// The swap group, if this worker is in one.
    pub(super) mates: Option<Mates>,
    /// The swap of the group that runs.
    pub(super) node: RefCell<Option<Node>>,
    /// The last swap of the group that was kept, of each assignment.
    pub(super) kept: RefCell<Vec<Kept>>,
}

impl Runner {
    pub(super) fn run(self) {
        let _close = Close(&self);
        let news = self.mates.as_ref().map_or_else(never, |mates| mates.events.clone());
        while !self.stopping() {
            select! {
                recv(self.jobs) -> job => match job {
                    Ok(Job::Swap(id, request)) => self.swap(id, &request),
                    Ok(Job::Fault(fault)) => self.take_back(*fault),
                    Ok(Job::Stop) => {}
                    Err(_) => return,
                },
                recv(news) -> event => match event {
                    Ok(event) => self.hear(event),
                    Err(_) => return,
                },
            }
        }
    }

    /// Waits for a moment while a swap runs.
    pub(super) fn pause(&self) {
        std::thread::sleep(PERIOD);
        self.take_back_pending();
        self.attend();
    }

    /// Takes back what the engine has given up while a swap runs. No other swap can have begun meanwhile, and [`Job::Stop`]
    /// has done its work once it is here.
    fn take_back_pending(&self) {
        for job in self.jobs.try_iter() {
            if let Job::Fault(fault) = job {
                self.take_back(*fault);
            }
        }
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn step(&self) -> u64 {
        self.published.step.load(Ordering::Relaxed)
    }

    pub(super) fn tell(&self, id: u64, assignment: &str, stage: SwapStage) {
        self.log.tell(id, assignment, self.step(), stage);
    }

    /// Lets the engine run a turn, so that it sees a changed trial even if it is idle.
    pub(super) fn wake(&self) {
        // An engine that is gone sees nothing any more.
        let _ = self.engine.send(Incoming::Wake);
    }

    pub(super) fn put_up(&self, trial: &Arc<Trial>, stage: Stage) {
        trial.set_stage(stage);
        self.link.set(Some(Arc::clone(trial)));
        self.wake();
    }

    fn swap(&self, id: u64, request: &SwapRequest) {
        let assignment = &request.assignment;
        let tell = |stage| self.tell(id, assignment, stage);
        let plan = match self.ready(id, request) {
            Ok(plan) => plan,
            Err(Early::AlreadyActive) => return tell(SwapStage::AlreadyActive),
            Err(Early::Refused(Refusal { code, message })) => {
                return tell(SwapStage::Refused { code, message });
            }
        };
        if let Some(goal) = self.goal(&plan) {
            return self.lead(id, request, plan, goal);
        }
        let trial = Arc::new(Trial::new(id, &plan, request.policy));
        let before = self.shadow(&trial, &tell).and_then(|()| self.drain(&plan, &trial, &tell));
        let begun = before.and_then(|()| self.commit(id, &plan, &trial, request));
        match begun {
            Ok(micros) => {
                tell(SwapStage::Committed { cells: plan.changes.len(), micros });
                let end = self.probation(&trial, &tell);
                self.finish(&plan, &trial, end, &tell);
            }
            Err(Refusal { code, message }) => tell(SwapStage::Refused { code, message }),
        }
        self.link.set(None);
        self.wake();
        self.leave(id, assignment, Some(trial), Some(Box::new(plan)));
    }

    /// Plan and conformance on a thread that may hang, and what follows from the plan alone.
    pub(super) fn ready(&self, id: u64, request: &SwapRequest) -> Result<SwapPlan, Early> {
        let (send, done) = bounded(1);
        let (slots, verdicts) = (Arc::clone(&self.slots), Arc::clone(&self.verdicts));
        let (log, published, asked) = (Arc::clone(&self.log), Arc::clone(&self.published), request.clone());
        let work = move || {
            let tell = |stage| log.tell(id, &asked.assignment, published.step.load(Ordering::Relaxed), stage);
            // Nobody listens any more if it took too long.
            let _ = send.send(prepare(&slots, &verdicts, &asked, &tell));
        };
        let mut preparer = self.preparer.borrow_mut();
        preparer
            .run(Box::new(work))
            .map_err(|error| Refusal { code: None, message: format!("preparation thread: {error}") })?;
        let start = Instant::now();
        let limit = Duration::from_millis(request.policy.prepare_ms);
        let plan = loop {
            match done.recv_timeout(Duration::from_millis(50)) {
                Ok(plan) => break plan?,
                Err(RecvTimeoutError::Timeout) if self.stopping() => return Err(stopped().into()),
                Err(RecvTimeoutError::Timeout) if start.elapsed() < limit => {
                    self.take_back_pending();
                    self.attend();
                    if let Some(Failure { code, message }) = self.called_off() {
                        preparer.give_up();
                        return Err(Refusal { code: Some(code), message }.into());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    preparer.give_up();
                    let message = format!(
                        "E-PLUG-303 {}: preparation did not end. expected at most {} ms. Its thread is left to itself; \
                         look for a hang in the plugin's create or calls, or raise prepare_ms.",
                        request.change, request.policy.prepare_ms
                    );
                    return Err(Refusal { code: Some(303), message }.into());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let message = format!("{}: preparation panicked; see the log", request.change);
                    return Err(Refusal { code: Some(303), message }.into());
                }
            }
        };
        if plan.changes.is_empty() {
            return Err(Early::AlreadyActive);
        }
        self.log.planned(id, plan.newcomers.iter().map(|n| n.hash.clone()).collect());
        if request.policy.kv == KvPolicy::Refuse {
            plan.refuse_layouts().map_err(Refusal::from)?;
        }
        let (mapped, limit) = (self.slots.registry().loader().opened().len(), self.settings.mapped_limit);
        if mapped > limit {
            tracing::warn!(
                mapped,
                limit,
                "E-PLUG-504 plugin files mapped. Code is never unmapped: restart soon"
            );
            self.tell(id, &request.assignment, SwapStage::MappedOverLimit { mapped, limit });
        }
        Ok(plan)
    }

    /// Lets old and new run side by side for some steps.
    pub(super) fn shadow(&self, trial: &Arc<Trial>, tell: &dyn Fn(SwapStage)) -> Result<(), Refusal> {
        let policy = &trial.policy;
        if policy.shadow_steps == 0 {
            return Ok(());
        }
        self.put_up(trial, Stage::Shadow);
        let start = Instant::now();
        let limit = Duration::from_millis(policy.shadow_ms);
        while trial.shadow_steps.load(Ordering::Acquire) < policy.shadow_steps && start.elapsed() < limit {
            if self.stopping() {
                return Err(stopped());
            }
            if trial.failure().is_some() || self.called_off().is_some() {
                break;
            }
            self.pause();
        }
        trial.set_stage(Stage::Open);
        if let Some(Failure { code, message }) = self.called_off() {
            return Err(Refusal { code: Some(code), message });
        }
        let (worst, cell) = trial.worst();
        if let Some(Failure { code, message }) = trial.failure() {
            return Err(Refusal { code: Some(*code), message: message.clone() });
        }
        tell(SwapStage::Shadowed {
            steps: trial.shadow_steps.load(Ordering::Relaxed),
            calls: trial.shadow_calls.load(Ordering::Relaxed),
            worst,
            cell,
        });
        Ok(())
    }

    /// Waits until no sequence of the assignment runs, where its layout changes and the policy says so.
    fn drain(&self, plan: &SwapPlan, trial: &Arc<Trial>, tell: &dyn Fn(SwapStage)) -> Result<(), Refusal> {
        if plan.layouts.is_empty() || trial.policy.kv != KvPolicy::Drain {
            return Ok(());
        }
        self.drained(plan, trial, tell)
    }

    /// Waits until nothing is left that the engine counts as left.
    pub(super) fn drained(
        &self,
        plan: &SwapPlan,
        trial: &Arc<Trial>,
        tell: &dyn Fn(SwapStage),
    ) -> Result<(), Refusal> {
        self.put_up(trial, Stage::Drain);
        let start = Instant::now();
        let limit = Duration::from_millis(trial.policy.drain_ms);
        let mut told = None;
        loop {
            let seen = trial.drained_at.load(Ordering::Acquire) != 0;
            let left = trial.left.load(Ordering::Relaxed);
            if seen && left == 0 {
                return Ok(());
            }
            if seen && told != Some(left) {
                told = Some(left);
                tell(SwapStage::Draining { left });
            }
            // An engine in a long step has not counted yet.
            let over = start.elapsed() > if seen { limit } else { limit + PATIENCE };
            if let Some(Failure { code, message }) = self.called_off() {
                return Err(Refusal { code: Some(code), message });
            }
            if self.stopping() || over {
                trial.set_stage(Stage::Open);
                self.wake();
                let what = match trial.of_group {
                    false => "sequences of the old layout still run",
                    true => {
                        "requests of the old layout run, or have KV here that a decode worker has not fetched"
                    }
                };
                let message = format!(
                    "E-PLUG-403 assignment `{}`: {left} {what}. expected none after {} ms. The old variants stay. Raise drain_ms, \
                     or use the policy `recompute`.",
                    plan.assignment, trial.policy.drain_ms
                );
                return Err(Refusal { code: Some(403), message });
            }
            self.pause();
        }
    }

    /// Marks the attempt on disk, then puts the new table in place; returns how long the latter took.
    pub(super) fn commit(
        &self,
        id: u64,
        plan: &SwapPlan,
        trial: &Arc<Trial>,
        request: &SwapRequest,
    ) -> Result<u64, Refusal> {
        if self.stopping() {
            return Err(stopped());
        }
        // A plan that builds on a table that is taken back here is refused below.
        self.take_back_pending();
        // Who is gone back to is not to blame for a crash that follows.
        if let Some(dir) = self.settings.state_dir.as_ref().filter(|_| request.change != Change::Back) {
            SwapMarker::new(id, &self.settings.owner, &request.who, now_ms(), plan).write(dir).map_err(|error| Refusal {
                code: None,
                message: format!(
                    "{}: the crash marker cannot be written: {error}. The old variants stay. Free or repair the state \
                     directory.",
                    SwapMarker::path(dir, &self.settings.owner).display()
                ),
            })?;
        }
        // The engine knows the trial before it can meet the new table.
        if !trial.is(Stage::Drain) {
            self.put_up(trial, Stage::Open);
        }
        let start = Instant::now();
        let committed = self.slots.commit(plan);
        let micros = start.elapsed().as_micros() as u64;
        if !trial.of_group {
            trial.set_stage(Stage::Open);
        }
        self.wake();
        committed.map(|_| micros).map_err(|error| {
            self.clear_marker();
            error.into()
        })
    }

    /// Keeps the new table or brings the old one back.
    fn finish(&self, plan: &SwapPlan, trial: &Trial, failure: Option<Failure>, tell: &dyn Fn(SwapStage)) {
        let Some(Failure { code, message }) = failure else {
            self.clear_marker();
            let steps = trial.steps.load(Ordering::Relaxed);
            let recomputed = trial.recomputed.load(Ordering::Relaxed);
            return tell(SwapStage::Kept { steps, recomputed, latency: trial.latency() });
        };
        if code != 0 {
            tell(SwapStage::Retried { code, message: message.clone() });
        }
        self.slots.revert(plan);
        self.wake();
        self.clear_marker();
        tell(SwapStage::RolledBack { code, message });
    }

    /// Takes back a table that failed after its probation.
    fn take_back(&self, fault: Fault) {
        self.take_back_table(fault.bad, fault.failure, None);
    }

    /// Takes back a table that is in force; the swap group hears of it, without `from`, who says so. False if another one is in
    /// force by now, or the one before cannot be had.
    pub(super) fn take_back_table(&self, bad: Arc<Snapshot>, failure: Failure, from: Option<u64>) -> bool {
        let assignment = bad.name().to_owned();
        let in_force = self.slots.snapshot(&assignment).is_some_and(|now| Arc::ptr_eq(&now, &bad));
        let back = || self.slots.plan(&assignment, &Change::Back).and_then(|plan| self.slots.commit(&plan));
        if !in_force || back().inspect_err(|error| tracing::error!(%error, "rollback failed")).is_err() {
            return false;
        }
        self.wake();
        let id = self.log.last_kept(&assignment).unwrap_or(0);
        self.tell_taken_back(&bad, &failure, from);
        let Failure { code, message } = failure;
        if code != 0 {
            self.tell(id, &assignment, SwapStage::Retried { code, message: message.clone() });
        }
        self.tell(id, &assignment, SwapStage::RolledBack { code, message });
        drop(bad);
        self.leave(id, &assignment, None, None);
        true
    }

    pub(super) fn clear_marker(&self) {
        if let Some(dir) = &self.settings.state_dir
            && let Err(error) = SwapMarker::clear(dir, &self.settings.owner)
        {
            tracing::error!(%error, path = %SwapMarker::path(dir, &self.settings.owner).display(), "the crash marker stays; remove it by hand");
        }
    }

    pub(super) fn leave(
        &self,
        id: u64,
        assignment: &str,
        trial: Option<Arc<Trial>>,
        plan: Option<Box<SwapPlan>>,
    ) {
        let assignment = assignment.to_owned();
        // The reaper ends with this thread.
        let _ = self.reaper.send(Remains { id, assignment, trial, plan });
    }
}

/// However the swap thread ends, nobody waits for it any more.
struct Close<'a>(&'a Runner);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.log.close(self.0.step());
    }
}

fn stopped() -> Refusal {
    Refusal { code: None, message: "the engine is being shut down; the old variants stay".to_owned() }
}
