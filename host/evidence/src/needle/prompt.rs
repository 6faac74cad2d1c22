//! Turns of text, facts and questions as token ids.

use hotseam_encoding::{Control, Tokenizer};

use crate::EvidenceError;
use crate::haystack::Haystack;
use crate::random::Random;

/// Fewest tokens of text in a turn.
const LEAST_TEXT: usize = 32;

/// One turn of the user, and the answer if another turn follows.
pub(super) struct Turn {
    /// (Where in the turn's text, 0 to 1; tokens.)
    pub(super) facts: Vec<(f64, Vec<u32>)>,
    pub(super) question: Vec<u32>,
    pub(super) answer: Option<Vec<u32>>,
}

/// A conversation.
pub(super) struct Prompt<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) haystack: &'a Haystack,
    pub(super) turns: Vec<Turn>,
}

impl Prompt<'_> {
    /// Exactly `length` tokens, with the text of the turns of equal length.
    pub(super) fn tokens(&self, length: usize, random: &mut Random) -> Result<Vec<u32>, EvidenceError> {
        let control = |control| self.tokenizer.control(control);
        let fixed = 1 + self.turns.iter().map(Turn::fixed).sum::<usize>();
        let least = fixed + LEAST_TEXT * self.turns.len();
        if length < least {
            return Err(EvidenceError::TooShort { length, least });
        }
        let text = length - fixed;
        let mut prompt = vec![control(Control::Bos)];
        for (number, turn) in self.turns.iter().enumerate() {
            let share = text / self.turns.len() + usize::from(number < text % self.turns.len());
            prompt.push(control(Control::User));
            turn.text(&self.haystack.take(random.below(self.haystack.len()), share), &mut prompt);
            prompt.extend(&turn.question);
            prompt.extend([control(Control::Assistant), control(Control::EndThink)]);
            if let Some(answer) = &turn.answer {
                prompt.extend(answer);
                prompt.push(control(Control::Eos));
            }
        }
        Ok(prompt)
    }
}

impl Turn {
    /// Tokens besides the text.
    fn fixed(&self) -> usize {
        let facts: usize = self.facts.iter().map(|(_, fact)| fact.len()).sum();
        // User, Assistant and the end of thinking; the end of the sentence after an answer.
        3 + facts + self.question.len() + self.answer.as_ref().map_or(0, |answer| answer.len() + 1)
    }

    /// The sentences of `text` with the facts at the sentence starts nearest to their depths.
    fn text(&self, text: &[&[u32]], out: &mut Vec<u32>) {
        let tokens: usize = text.iter().map(|sentence| sentence.len()).sum();
        let mut places: Vec<(usize, &[u32])> = self
            .facts
            .iter()
            .map(|(depth, fact)| (boundary(text, depth * tokens as f64), fact.as_slice()))
            .collect();
        places.sort_by_key(|(place, _)| *place);
        for index in 0..=text.len() {
            for (_, fact) in places.iter().filter(|(place, _)| *place == index) {
                out.extend(*fact);
            }
            out.extend(text.get(index).copied().unwrap_or_default());
        }
    }
}

/// Number of the sentence whose start is nearest to `offset` tokens; their count for the end.
fn boundary(text: &[&[u32]], offset: f64) -> usize {
    let mut start = 0;
    let mut best = (f64::INFINITY, 0);
    for (index, length) in text.iter().map(|sentence| sentence.len()).chain([0]).enumerate() {
        let distance = (start as f64 - offset).abs();
        if distance < best.0 {
            best = (distance, index);
        }
        start += length;
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_sentence_start() {
        let (a, b) = ([0; 10], [0; 4]);
        let text: [&[u32]; 3] = [&a, &b, &a];
        assert_eq!(boundary(&text, 0.0), 0);
        assert_eq!(boundary(&text, 4.0), 0);
        assert_eq!(boundary(&text, 6.0), 1);
        assert_eq!(boundary(&text, 13.0), 2);
        assert_eq!(boundary(&text, 23.0), 3);
    }

    #[test]
    fn facts_stand_at_sentence_starts_in_order_of_depth() {
        let (a, b) = ([1; 4], [2; 4]);
        let facts = vec![(0.9, vec![9]), (0.1, vec![7]), (0.5, vec![8])];
        let turn = Turn { facts, question: vec![], answer: None };
        let mut out = Vec::new();
        turn.text(&[&a, &b], &mut out);
        assert_eq!(out, [7, 1, 1, 1, 1, 8, 2, 2, 2, 2, 9]);
        assert_eq!(turn.fixed(), 6);
    }
}
