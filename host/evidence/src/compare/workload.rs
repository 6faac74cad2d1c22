//! The request on which evidence is taken.

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::Request;

use crate::divergence::Passage;
use crate::needle::Probe;

/// A request: a prompt, and what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens that decode is fed (teacher forcing); free, greedy decoding if empty.
    pub forced: Vec<u32>,
    /// Tokens to decode at most.
    pub max_tokens: usize,
    /// Tokens that end a free answer.
    pub stop_tokens: Vec<u32>,
}

impl Workload {
    /// Held-out text: its first part is prefilled, the rest is forced through decode.
    pub fn passage(passage: &Passage) -> Self {
        let (prompt, forced) = passage.tokens().split_at(passage.prefill());
        Self {
            prompt: prompt.to_vec(),
            forced: forced.to_vec(),
            max_tokens: forced.len(),
            stop_tokens: Vec::new(),
        }
    }

    /// A needle prompt, answered freely.
    pub fn probe(tokenizer: &Tokenizer, probe: &Probe) -> Self {
        Self {
            prompt: probe.prompt.clone(),
            forced: Vec::new(),
            max_tokens: probe.max_tokens,
            stop_tokens: vec![tokenizer.control(Control::Eos)],
        }
    }

    pub(crate) fn request(&self, assignment: &str) -> Request {
        Request {
            assignment: assignment.to_owned(),
            forced: self.forced.clone(),
            stop_tokens: self.stop_tokens.clone(),
            ..Request::greedy(self.prompt.clone(), self.max_tokens)
        }
    }
}
