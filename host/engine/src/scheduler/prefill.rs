//! Prefill steps, and the end of a prompt.

use super::pair::publish_map;
use super::{Scheduler, is_prefill};
use crate::Role;
use crate::handoff::{HandoffError, Moved};
use crate::observe::{Handed, Probe};
use crate::prefix;
use crate::sequence::{Last, Sequence, Stage, Writers};
use crate::watch::StepFault;
use hotseam_slots::{Phase, Snapshot};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Scheduler {
    pub(super) fn prefill_step(&mut self) {
        let Some(oldest) = self.running.iter().find(|s| is_prefill(s)) else { return };
        let group = oldest.group();
        self.members.clear();
        self.tokens.clear();
        self.wanted.clear();
        self.draws.clear();
        for (index, sequence) in self.running.iter().enumerate().filter(|(_, s)| is_prefill(s)) {
            let rows = sequence.prefill_rows(self.config.chunk - self.tokens.len(), self.config.chunk);
            let Stage::Prefill { done, .. } = sequence.stage else { continue };
            if rows == 0 || !sequence.belongs(&group) {
                continue;
            }
            let first = self.tokens.len();
            self.tokens.extend((done..done + rows).map(|i| sequence.source(i) as i32));
            let last = done + rows == sequence.to_prefill();
            let from = sequence.wanted_from(done + rows).max(done).min(done + rows - usize::from(last));
            self.wanted.extend(first + from - done..first + rows);
            self.members.push((index, rows));
            let token_only = last && !self.may_save(sequence);
            self.draws.extend(sequence.draw().filter(|_| token_only));
        }
        // One that wants logits has them copied for all.
        if self.draws.len() < self.wanted.len() {
            self.draws.clear();
        }
        if self.members.is_empty() {
            return;
        }
        let Some(snapshot) = self.bind() else { return };
        if self.run_step(&snapshot, Phase::Prefill) {
            self.published.prompt_tokens.fetch_add(self.tokens.len() as u64, Ordering::Relaxed);
            self.after_prefill(&snapshot);
        }
    }

    /// Hands out the logits of a prefill step and moves finished prompts on.
    fn after_prefill(&mut self, snapshot: &Arc<Snapshot>) {
        let vocab = self.model.config.vocab_size;
        let writer = self.prefix_digest(snapshot);
        let (members, logits) = (std::mem::take(&mut self.members), std::mem::take(&mut self.logits));
        let mut end = self.tokens.len();
        // From the last member down, since an ended request is removed from `running`.
        for (index, rows) in members.iter().rev() {
            let sequence = &mut self.running[*index];
            let Stage::Prefill { done, chunk } = sequence.stage else { continue };
            sequence.written_by(writer);
            sequence.stage = Stage::Prefill { done: done + rows, chunk: chunk + 1 };
            let begin = end - rows;
            let first = self.wanted.partition_point(|row| *row < begin);
            let last = self.wanted.partition_point(|row| *row < end);
            let told = if self.chosen.is_empty() { first..last } else { 0..0 };
            for i in told {
                sequence.tell(self.plan.positions[self.wanted[i]], &logits[i * vocab..(i + 1) * vocab]);
            }
            if done + rows == sequence.to_prefill() {
                let last = match self.chosen.get(last - 1) {
                    Some(chosen) => Last::Chosen(*chosen),
                    None => Last::Logits(&logits[(last - 1) * vocab..last * vocab]),
                };
                if let Last::Logits(logits) = last {
                    self.save_prefix(*index, logits, chunk + 1);
                }
                self.finish_prefill(*index, snapshot, last, chunk + 1);
            }
            end = begin;
        }
        (self.members, self.logits) = (members, logits);
    }

    /// Whether the state of a prompt may be kept, which takes the logits of its last row.
    fn may_save(&self, sequence: &Sequence) -> bool {
        // An observer may have changed what was written.
        let ticket = &sequence.ticket;
        ticket.request.reuse_prefill
            && ticket.observer.is_none()
            && !sequence.is_resumed()
            // A state is saved from the pools of this rank, and the others would lack it.
            && self.ranks.is_none()
    }

    fn save_prefix(&mut self, index: usize, logits: &[f32], chunks: u32) {
        let sequence = &self.running[index];
        let wanted = self.may_save(sequence);
        if let (true, Writers::One(digest)) = (wanted, &sequence.writers) {
            let key = prefix::key(&sequence.ticket.request, *digest);
            match self.prefill.save(&sequence.kv, &sequence.layouts) {
                Ok(saved) => self.prefixes.put(key, saved, logits, chunks),
                Err(error) => tracing::warn!(%error, "a prefill state is not kept"),
            }
        }
    }

    /// A prompt is complete: hand its KV over if there are two stores, and choose its first token.
    pub(super) fn finish_prefill(
        &mut self,
        index: usize,
        snapshot: &Arc<Snapshot>,
        last: Last<'_>,
        chunk: u32,
    ) {
        if self.config.role == Role::Prefill {
            return self.prompt_done(index, last, chunk);
        }
        if let Some(decode) = &mut self.decode {
            self.rooms += 1;
            let sequence = &mut self.running[index];
            let tokens = sequence.ticket.tokens();
            let mut table = Arc::clone(snapshot);
            let moved = loop {
                let Some(cell) = table.transport() else {
                    unreachable!("a paired registry fills the transport cell")
                };
                let stores = (&self.prefill, &mut *decode);
                let observer = sequence.ticket.observer.take().map(RefCell::new);
                let probe = Probe {
                    observer: observer.as_ref(),
                    guard: self.guard.as_ref(),
                    shadow: None,
                    timer: None,
                    copies: None,
                };
                let (kv, layouts) = (&sequence.kv, &sequence.layouts);
                self.published.in_step.store(true, Ordering::Release);
                let audit = self.audit.as_mut();
                let of = (self.rooms, sequence.ticket.request.assignment.as_str());
                let moved = self.handoff.run(cell, stores, kv, layouts, tokens, of, probe, audit);
                if let Err(HandoffError::Audit { map }) = &moved {
                    publish_map(&self.published, Some((**map).clone()));
                }
                let moved = moved.map(|Moved { kv, map }| {
                    publish_map(&self.published, map);
                    kv
                });
                self.published.in_step.store(false, Ordering::Release);
                sequence.ticket.observer = observer.map(RefCell::into_inner);
                let fault = moved.as_ref().err().and_then(|e| e.fault(cell)).map(StepFault::Call);
                let next = fault.and_then(|f| self.watch.leave(&self.slots, &table, &f, self.step));
                let Some(next) = next else {
                    break moved.map(|mut kv| {
                        kv.carried_by(&self.provenance.carrier(cell));
                        kv
                    });
                };
                table = next;
            };
            match moved {
                Ok(kv) => {
                    self.prefill.close(std::mem::replace(&mut sequence.kv, kv));
                    if sequence.ticket.observer.is_none() {
                        self.watch.handed_over(&table);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, room = self.rooms, "KV hand-off failed");
                    let text = error.to_string();
                    sequence.ticket.fail(&error.code(), text.trim_start_matches("E-PLUG-501 "));
                    self.remove(index);
                    return;
                }
            }
        }
        if self.decode.is_none() {
            self.show_prefilled(index);
        }
        // From here on the KV is in the decode store.
        self.running[index].stage = Stage::Decode { next: 0, chunk };
        self.published.generated_tokens.fetch_add(1, Ordering::Relaxed);
        let next = self.running[index].accept(last);
        self.go_on(index, next, chunk);
    }

    /// Shows an observer the KV of a prompt that decode goes on from where it is.
    fn show_prefilled(&mut self, index: usize) {
        let sequence = &mut self.running[index];
        let Some(observer) = sequence.ticket.observer.take().map(RefCell::new) else { return };
        let regions = self.prefill.regions(&self.prefill, &sequence.layouts);
        let held = self.prefill.held(&sequence.kv, &sequence.layouts);
        Probe { observer: Some(&observer), ..Probe::default() }.handed(&mut Handed::all(
            self.forward.memory(),
            &regions,
            &held,
        ));
        sequence.ticket.observer = Some(observer.into_inner());
    }
}
