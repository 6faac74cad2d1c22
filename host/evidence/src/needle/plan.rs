//! Prompts of a sweep.

use hotseam_encoding::{Control, Tokenizer};

use crate::EvidenceError;
use crate::haystack::Haystack;
use crate::random::Random;

/// Fewest tokens of text around a needle.
const LEAST_TEXT: usize = 32;
/// Tokens that an answer may be longer than expected.
const ANSWER_SLACK: usize = 2;

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
    /// Where in the text the needle is, 0 at the start, 1 at the end.
    pub depth: f64,
    /// Whose word is asked for.
    pub name: String,
    /// The word.
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
    /// All prompts, by length, then by depth. Each has a name, a word and a passage of its own.
    ///
    /// # Errors
    /// [`EvidenceError::TooShort`] or [`EvidenceError::Encoding`].
    pub fn probes(&self, tokenizer: &Tokenizer, haystack: &Haystack) -> Result<Vec<Probe>, EvidenceError> {
        let mut probes = Vec::new();
        for &length in &self.lengths {
            for (index, depth) in depths(self.probes).into_iter().enumerate() {
                let random = Random::new(&[self.seed, length as u64, index as u64]);
                probes.push(probe(tokenizer, haystack, length, depth, random)?);
            }
        }
        Ok(probes)
    }
}

fn probe(
    tokenizer: &Tokenizer,
    haystack: &Haystack,
    length: usize,
    depth: f64,
    mut random: Random,
) -> Result<Probe, EvidenceError> {
    let name = pick(include_str!("../../data/names.txt"), &mut random);
    let value = pick(include_str!("../../data/values.txt"), &mut random);
    let needle = tokenizer.encode(&format!(" The secret word of {name} is {value}."))?;
    let question = tokenizer.encode(&format!(" What is the secret word of {name}?"))?;
    let answer = tokenizer.encode(&format!("The secret word of {name} is {value}."))?;
    let head = [Control::Bos, Control::User].map(|token| tokenizer.control(token));
    let tail = [Control::Assistant, Control::EndThink].map(|token| tokenizer.control(token));

    let fixed = head.len() + needle.len() + question.len() + tail.len();
    let least = fixed + LEAST_TEXT;
    if length < least {
        return Err(EvidenceError::TooShort { length, least });
    }
    let text = haystack.take(random.below(haystack.len()), length - fixed);
    let place = boundary(&text, depth * (length - fixed) as f64);

    let mut prompt = head.to_vec();
    for (index, sentence) in text.iter().enumerate() {
        if index == place {
            prompt.extend(&needle);
        }
        prompt.extend(*sentence);
    }
    if place == text.len() {
        prompt.extend(&needle);
    }
    prompt.extend(&question);
    prompt.extend(tail);
    let (name, value) = (name.to_owned(), value.to_owned());
    Ok(Probe { length, depth, name, value, prompt, max_tokens: answer.len() + ANSWER_SLACK })
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

fn pick(words: &'static str, random: &mut Random) -> &'static str {
    let words: Vec<&str> = words.split_whitespace().collect();
    words[random.below(words.len())]
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
    fn words_are_distinct() {
        for (list, least) in
            [(include_str!("../../data/names.txt"), 100), (include_str!("../../data/values.txt"), 100)]
        {
            let mut words: Vec<&str> = list.split_whitespace().collect();
            let count = words.len();
            assert!(count >= least);
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), count);
        }
    }
}
