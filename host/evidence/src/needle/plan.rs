//! Prompts of a sweep.

use hotseam_encoding::Tokenizer;

use super::prompt::{Prompt, Turn};
use super::words;
use crate::EvidenceError;
use crate::haystack::Haystack;
use crate::random::Random;

/// Tokens that an answer may be longer than expected.
const ANSWER_SLACK: usize = 2;

/// Facts of [`Task::Multi`], unless somebody says.
pub const NEEDLES: usize = 4;
/// Turns of [`Task::MultiTurn`], unless somebody says.
pub const TURNS: usize = 6;

/// Form of the prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Task {
    /// One fact in a text.
    #[default]
    Single,
    /// Several facts in a text, one of which is asked for.
    Multi {
        /// Facts in a text, at least 2 and at most 32.
        needles: usize,
    },
    /// A fact in the first turn of a conversation, asked for in the last. Every turn has a fact of its own; those before
    /// the last ask for it and hold the right answer.
    MultiTurn {
        /// Turns, at least 2 and at most 32.
        turns: usize,
    },
    /// One fact in a text: a passphrase of two words that no other prompt of the plan has.
    Passphrase,
}

/// Facts or turns of a prompt, at most: each needs a name of its own.
const MOST: usize = 32;

/// What to sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedlePlan {
    /// Prompt lengths in tokens, question and control tokens included.
    pub lengths: Vec<usize>,
    /// Depths per length, spread evenly.
    pub probes: usize,
    /// Seed of names, words and passages.
    pub seed: u64,
}

/// One prompt and what is expected.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// Tokens of the prompt.
    pub length: usize,
    /// Where in the text, or in the text of the first turn, the needle is: 0 at the start, 1 at the end.
    pub depth: f64,
    /// Whose word is asked for.
    pub name: String,
    /// The word, or the two words of a passphrase.
    pub value: String,
    /// Token ids; exactly `length`.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most.
    pub max_tokens: usize,
}

/// `count` depths in the middle of equal parts of a text: 1/4 and 3/4 for two.
pub fn depths(count: usize) -> Vec<f64> {
    (0..count).map(|index| (index as f64 + 0.5) / count as f64).collect()
}

impl NeedlePlan {
    /// All prompts with one fact, by length, then by depth. Each has a name, a word and a passage of its own.
    ///
    /// # Errors
    /// [`EvidenceError::TooShort`] or [`EvidenceError::Encoding`].
    pub fn probes(&self, tokenizer: &Tokenizer, haystack: &Haystack) -> Result<Vec<Probe>, EvidenceError> {
        self.probes_of(Task::Single, tokenizer, haystack)
    }

    /// All prompts of a task, by length, then by depth.
    ///
    /// # Errors
    /// [`EvidenceError::TooShort`], [`EvidenceError::TaskSize`] or [`EvidenceError::Encoding`].
    pub fn probes_of(
        &self,
        task: Task,
        tokenizer: &Tokenizer,
        haystack: &Haystack,
    ) -> Result<Vec<Probe>, EvidenceError> {
        match task {
            Task::Multi { needles: found } | Task::MultiTurn { turns: found }
                if !(2..=MOST).contains(&found) =>
            {
                return Err(EvidenceError::TaskSize { found, most: MOST });
            }
            _ => {}
        }
        let mut probes: Vec<Probe> = Vec::new();
        for &length in &self.lengths {
            for (index, depth) in depths(self.probes).into_iter().enumerate() {
                let mut random = Random::new(&[self.seed, length as u64, index as u64]);
                let maker = Maker { tokenizer, haystack, length, depth };
                let probe = loop {
                    let probe = maker.probe(task, &mut random)?;
                    let unique = task != Task::Passphrase || probes.iter().all(|p| p.value != probe.value);
                    if unique {
                        break probe;
                    }
                };
                probes.push(probe);
            }
        }
        Ok(probes)
    }
}

/// A fact as it is told, asked for and answered.
struct Fact {
    name: &'static str,
    value: String,
    /// What a name has: `secret word` or `passphrase`.
    kind: &'static str,
}

impl Fact {
    fn word(random: &mut Random, names: &[&str], values: &[&str]) -> Self {
        let (name, value) = (words::name(random, names), words::value(random, values));
        Self { name, value: value.to_owned(), kind: "secret word" }
    }

