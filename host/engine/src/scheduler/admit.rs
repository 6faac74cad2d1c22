//! Who comes in, who goes, and who starts again.

use super::{Pair, Scheduler, is_prefill, layouts};
use crate::Role;
use crate::prefix;
use crate::request::FinishReason;
use crate::sequence::{Last, Sequence, Stage, Ticket};
use hotseam_kv::{LayerLayout, PAGE_TOKENS};
use hotseam_slots::Snapshot;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Scheduler {
    pub(super) fn drop_cancelled(&mut self) {
        let before = self.waiting.len();
        if let Pair::Prefill(end) = &mut self.pair {
            let gone = self.waiting.iter().filter(|ticket| ticket.is_cancelled());
            gone.for_each(|ticket| end.left(ticket));
        }
        self.waiting.retain(|ticket| !ticket.is_cancelled());
        self.published.waiting.fetch_sub(before - self.waiting.len(), Ordering::Relaxed);
        for i in (0..self.running.len()).rev() {
            if self.running[i].ticket.is_cancelled() && !self.is_held(i) {
                self.running[i].finish(FinishReason::Cancelled);
                self.remove(i);
            }
        }
    }

    /// Ends a running request whose client knows.
    pub(super) fn remove(&mut self, index: usize) {
        let sequence = self.running.remove(index);
        let Some(sequence) = self.leave_room(sequence) else { return };
        match (sequence.stage, &mut self.decode) {
            (Stage::Decode { .. }, Some(store)) => store.close(sequence.kv),
            _ => self.prefill.close(sequence.kv),
        }
    }

    /// Sends a running request back to the head of the line, to prefill its prompt and its answer so far anew: its KV is
    /// of another layout, or not to be trusted.
    pub(super) fn requeue(&mut self, index: usize) {
        if !self.begin_room_again(index) {
            return;
        }
        let sequence = self.running.remove(index);
        self.watch.recomputed(&sequence.assignment);
        let in_decode = matches!(sequence.stage, Stage::Decode { .. });
        let (ticket, kv) = sequence.into_ticket();
        match (in_decode, &mut self.decode) {
            (true, Some(store)) => store.close(kv),
            _ => self.prefill.close(kv),
        }
        self.published.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting.push_front(ticket);
    }

    /// What a saved prefill must have been made by.
    pub(super) fn prefix_digest(&self, snapshot: &Snapshot) -> hotseam_slots::Digest {
        match self.config.prefix_across_writers {
            true => snapshot.layout_digest(),
            false => snapshot.prefill_digest(),
        }
    }

    /// Starts waiting requests, in order, while there is room.
    pub(super) fn admit(&mut self) {
        if let Some(decode) = &mut self.decode {
            self.handoff.reclaim(decode);
        }
        self.expire_waiting();
        while self.running.len() < self.config.max_seqs {
            let open = |ticket: &Ticket| !self.is_held_back(ticket) && self.may_start(ticket);
            let Some(next) = self.waiting.iter().position(open) else { return };
            let tokens = self.waiting[next].tokens();
            // Prompts that run now take their pages of the decode store only at the hand-off.
            let promised = self.running.iter().filter(|s| is_prefill(s)).map(|s| s.ticket.tokens());
            let promised: usize = promised.map(|t| t.next_multiple_of(PAGE_TOKENS)).sum();
            let fits = self.prefill.can_open(tokens)
                && self.decode.as_ref().is_none_or(|d| d.can_open(promised + tokens));
            if !fits {
                return;
            }
            let Some(ticket) = self.waiting.remove(next) else { return };
            self.published.waiting.fetch_sub(1, Ordering::Relaxed);
            self.start(ticket);
        }
    }

    /// Whether a drain keeps a request from starting. A prefill worker goes on with what decode workers wait for.
    fn is_held_back(&self, ticket: &Ticket) -> bool {
        let kept = || ticket.request.disaggregation.as_ref().is_some_and(|bootstrap| bootstrap.hold);
        self.watch.drains(&ticket.request.assignment) && (self.config.role != Role::Prefill || kept())
    }

    fn start(&mut self, ticket: Ticket) {
        let Some(snapshot) = self.watch.table(&self.slots, &ticket.request.assignment) else {
            let message = format!("assignment `{}` was removed", ticket.request.assignment);
            self.refuse(&ticket, "E-ASSIGNMENT", &message);
            return;
        };
        let layouts: Arc<[LayerLayout]> = layouts(&self.model.config, &snapshot).collect();
        let mut ready = self.prefill.ensure(&layouts);
        if let (Ok(()), Some(decode)) = (&ready, &mut self.decode) {
            ready = decode.ensure(&layouts);
        }
        if let Err(error) = ready {
            self.refuse(&ticket, "E-KV-EXHAUSTED", &error.to_string());
            return;
        }
        let Some(ticket) = self.enter_room(ticket, &snapshot, &layouts) else { return };
        let tokens = ticket.tokens();
        let reuse = ticket.request.reuse_prefill
            && !ticket.request.tap_logits
            && ticket.request.prompt_logprobs.is_none()
            && ticket.observer.is_none()
            && ticket.resume.is_none()
            // Saved states are those of one rank.
            && self.ranks.is_none();
        let digest = self.prefix_digest(&snapshot);
        let saved = match reuse {
            true => self.prefixes.get(&prefix::key(&ticket.request, digest)),
            false => None,
        };
        let Some(saved) = saved else {
            match self.prefill.open(tokens) {
                Ok(kv) => self.running.push(Sequence::new(ticket, kv, layouts)),
                Err(error) => self.refuse(&ticket, "E-KV-EXHAUSTED", &error.to_string()),
            }
            return;
        };
        match self.prefill.restore(&saved.kv, &layouts, tokens) {
            Ok(kv) => {
                let (logits, chunks) = (saved.logits.clone(), saved.chunks);
                self.running.push(Sequence::new(ticket, kv, layouts));
                let last = Last::Logits(&logits);
                self.finish_prefill(self.running.len() - 1, &snapshot, last, chunks);
            }
            Err(error) => self.refuse(&ticket, "E-KV-RESTORE", &error.to_string()),
        }
    }
}
