//! Decode steps and the choice of tokens.

use super::Scheduler;
use crate::sequence::{Group, Last, Next, Sequence, Stage};
use hotseam_slots::Phase;
use std::sync::atomic::Ordering;

impl Scheduler {
    /// Feeds the next token of a decoding request, or ends it.
    pub(super) fn go_on(&mut self, index: usize, next: Next, chunk: u32) {
        match next {
            Next::Feed(next) => self.running[index].stage = Stage::Decode { next, chunk },
            Next::Ended => self.remove(index),
        }
    }

    /// One step for each assignment that has decoding requests.
    pub(super) fn decode_steps(&mut self) {
        let due = |s: &Sequence, turn| matches!(s.stage, Stage::Decode { .. }) && s.turn != turn;
        while let Some(sequence) = self.running.iter().find(|s| due(s, self.turn)) {
            let group = sequence.group();
            self.decode_step(&group);
        }
    }

    fn decode_step(&mut self, group: &Group) {
        self.members.clear();
        self.tokens.clear();
        self.wanted.clear();
        self.draws.clear();
        for (index, sequence) in self.running.iter_mut().enumerate() {
            if let (Stage::Decode { next, .. }, true) = (sequence.stage, sequence.belongs(group)) {
                sequence.turn = self.turn;
                self.wanted.push(self.tokens.len());
                self.tokens.push(next as i32);
                self.members.push((index, 1));
                self.draws.extend(sequence.draw());
            }
        }
        // One that wants logits has them copied for all.
        if self.draws.len() < self.members.len() {
            self.draws.clear();
        }
        let Some(snapshot) = self.bind() else { return };
        if !self.run_step(&snapshot, Phase::Decode) {
            return;
        }
        let vocab = self.model.config.vocab_size;
        let (members, logits) = (std::mem::take(&mut self.members), std::mem::take(&mut self.logits));
        for (row, (index, _)) in members.iter().enumerate().rev() {
            let Stage::Decode { chunk, .. } = self.running[*index].stage else { continue };
            // Before the client can know of it.
            self.published.generated_tokens.fetch_add(1, Ordering::Relaxed);
            let sequence = &mut self.running[*index];
            let next = match self.chosen.get(row) {
                Some(chosen) => sequence.accept(Last::Chosen(*chosen)),
                None => {
                    let logits = &logits[row * vocab..(row + 1) * vocab];
                    sequence.tell(self.plan.positions[row], logits);
                    sequence.accept(Last::Logits(logits))
                }
            };
            self.go_on(*index, next, chunk);
        }
        (self.members, self.logits) = (members, logits);
    }
}
