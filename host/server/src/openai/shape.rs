//! The parts of a response around its choices.

use std::time::{SystemTime, UNIX_EPOCH};

use hotseam_encoding::Tokenizer;
use hotseam_encoding::chat::ChatForm;
use hotseam_engine::Request;
use serde_json::{Value, json};

use crate::backend::ModelInfo;
use crate::choice::{Choice, Delta, Manner};
use crate::error::ApiError;
use crate::form::{About, Ask, Form, Usage};
use crate::meeting::Meeting;
use crate::openai::common::Common;
use crate::openai::{chat, completions};

/// A parsed request of either endpoint.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OpenAi {
    Completions(completions::Ask),
    Chat(chat::Ask),
}

impl OpenAi {
    fn common(&self) -> &Common {
        match self {
            Self::Completions(ask) => &ask.common,
            Self::Chat(ask) => &ask.common,
        }
    }

    fn chat_form(&self) -> Option<ChatForm> {
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

impl Ask for OpenAi {
    fn assignment(&self) -> &str {
        &self.common().assignment
    }

    fn stream(&self) -> bool {
        self.common().stream
    }

    fn meeting(&self) -> Option<&Meeting> {
        self.common().meeting.as_ref()
    }

    fn prompts(&self) -> usize {
        match self {
            Self::Completions(ask) => ask.prompts.len(),
            Self::Chat(_) => 1,
        }
    }

    fn requests(&self, tokenizer: &Tokenizer, model: &ModelInfo) -> Result<(Vec<Request>, usize), ApiError> {
        match self {
            Self::Completions(ask) => ask.requests(tokenizer, model),
            Self::Chat(ask) => ask.requests(tokenizer, model),
        }
    }

    fn form(&self, about: About<'_>, _requests: &[Request]) -> Box<dyn Form> {
        Box::new(Shape::new(self, about))
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    })
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
    manner: Manner,
    tokenizer: Tokenizer,
}

impl Shape {
    fn new(ask: &OpenAi, about: About<'_>) -> Self {
        let form = ask.chat_form();
        let prefix = if form.is_some() { "chatcmpl" } else { "cmpl" };
        let common = ask.common();
        Self {
            id: common.rid.clone().unwrap_or_else(|| format!("{prefix}-{}", about.id)),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: about.model.id.clone(),
            fingerprint: about.fingerprint.to_owned(),
            form,
            with_logprobs: ask.logprobs(),
            include_usage: common.include_usage,
            manner: Manner {
                stops: common.stop.clone(),
                stop_tokens: common.stop_tokens(about.tokenizer),
                thinking: form == Some(ChatForm::Thinking),
                every_token: false,
            },
            tokenizer: about.tokenizer.clone(),
        }
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

impl Form for Shape {
    fn names(&self, _index: usize) -> (String, String) {
        (self.id.clone(), self.id.clone())
    }

    fn new_choice(&self, _index: usize) -> Choice {
        Choice::new(&self.tokenizer, self.manner.clone())
    }

    fn whole(&self, choices: Vec<Delta>, usage: Usage) -> Value {
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
        answer["usage"] = usage_json(usage);
        answer
    }

    /// In a chat the role comes alone before everything and the finish reason alone after it; a completion has
    /// everything in one chunk.
    fn chunks(&mut self, index: usize, delta: Delta, first: bool) -> Vec<Value> {
        let (logprobs, tokenizer) = (self.with_logprobs, &self.tokenizer);
        if self.form.is_none() {
            let choice = completions::choice(index, &delta, logprobs, tokenizer);
            return if delta.is_empty() { Vec::new() } else { vec![self.chunk(choice)] };
        }
        let end = Delta { finish: delta.finish, ..Delta::default() };
        let body = Delta { finish: None, matched: None, ..delta };
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
    fn last_chunk(&self, usage: Usage) -> Option<Value> {
        self.include_usage.then(|| {
            let mut chunk = self.frame(self.chunk_object(), Vec::new());
            chunk["usage"] = usage_json(usage);
            chunk
        })
    }
}
