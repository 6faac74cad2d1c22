//! Something that answers prompts: an engine in this process, or a server.

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::{Engine, Event, Request};

use crate::{EvidenceError, RequestFailure};

/// A greedy request.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Token ids of the prompt.
    pub prompt: &'a [u32],
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Assignment that answers.
    pub assignment: &'a str,
    /// Start from a saved prefill state, where the same prompt was prefilled by the same code.
    pub reuse_prefill: bool,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Its name: equal for equal tokens of one model.
    pub name: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// An answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// Its text.
    pub text: String,
    /// Its tokens, without the one that ends it.
    pub tokens: Vec<Said>,
}

/// Something that answers prompts; several may be asked at once.
pub trait Model: Sync {
    /// Asks and waits for the whole answer; the inner error is a request that failed inside the model.
    ///
    /// # Errors
    /// [`EvidenceError`] if the question could not be put.
    fn ask(&self, question: &Question<'_>) -> Result<Result<Reply, RequestFailure>, EvidenceError>;
}

/// An engine with its tokenizer.
pub struct EngineModel<'a> {
    /// The engine.
    pub engine: &'a Engine,
    /// Tokenizer of its model.
    pub tokenizer: &'a Tokenizer,
}

impl Model for EngineModel<'_> {
    fn ask(&self, question: &Question<'_>) -> Result<Result<Reply, RequestFailure>, EvidenceError> {
        let handle = self.engine.submit(Request {
            stop_tokens: vec![self.tokenizer.control(Control::Eos)],
            assignment: question.assignment.to_owned(),
            reuse_prefill: question.reuse_prefill,
            ..Request::greedy(question.prompt.to_vec(), question.max_tokens)
        })?;
        let (mut ids, mut tokens) = (Vec::new(), Vec::new());
        loop {
            match handle.recv() {
                Some(Event::Token { id, logprob, .. }) => {
                    ids.push(id);
                    tokens.push(Said { name: id.to_string(), logprob });
                }
                Some(Event::Logits { .. } | Event::Prompt { .. }) => {}
                Some(Event::Done { .. }) => {
                    return Ok(Ok(Reply { text: self.tokenizer.decode(&ids)?, tokens }));
                }
                Some(Event::Failed { code, message }) => return Ok(Err(RequestFailure { code, message })),
                None => return Ok(Err(RequestFailure::engine_stopped())),
            }
        }
    }
}
