//! Decode steps and the choice of tokens.

use super::Scheduler;
use crate::sequence::{Group, Next, Sequence, Stage};
use hotseam_slots::Phase;
use std::sync::atomic::Ordering;

impl Scheduler {
    /// Chooses the next token of a decoding request.
    pub(super) fn choose(&mut self, index: usize, logits: &[f32], chunk: u32) {
        self.published.generated_tokens.fetch_add(1, Ordering::Relaxed);
        match self.running[index].accept(logits) {
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
        for (index, sequence) in self.running.iter_mut().enumerate() {
            if let (Stage::Decode { next, .. }, true) = (sequence.stage, sequence.belongs(group)) {
                sequence.turn = self.turn;
                self.wanted.push(self.tokens.len());
                self.tokens.push(next as i32);
                self.members.push((index, 1));
            }
        }
        let Some(snapshot) = self.bind() else { return };
        if !self.run_step(&snapshot, Phase::Decode) {
            return;
        }
        let vocab = self.model.config.vocab_size;
        let (members, logits) = (std::mem::take(&mut self.members), std::mem::take(&mut self.logits));
        for (row, (index, _)) in members.iter().enumerate().rev() {
            let Stage::Decode { chunk, .. } = self.running[*index].stage else { continue };
            let logits = &logits[row * vocab..(row + 1) * vocab];
            self.running[*index].tell(self.plan.positions[row], logits);
            self.choose(*index, logits, chunk);
        }
        (self.members, self.logits) = (members, logits);
    }
}
