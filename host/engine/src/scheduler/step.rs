//! One step: its table, its run, and what follows from its failure.

use super::{Scheduler, layouts};
use crate::forward::{Answer, Step};
use crate::guard::Guard;
use crate::observe::Probe;
use crate::sequence::Stage;
use crate::watch::{StepFault, Timed};
use hotseam_slots::{Phase, Snapshot};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Scheduler {
    /// Fails the members of a step that did not run, or did not run to its end.
    pub(super) fn fail_members(&mut self, code: &str, message: &str) {
        self.members.sort_unstable();
        while let Some((index, _)) = self.members.pop() {
            self.running[index].ticket.fail(code, message);
            self.remove(index);
        }
    }

    /// Snapshot for the members of a step; `None` if they cannot run now: they have failed, or those whose KV has another
    /// layout were sent back to prefill.
    pub(super) fn bind(&mut self) -> Option<Arc<Snapshot>> {
        let sequence = &self.running[self.members[0].0];
        let Some(snapshot) = self.watch.table(&self.slots, &sequence.assignment) else {
            let message = format!("assignment `{}` was removed", sequence.assignment);
            self.fail_members("E-ASSIGNMENT", &message);
            return None;
        };
        let moved = |(index, _): &(usize, usize)| {
            !layouts(&self.model.config, &snapshot).eq(self.running[*index].layouts.iter().copied())
        };
        if self.members.iter().any(moved) {
            self.members.retain(moved);
            self.requeue_members();
            return None;
        }
        Some(snapshot)
    }

    /// Sends the members of a step back to prefill, in their order.
    fn requeue_members(&mut self) {
        self.members.sort_unstable();
        while let Some((index, _)) = self.members.pop() {
            self.requeue(index);
        }
    }

    /// Runs the step of `members`, whose tokens and wanted rows are set. Returns whether it succeeded: its positions are
    /// then committed and its logits are in `logits`, or its tokens in `chosen`. Otherwise it has no members any more: they have failed, or will run
    /// again on the table before.
    pub(super) fn run_step(&mut self, snapshot: &Arc<Snapshot>, phase: Phase) -> bool {
        let on_decode = phase == Phase::Decode && self.decode.is_some();
        let store = if on_decode { self.decode.as_mut().expect("checked") } else { &mut self.prefill };
        self.plan.begin(self.config.max_context);
        for (index, rows) in &self.members {
            let sequence = &mut self.running[*index];
            let (Stage::Prefill { chunk, .. } | Stage::Decode { chunk, .. }) = sequence.stage else {
                unreachable!("members of a step prefill or decode")
            };
            if let Err(error) = self.plan.add(store, &mut sequence.kv, *rows, chunk) {
                let message = error.to_string();
                self.fail_members("E-KV-EXHAUSTED", &message);
                return false;
            }
        }
        self.step += 1;
        self.published.step.store(self.step, Ordering::Relaxed);
        // An observed request is the only member of its steps.
        let first = self.members[0].0;
        let observer = self.running[first].ticket.observer.take().map(RefCell::new);
        let observed = observer.is_some();
        let shadow = self.watch.shadow(snapshot).filter(|_| !observed);
        let copies = self.forward.host_copies().filter(|_| observed);
        let probe = Probe {
            observer: observer.as_ref(),
            guard: self.guard.as_ref(),
            shadow: shadow.as_deref(),
            timer: None,
            copies: copies.as_deref(),
        };
        // Whoever guards a step looks at all of its numbers.
        let looks = self.watch.guards(snapshot);
        let step = Step {
            snapshot,
            phase,
            store,
            plan: &self.plan,
            layouts: &self.running[first].layouts,
            tokens: &self.tokens,
            wanted: &self.wanted,
            draws: if looks { &[] } else { &self.draws },
            number: self.step,
            looked_at: probe.sees_calls(),
            probe,
        };
        let start = Instant::now();
        self.published.in_step.store(true, Ordering::Release);
        let told = self.ranks.as_mut().map_or(Ok(()), |ranks| ranks.begin(&step));
        let ran = told.and_then(|()| {
            let answer = self.forward.run(&step)?;
            self.logits.clear();
            self.chosen.clear();
            match answer {
                Answer::Logits(logits) => self.logits.extend_from_slice(logits),
                Answer::Chosen(chosen) => self.chosen.extend_from_slice(chosen),
            }
            Ok(())
        });
        let ran = match &mut self.ranks {
            Some(ranks) => ranks.finish(snapshot, ran),
            None => ran,
        };
        self.published.in_step.store(false, Ordering::Release);
        let seconds = start.elapsed().as_secs_f32();
        self.running[first].ticket.observer = observer.map(RefCell::into_inner);
        let ran = match ran {
            Ok(()) if !observed && looks => self.finite(),
            ran => ran,
        };
        if let Err(fault) = ran {
            self.give_up(snapshot, on_decode, observed, fault);
            return false;
        }
        self.settle(snapshot, phase, on_decode);
        // What runs beside a step, or instead of its calls, says nothing about its time.
        if let Some(trial) = shadow {
            trial.shadow_steps.fetch_add(1, Ordering::Release);
        } else if !observed {
            let decode_rows = (phase == Phase::Decode).then_some(self.tokens.len());
            let assignment = &self.running[first].assignment;
            let timed = Timed { assignment, decode_rows, seconds, number: self.step };
            self.watch.passed(&self.slots, snapshot, timed);
        }
        true
    }

    /// Fails if the numbers that came out of the step are not finite.
    fn finite(&mut self) -> Result<(), StepFault> {
        let streams = self.forward.streams(self.tokens.len())?;
        match self.logits.iter().chain(streams).all(|v| v.is_finite()) {
            true => Ok(()),
            false => Err(StepFault::NotFinite),
        }
    }

    /// Makes the positions of a step permanent.
    fn settle(&mut self, snapshot: &Snapshot, phase: Phase, on_decode: bool) {
        let store = if on_decode { self.decode.as_mut().expect("checked") } else { &mut self.prefill };
        let code = self.provenance.code(snapshot, phase);
        let window = self.model.config.sliding_window;
        for (index, rows) in &self.members {
            let kv = &mut self.running[*index].kv;
            let start = kv.len();
            store.commit(kv, *rows);
            kv.written_by(&code);
            self.provenance.read(&code, kv.history(), start..kv.len(), window);
        }
    }

    /// A step failed. If a swap may be the cause, its table is left and the members run again on the one before, in the
    /// next turn; those whose KV the failed table may have spoiled start again. Otherwise the members fail; so does an
    /// observed request, since the fault may be its observer's.
    fn give_up(&mut self, snapshot: &Arc<Snapshot>, on_decode: bool, observed: bool, fault: StepFault) {
        let violation = self.guard.as_ref().and_then(Guard::take);
        let next = match observed {
            true => None,
            false => self.watch.leave(&self.slots, snapshot, &fault, self.step),
        };
        if let Some(next) = next {
            let store = if on_decode { self.decode.as_mut().expect("checked") } else { &mut self.prefill };
            for (index, _) in self.members.drain(..) {
                store.abort(&mut self.running[index].kv);
            }
            if matches!(fault, StepFault::NotFinite) {
                self.prefixes.clear();
                self.requeue_written_by(snapshot, &next);
            }
            return;
        }
        match (violation, fault) {
            (Some(violation), _) => {
                tracing::error!(%violation, step = self.step, "step failed");
                self.fail_members(&violation.code(), &violation.to_string());
            }
            (None, StepFault::Call(error)) => {
                tracing::error!(%error, step = self.step, "step failed");
                let text = error.to_string();
                self.fail_members("E-PLUG-501", text.trim_start_matches("E-PLUG-501 "));
            }
            (None, StepFault::Device(error)) => {
                tracing::error!(%error, step = self.step, "step failed");
                self.fail_members("E-CUDA-001", &error);
            }
            // The turn ends with all that is left.
            (None, StepFault::Lost(_)) => {}
            (None, StepFault::NotFinite) => {
                self.fail_members("E-STEP-502", "the model's numbers are not finite");
            }
        }
    }

    /// Sends every running request of the assignment back to prefill that has KV which `table` wrote, or moved with a
    /// transport that is not in `next`.
    fn requeue_written_by(&mut self, table: &Snapshot, next: &Snapshot) {
        let digest = *table.digest().bytes();
        let hash = |table: &Snapshot| table.transport().map(|cell| cell.put.generation.hash.clone());
        let transport = hash(table).filter(|_| hash(table) != hash(next));
        for index in (0..self.running.len()).rev() {
            let sequence = &self.running[index];
            let touched = |run: &hotseam_kv::Run| {
                run.writer.digest == digest
                    || run.carrier.as_ref().is_some_and(|carrier| Some(&carrier.hash) == transport.as_ref())
            };
            if *sequence.assignment == *table.name() && sequence.kv.history().runs().iter().any(touched) {
                self.requeue(index);
            }
        }
    }
}
