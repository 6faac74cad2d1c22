//! Ids to text, one at a time.

use crate::error::EncodingError;
use crate::tokenizer::Tokenizer;

/// Turns a growing sequence of ids into text. A character whose bytes are spread over several tokens is
/// held back until it is complete; the pieces joined, with [`finish`](Self::finish), equal
/// [`Tokenizer::decode`] of the whole sequence.
pub struct Detokenizer {
    tokenizer: Tokenizer,
    /// Bytes not given out: the start of one UTF-8 character, so at most 3 between calls.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer at the start of a text.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self { tokenizer: tokenizer.clone(), pending: Vec::new() }
    }

    /// The text that `id` completes; empty for hidden tokens and unfinished characters.
    ///
    /// # Errors
    /// [`EncodingError::UnknownId`]; the state is then unchanged.
    pub fn push(&mut self, id: u32) -> Result<String, EncodingError> {
        let bytes = self.tokenizer.bytes(id)?;
        if self.tokenizer.is_hidden(id) {
            return Ok(String::new());
        }
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut start = 0;
        loop {
            match std::str::from_utf8(&self.pending[start..]) {
                Ok(valid) => {
                    text.push_str(valid);
                    start = self.pending.len();
                    break;
                }
                Err(error) => {
                    let valid = &self.pending[start..start + error.valid_up_to()];
                    text.push_str(&String::from_utf8_lossy(valid));
                    start += error.valid_up_to();
                    // No length: the bytes may yet become a character. With one, they never can.
                    let Some(length) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    start += length;
                }
            }
        }
        self.pending.drain(..start);
        Ok(text)
    }

    /// The rest at the end of the sequence: U+FFFD if a character stayed unfinished, else nothing.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }
}