    fn told(&self) -> String {
        format!(" The {} of {} is {}.", self.kind, self.name, self.value)
    }

    fn asked(&self) -> String {
        format!(" What is the {} of {}?", self.kind, self.name)
    }

    fn answered(&self) -> String {
        format!("The {} of {} is {}.", self.kind, self.name, self.value)
    }
}

struct Maker<'a> {
    tokenizer: &'a Tokenizer,
    haystack: &'a Haystack,
    length: usize,
    depth: f64,
}

impl Maker<'_> {
    fn probe(&self, task: Task, random: &mut Random) -> Result<Probe, EvidenceError> {
        let fact = match task {
            Task::Passphrase => {
                let name = words::name(random, &[]);
                Fact { name, value: words::passphrase(random), kind: "passphrase" }
            }
            _ => Fact::word(random, &[], &[]),
        };
        let others = match task {
            Task::Single | Task::Passphrase => Vec::new(),
            Task::Multi { needles } => others(&fact, needles - 1, random),
            // The first turn holds the needle and a fact of its own.
            Task::MultiTurn { turns } => others(&fact, turns, random),
        };
        let turns = match task {
            Task::MultiTurn { .. } => self.conversation(&fact, &others)?,
            _ => vec![self.one_turn(&fact, &others)?],
        };
        let answer = self.encode(&fact.answered())?;
        let prompt = Prompt { tokenizer: self.tokenizer, haystack: self.haystack, turns };
        let prompt = prompt.tokens(self.length, random)?;
        let (length, depth, name) = (self.length, self.depth, fact.name.to_owned());
        Ok(Probe { length, depth, name, value: fact.value, prompt, max_tokens: answer.len() + ANSWER_SLACK })
    }

    fn one_turn(&self, fact: &Fact, others: &[Fact]) -> Result<Turn, EvidenceError> {
        let mut facts = vec![(self.depth, self.encode(&fact.told())?)];
        for (other, depth) in others.iter().zip(depths(others.len())) {
            facts.push((depth, self.encode(&other.told())?));
        }
        Ok(Turn { facts, question: self.encode(&fact.asked())?, answer: None })
    }

    /// `others` has one fact a turn.
    fn conversation(&self, fact: &Fact, others: &[Fact]) -> Result<Vec<Turn>, EvidenceError> {
        let last = others.len() - 1;
        let mut turns = Vec::new();
        for (number, own) in others.iter().enumerate() {
            let mut facts = vec![(0.5, self.encode(&own.told())?)];
            if number == 0 {
                facts.push((self.depth, self.encode(&fact.told())?));
            }
            let asked = if number == last { fact } else { own };
            let answer = (number != last).then(|| self.encode(&own.answered())).transpose()?;
            turns.push(Turn { facts, question: self.encode(&asked.asked())?, answer });
        }
        Ok(turns)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, EvidenceError> {
        Ok(self.tokenizer.encode(text)?)
    }
}

/// `count` facts with names and words that neither `fact` nor one another has.
fn others(fact: &Fact, count: usize, random: &mut Random) -> Vec<Fact> {
    let mut facts: Vec<Fact> = Vec::new();
    for _ in 0..count {
        let names: Vec<&str> = facts.iter().map(|f| f.name).chain([fact.name]).collect();
        let values: Vec<&str> = facts.iter().chain([fact]).map(|f| f.value.as_str()).collect();
        let next = Fact::word(random, &names, &values);
        facts.push(next);
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_even_and_inside() {
        assert_eq!(depths(2), [0.25, 0.75]);
        assert_eq!(depths(1), [0.5]);
        assert_eq!(depths(16)[15], 15.5 / 16.0);
        assert!(depths(0).is_empty());
    }

    #[test]
    fn distractors_share_no_name_and_no_word() {
        let mut random = Random::new(&[7]);
        let fact = Fact::word(&mut random, &[], &[]);
        let all = others(&fact, MOST, &mut random);
        let mut names: Vec<&str> = all.iter().map(|f| f.name).chain([fact.name]).collect();
        let mut values: Vec<&str> =
            all.iter().map(|f| f.value.as_str()).chain([fact.value.as_str()]).collect();
        for list in [&mut names, &mut values] {
            list.sort_unstable();
            list.dedup();
            assert_eq!(list.len(), MOST + 1);
        }
    }
}
