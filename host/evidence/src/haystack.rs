//! Held-out text as tokens, sentence by sentence.

use std::path::PathBuf;

use hotseam_encoding::Tokenizer;

use crate::EvidenceError;

/// Sentences shorter than this many characters are chapter numbers and the like.
const SHORTEST_SENTENCE: usize = 16;

/// Sentences of held-out text. Each begins with a space, as in the middle of a text.
#[derive(Debug, Clone)]
pub struct Haystack {
    sentences: Vec<Vec<u32>>,
}

impl Haystack {
    /// Reads and tokenises text files.
    ///
    /// # Errors
    /// [`EvidenceError::Read`], [`EvidenceError::NoText`] or [`EvidenceError::Encoding`].
    pub fn read(tokenizer: &Tokenizer, files: &[PathBuf]) -> Result<Self, EvidenceError> {
        let texts = files
            .iter()
            .map(|path| {
                std::fs::read_to_string(path)
                    .map_err(|source| EvidenceError::Read { path: path.clone(), source })
            })
            .collect::<Result<Vec<_>, _>>()?;
        Self::new(tokenizer, texts.iter().map(String::as_str))
    }

    /// Tokenises texts.
    ///
    /// # Errors
    /// [`EvidenceError::NoText`] or [`EvidenceError::Encoding`].
    pub fn new<'a>(
        tokenizer: &Tokenizer,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, EvidenceError> {
        let mut sentences = Vec::new();
        for sentence in texts.into_iter().flat_map(split) {
            sentences.push(tokenizer.encode(&format!(" {sentence}"))?);
        }
        if sentences.is_empty() { Err(EvidenceError::NoText) } else { Ok(Self { sentences }) }
    }

    /// Number of sentences.
    pub fn len(&self) -> usize {
        self.sentences.len()
    }

    /// Never true: there is at least one sentence.
    pub fn is_empty(&self) -> bool {
        self.sentences.is_empty()
    }

    /// Consecutive sentences from number `start` on, cut to exactly `tokens` tokens together; wraps around at the end.
    pub fn take(&self, start: usize, tokens: usize) -> Vec<&[u32]> {
        let mut taken = Vec::new();
        let mut left = tokens;
        let mut next = start;
        while left > 0 {
            let sentence = &self.sentences[next % self.sentences.len()];
            let part = &sentence[..sentence.len().min(left)];
            left -= part.len();
            taken.push(part);
            next += 1;
        }
        taken
    }
}

/// Sentences: text up to `.`, `!` or `?` before a space or a line end.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let bytes = text.as_bytes();
    let ends = (1..bytes.len())
        .filter(move |&at| matches!(bytes[at], b' ' | b'\n') && matches!(bytes[at - 1], b'.' | b'!' | b'?'))
        .chain([bytes.len()]);
    let mut begin = 0;
    ends.filter_map(move |end| {
        let sentence = text[begin..end].trim_matches([' ', '\n']);
        begin = end;
        (sentence.chars().count() >= SHORTEST_SENTENCE).then_some(sentence)
    })
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn sentences_end_at_marks_before_white_space() {
        let text = "Chapter I. It was the best of times.\nIt was the worst of 1.5 times! \"Was it really so?\" he asked";
        let found: Vec<&str> = split(text).collect();
        assert_eq!(
            found,
            ["It was the best of times.", "It was the worst of 1.5 times!", "\"Was it really so?\" he asked"]
        );
        assert_eq!(split("").count(), 0);
    }
}
