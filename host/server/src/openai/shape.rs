//! The parts of a response around its choices.

use std::time::{SystemTime, UNIX_EPOCH};

use hotseam_encoding::Tokenizer;
use hotseam_encoding::chat::ChatForm;
use hotseam_engine::Request;
use serde_json::{Value, json};

use crate::backend::ModelInfo;
use crate::choice::{Choice, Delta};
use crate::error::ApiError;
use crate::openai::common::Common;
use crate::openai::{chat, completions};

/// A parsed request of either endpoint.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ask {
    Completions(completions::Ask),
    Chat(chat::Ask),
}

impl Ask {
    pub(crate) fn common(&self) -> &Common {
        match self {
            Self::Completions(ask) => &ask.common,
            Self::Chat(ask) => &ask.common,
        }
    }

    /// Engine requests, one for each choice, and the number of prompt tokens.
    pub(crate) fn requests(
        &self,
        tokenizer: &Tokenizer,
        model: &ModelInfo,
    ) -> Result<(Vec<Request>, usize), ApiError> {
        match self {
            Self::Completions(ask) => ask.requests(tokenizer, model),
            Self::Chat(ask) => ask.requests(tokenizer, model),
        }
    }

    fn form(&self) -> Option<ChatForm> {
        match self {
            Self::Completions(_) => None,
            Self::Chat(ask) => Some(ask.form),
        }
    }

    fn logprobs(&self) -> bool {
        match self {
            Self::Completions(ask) => ask.logprobs.is_some(),
            Self::Chat(ask) => ask.logprobs.is_some(),
        }
    }
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
}

impl Usage {
    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        })
    }
}

/// Everything about a response that is known before the first token.
pub(crate) struct Shape {
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
    form: Option<ChatForm>,
    with_logprobs: bool,
    include_usage: bool,
    stop: Vec<String>,
    stop_tokens: Vec<u32>,
    pub(crate) tokenizer: Tokenizer,
}

impl Shape {
    /// The shape of the answer to `ask`; `id` tells it from others, `fingerprint` says what began to run it.
    pub(crate) fn new(
        ask: &Ask,
        id: &str,
        fingerprint: String,
        model: &ModelInfo,
        tokenizer: &Tokenizer,
    ) -> Self {
        let form = ask.form();
        let prefix = if form.is_some() { "chatcmpl" } else { "cmpl" };
        let common = ask.common();
        Self {
            id: format!("{prefix}-{id}"),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: model.id.clone(),
            fingerprint,
            form,
            with_logprobs: ask.logprobs(),
            include_usage: common.include_usage,
            stop: common.stop.clone(),
            stop_tokens: common.stop_tokens(tokenizer),
            tokenizer: tokenizer.clone(),
        }
    }

    /// The state of one choice before its first token.
    pub(crate) fn new_choice(&self) -> Choice {
        let thinking = self.form == Some(ChatForm::Thinking);
        Choice::new(&self.tokenizer, self.stop.clone(), self.stop_tokens.clone(), thinking)
    }

    /// The whole answer; `choices` in order of index.
    pub(crate) fn whole(&self, choices: &[Delta], usage: Usage) -> Value {
        let choices: Vec<Value> = choices
            .iter()
            .enumerate()
            .map(|(index, delta)| match self.form {
                None => completions::choice(index, delta, self.with_logprobs, &self.tokenizer),
                Some(form) => chat::choice(index, delta, form, self.with_logprobs, &self.tokenizer),
            })
            .collect();
        let object = if self.form.is_some() { "chat.completion" } else { "text_completion" };
        let mut answer = self.frame(object, choices);
        answer["usage"] = usage.json();
        answer
    }

    /// The chunks that tell of `delta`; `first` if it is the choice's first.
    ///
    /// In a chat the role comes alone before everything and the finish reason alone after it; a completion has
    /// everything in one chunk.
    pub(crate) fn chunks(&self, index: usize, delta: Delta, first: bool) -> Vec<Value> {
        let (logprobs, tokenizer) = (self.with_logprobs, &self.tokenizer);
        if self.form.is_none() {
            let choice = completions::choice(index, &delta, logprobs, tokenizer);
            return if delta.is_empty() { Vec::new() } else { vec![self.chunk(choice)] };
        }
        let end = Delta { finish: delta.finish, ..Delta::default() };
        let body = Delta { finish: None, ..delta };
        let mut chunks = Vec::new();
        if first {
            chunks.push(self.chunk(chat::chunk_choice(index, &Delta::default(), true, logprobs, tokenizer)));
        }
        for part in [body, end] {
            if !part.is_empty() {
                chunks.push(self.chunk(chat::chunk_choice(index, &part, false, logprobs, tokenizer)));
            }
        }
        chunks
    }

    /// The chunk with the usage, if the request asked for one.
    pub(crate) fn usage_chunk(&self, usage: Usage) -> Option<Value> {
        self.include_usage.then(|| {
            let mut chunk = self.frame(self.chunk_object(), Vec::new());
            chunk["usage"] = usage.json();
            chunk
        })
    }

    fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.frame(self.chunk_object(), vec![choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn chunk_object(&self) -> &'static str {
        if self.form.is_some() { "chat.completion.chunk" } else { "text_completion" }
    }

    fn frame(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        })
    }
}
