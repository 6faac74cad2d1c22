//! `/v1/completions`.

use std::borrow::Cow;

use hotseam_encoding::Tokenizer;
use hotseam_engine::Request;
use serde_json::{Value, json};

use crate::backend::ModelInfo;
use crate::choice::Delta;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::accepted;
use crate::openai::common::{self, Common};
use crate::openai::logprobs;

/// Prompts in one request, at most.
const MAX_PROMPTS: usize = 64;
/// Tokens generated when the request does not say, as OpenAI documents it.
const DEFAULT_MAX_TOKENS: usize = 16;

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl Prompt {
    /// Its tokens; `field` is where it stood.
    pub(crate) fn ids(
        &self,
        field: &str,
        tokenizer: &Tokenizer,
        model: &ModelInfo,
    ) -> Result<Cow<'_, [u32]>, ApiError> {
        match self {
            Self::Ids(ids) => Ok(ids.into()),
            Self::Text(text) => {
                common::fits_bytes(text.len(), tokenizer, model)?;
                let encoded = tokenizer.encode_raw(text);
                let ids =
                    encoded.map_err(|error| ApiError::field(field, "invalid_value", error.to_string()))?;
                Ok(ids.into())
            }
        }
    }
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ask {
    pub(crate) common: Common,
    pub(crate) prompts: Vec<Prompt>,
    max_tokens: Option<usize>,
    /// Alternatives to report with each token; `None` for no log-probabilities.
    pub(crate) logprobs: Option<usize>,
}

impl Ask {
    /// Reads and checks a request body.
    pub(crate) fn parse(mut fields: Fields, model: &ModelInfo) -> Result<Self, ApiError> {
        let common = Common::take(&mut fields, model)?;
        let prompts = match fields.take("prompt") {
            None => return Err(ApiError::missing("prompt", PROMPT)),
            Some(value) => prompts(value, "prompt", model)?,
        };
        let max_tokens = fields.size("max_tokens", 1, u32::MAX)?;
        common::least(&mut fields, max_tokens)?;
        let logprobs = fields.size("logprobs", 0, 5)?;
        let known = common::known(["prompt", "logprobs"]);
        fields.finish(&[accepted::COMMON.as_slice(), &accepted::COMPLETIONS].concat(), &known)?;
        Ok(Self { common, prompts, max_tokens, logprobs })
    }

    /// Engine requests, `n` for each prompt in order, and the tokens of all prompts together.
    pub(crate) fn requests(
        &self,
        tokenizer: &Tokenizer,
        model: &ModelInfo,
    ) -> Result<(Vec<Request>, usize), ApiError> {
        let mut requests = Vec::new();
        let mut prompt_tokens = 0;
        for prompt in &self.prompts {
            let ids = prompt.ids("prompt", tokenizer, model)?;
            if ids.is_empty() {
                return Err(ApiError::out_of_range("prompt", "at least one token", "none"));
            }
            let max_tokens = common::fit(ids.len(), self.max_tokens, DEFAULT_MAX_TOKENS, model)?;
            // The engine reports the chosen token's log-probability in any case.
            let top = self.logprobs.unwrap_or(0);
            requests.extend(self.common.requests(&ids, max_tokens, top, tokenizer));
            prompt_tokens += ids.len();
        }
        Ok((requests, prompt_tokens))
    }
}

const PROMPT: &str = "a string, an array of strings, an array of token ids or an array of such arrays";

/// Prompts in any of their forms; `path` is where they stand.
pub(crate) fn prompts(value: Value, path: &str, model: &ModelInfo) -> Result<Vec<Prompt>, ApiError> {
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) => items,
        other => return Err(ApiError::wrong_type(path, PROMPT, &other)),
    };
    match items.first() {
        None => Err(ApiError::out_of_range(path, "at least one prompt", "an empty array")),
        Some(Value::Number(_)) => Ok(vec![Prompt::Ids(ids(items, path, model)?)]),
        Some(_) if items.len() > MAX_PROMPTS => {
            Err(ApiError::out_of_range(path, &format!("at most {MAX_PROMPTS} prompts"), items.len()))
        }
        Some(Value::String(_)) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::String(text) => Ok(Prompt::Text(text)),
                other => Err(ApiError::wrong_type(&format!("{path}[{index}]"), "a string", &other)),
            })
            .collect(),
        Some(Value::Array(_)) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| {
                let path = format!("{path}[{index}]");
                match item {
                    Value::Array(items) => Ok(Prompt::Ids(ids(items, &path, model)?)),
                    other => Err(ApiError::wrong_type(&path, "an array of token ids", &other)),
                }
            })
            .collect(),
        Some(other) => Err(ApiError::wrong_type(
            &format!("{path}[0]"),
            "a string, a token id or an array of token ids",
            other,
        )),
    }
}

/// Token ids of the vocabulary.
pub(crate) fn ids(items: Vec<Value>, path: &str, model: &ModelInfo) -> Result<Vec<u32>, ApiError> {
    let expected = || format!("a token id from 0 to {}", model.vocab_size.saturating_sub(1));
    items
        .iter()
        .enumerate()
        .map(|(index, item)| {
            let path = || format!("{path}[{index}]");
            if !item.is_number() {
                return Err(ApiError::wrong_type(&path(), &expected(), item));
            }
            let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
            id.filter(|id| (*id as usize) < model.vocab_size)
                .ok_or_else(|| ApiError::out_of_range(&path(), &expected(), item))
        })
        .collect()
}

/// `choices[]` of a whole answer or of a chunk: the text of `delta` with its log-probabilities.
pub(crate) fn choice(index: usize, delta: &Delta, with_logprobs: bool, tokenizer: &Tokenizer) -> Value {
    json!({
        "index": index,
        "text": delta.text,
        "logprobs": with_logprobs.then(|| logprobs::completion(&delta.records, tokenizer)),
        "finish_reason": delta.finish.map(|finish| finish.name()),
    })
}
