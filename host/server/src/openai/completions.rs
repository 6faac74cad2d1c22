//! `/v1/completions`.

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

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ask {
    pub(crate) common: Common,
    prompts: Vec<Prompt>,
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
            Some(value) => prompts(value, model)?,
        };
        let max_tokens = fields.size("max_tokens", 1, u32::MAX)?;
        let logprobs = fields.size("logprobs", 0, 5)?;
        let known: Vec<&str> = common::FIELDS.into_iter().chain(["prompt", "logprobs"]).collect();
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
            let encoded;
            let ids = match prompt {
                Prompt::Ids(ids) => ids,
                Prompt::Text(text) => {
                    common::fits_bytes(text.len(), tokenizer, model)?;
                    encoded = tokenizer
                        .encode_raw(text)
                        .map_err(|error| ApiError::field("prompt", "invalid_value", error.to_string()))?;
                    &encoded
                }
            };
            if ids.is_empty() {
                return Err(ApiError::out_of_range("prompt", "at least one token", "none"));
            }
            let max_tokens = common::fit(ids.len(), self.max_tokens, DEFAULT_MAX_TOKENS, model)?;
            // The engine reports the chosen token's log-probability in any case.
            let top = self.logprobs.unwrap_or(0);
            requests.extend(self.common.requests(ids, max_tokens, top, tokenizer));
            prompt_tokens += ids.len();
        }
        Ok((requests, prompt_tokens))
    }
}

const PROMPT: &str = "a string, an array of strings, an array of token ids or an array of such arrays";

fn prompts(value: Value, model: &ModelInfo) -> Result<Vec<Prompt>, ApiError> {
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) => items,
        other => return Err(ApiError::wrong_type("prompt", PROMPT, &other)),
    };
    match items.first() {
        None => Err(ApiError::out_of_range("prompt", "at least one prompt", "an empty array")),
        Some(Value::Number(_)) => Ok(vec![Prompt::Ids(ids(items, "prompt", model)?)]),
        Some(_) if items.len() > MAX_PROMPTS => {
            Err(ApiError::out_of_range("prompt", &format!("at most {MAX_PROMPTS} prompts"), items.len()))
        }
        Some(Value::String(_)) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::String(text) => Ok(Prompt::Text(text)),
                other => Err(ApiError::wrong_type(&format!("prompt[{index}]"), "a string", &other)),
            })
            .collect(),
        Some(Value::Array(_)) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| {
                let path = format!("prompt[{index}]");
                match item {
                    Value::Array(items) => Ok(Prompt::Ids(ids(items, &path, model)?)),
                    other => Err(ApiError::wrong_type(&path, "an array of token ids", &other)),
                }
            })
            .collect(),
        Some(other) => {
            Err(ApiError::wrong_type("prompt[0]", "a string, a token id or an array of token ids", other))
        }
    }
}

fn ids(items: Vec<Value>, path: &str, model: &ModelInfo) -> Result<Vec<u32>, ApiError> {
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
