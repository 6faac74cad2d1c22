//! Names and words of facts. In training the embedded checkpoint was told no pair of a name and a word of these lists, so
//! that recall is reading and not memory.

use crate::random::Random;

/// Names that own a secret: one word each, capitalised.
const NAMES: &str = include_str!("../../data/names.txt");
/// Secrets: one word each, lower case.
const VALUES: &str = include_str!("../../data/values.txt");

/// A name that is none of `taken`.
pub(super) fn name(random: &mut Random, taken: &[&str]) -> &'static str {
    pick(NAMES, random, taken)
}

/// A word that is none of `taken`.
pub(super) fn value(random: &mut Random, taken: &[&str]) -> &'static str {
    pick(VALUES, random, taken)
}

/// Two different words.
pub(super) fn passphrase(random: &mut Random) -> String {
    let first = value(random, &[]);
    format!("{first} {}", value(random, &[first]))
}

/// `taken` must be far shorter than the list.
fn pick(words: &'static str, random: &mut Random, taken: &[&str]) -> &'static str {
    let words: Vec<&str> = words.split_whitespace().collect();
    loop {
        let word = words[random.below(words.len())];
        if !taken.contains(&word) {
            return word;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_distinct() {
        for list in [NAMES, VALUES] {
            let mut words: Vec<&str> = list.split_whitespace().collect();
            let count = words.len();
            assert!(count >= 100);
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), count);
        }
    }

    #[test]
    fn taken_words_are_not_drawn_again() {
        let mut random = Random::new(&[1]);
        let mut taken: Vec<&str> = Vec::new();
        for _ in 0..60 {
            let word = value(&mut random, &taken);
            assert!(!taken.contains(&word));
            taken.push(word);
        }
        let phrase = passphrase(&mut random);
        let (first, second) = phrase.split_once(' ').unwrap();
        assert_ne!(first, second);
    }
}
