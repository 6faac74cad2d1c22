//! What the generating endpoints have in common: a parsed request becomes engine requests and the form of an answer.

use hotseam_encoding::Tokenizer;
use hotseam_engine::Request;
use serde_json::Value;

use crate::backend::ModelInfo;
use crate::choice::{Choice, Delta};
use crate::error::ApiError;
use crate::meeting::Meeting;

/// A parsed request.
pub(crate) trait Ask: Send + Sync {
    /// Name of the assignment that serves it.
    fn assignment(&self) -> &str;

    /// Whether the answer is a stream of events.
    fn stream(&self) -> bool;

    /// Where it meets another worker, if a router said so.
    fn meeting(&self) -> Option<&Meeting>;

    /// Prompts in it; each has as many choices as the others.
    fn prompts(&self) -> usize;

    /// Engine requests, one for each choice, those of a prompt together; and the tokens of all prompts, each counted once.
    fn requests(&self, tokenizer: &Tokenizer, model: &ModelInfo) -> Result<(Vec<Request>, usize), ApiError>;

    /// The form of the answer that `requests` lead to.
    fn form(&self, about: About<'_>, requests: &[Request]) -> Box<dyn Form>;
}

/// What an answer says of who made it.
#[derive(Clone, Copy)]
pub(crate) struct About<'a> {
    /// Tells the request from others.
    pub(crate) id: &'a str,
    /// What began to run it.
    pub(crate) fingerprint: &'a str,
    pub(crate) model: &'a ModelInfo,
    pub(crate) tokenizer: &'a Tokenizer,
}

/// The form of an answer: generated pieces in, JSON out.
pub(crate) trait Form: Send + Sync {
    /// The name of a choice for `/abort_request`, and the one that it shares with all choices of its request.
    fn names(&self, index: usize) -> (String, String);

    /// The state of a choice before its first token.
    fn new_choice(&self, index: usize) -> Choice;

    /// The whole answer; `choices` in order of index.
    fn whole(&self, choices: Vec<Delta>, usage: Usage) -> Value;

    /// The events that tell of `delta`; `first` if it is the choice's first.
    fn chunks(&mut self, index: usize, delta: Delta, first: bool) -> Vec<Value>;

    /// The event after those of all choices, if there is one.
    fn last_chunk(&self, usage: Usage) -> Option<Value>;
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
}
