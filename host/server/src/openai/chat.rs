//! `/v1/chat/completions`.

use hotseam_encoding::Tokenizer;
use hotseam_encoding::chat::{self, ChatForm, Message, Role};
use hotseam_engine::Request;
use serde_json::{Map, Value, json};

use crate::backend::ModelInfo;
use crate::choice::Delta;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::accepted;
use crate::openai::common::{self, Common};
use crate::openai::logprobs;

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ask {
    pub(crate) common: Common,
    messages: Vec<Message>,
    pub(crate) form: ChatForm,
    max_tokens: Option<usize>,
    /// Alternatives to report with each token; `None` for no log-probabilities.
    pub(crate) logprobs: Option<usize>,
}

impl Ask {
    /// Reads and checks a request body.
    pub(crate) fn parse(mut fields: Fields, model: &ModelInfo) -> Result<Self, ApiError> {
        let common = Common::take(&mut fields, model)?;
        let messages = messages(&mut fields)?;
        let form = form(&mut fields)?;
        let old = fields.size("max_tokens", 1, u32::MAX)?;
        let new = fields.size("max_completion_tokens", 1, u32::MAX)?;
        if let (Some(old), Some(new)) = (old, new)
            && old != new
        {
            let message = format!("differs from `max_completion_tokens` ({old} and {new}); give one of them");
            return Err(ApiError::field("max_tokens", "invalid_value", message));
        }
        common::least(&mut fields, new.or(old))?;
        let wanted = fields.boolean("logprobs")?.unwrap_or(false);
        let top = fields.size("top_logprobs", 0, 20)?;
        if top.is_some() && !wanted {
            let message = "only allowed together with `logprobs: true`";
            return Err(ApiError::field("top_logprobs", "invalid_value", message));
        }
        let known = common::known([
            "messages",
            "max_completion_tokens",
            "logprobs",
            "top_logprobs",
            "thinking",
            "chat_template_kwargs",
        ]);
        fields.finish(&[accepted::COMMON.as_slice(), &accepted::CHAT].concat(), &known)?;
        let logprobs = wanted.then(|| top.unwrap_or(0));
        Ok(Self { common, messages, form, max_tokens: new.or(old), logprobs })
    }

    /// Engine requests, `n` of them, and the tokens of the prompt.
    pub(crate) fn requests(
        &self,
        tokenizer: &Tokenizer,
        model: &ModelInfo,
    ) -> Result<(Vec<Request>, usize), ApiError> {
        common::fits_bytes(self.messages.iter().map(|m| m.content.len()).sum(), tokenizer, model)?;
        let ids = chat::encode(tokenizer, &self.messages, self.form)
            .map_err(|error| ApiError::field("messages", "invalid_value", error.to_string()))?;
        let max_tokens = common::fit(ids.len(), self.max_tokens, usize::MAX, model)?;
        let top = self.logprobs.unwrap_or(0);
        Ok((self.common.requests(&ids, max_tokens, top, tokenizer).collect(), ids.len()))
    }
}

fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let items =
        fields.array("messages")?.ok_or_else(|| ApiError::missing("messages", "an array of messages"))?;
    if items.is_empty() {
        return Err(ApiError::out_of_range("messages", "at least one message", "none"));
    }
    items.into_iter().enumerate().map(|(index, item)| message(item, &format!("messages[{index}]"))).collect()
}

fn message(item: Value, path: &str) -> Result<Message, ApiError> {
    let mut fields = Fields::nested(item, path)?;
    let role_path = fields.path("role");
    let expected = "system, user or assistant";
    let role = match fields.string("role")?.as_deref() {
        Some("system") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            return Err(ApiError::out_of_range(&role_path, expected, format_args!("`{shown}`")));
        }
        None => return Err(ApiError::missing(&role_path, expected)),
    };
    let content_path = fields.path("content");
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts
            .into_iter()
            .enumerate()
            .map(|(index, part)| text_part(part, &format!("{content_path}[{index}]")))
            .collect::<Result<String, _>>()?,
        Some(other) => {
            return Err(ApiError::wrong_type(&content_path, "a string or an array of text parts", &other));
        }
        None => return Err(ApiError::missing(&content_path, "a string or an array of text parts")),
    };
    fields.finish(&accepted::MESSAGE, &["role", "content"])?;
    Ok(Message { role, content })
}

fn text_part(part: Value, path: &str) -> Result<String, ApiError> {
    let mut fields = Fields::nested(part, path)?;
    let kind_path = fields.path("type");
    match fields.string("type")?.as_deref() {
        Some("text") => {}
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            let message = format!("this model takes parts of type `text` only, found `{shown}`");
            return Err(ApiError::field(kind_path, "unsupported_parameter", message));
        }
        None => return Err(ApiError::missing(&kind_path, "`text`")),
    }
    let text_path = fields.path("text");
    let text = fields.string("text")?.ok_or_else(|| ApiError::missing(&text_path, "a string"))?;
    fields.finish(&[], &["type", "text"])?;
    Ok(text)
}

/// Thinking in DeepSeek's spelling (`thinking: {type: enabled}`) or SGLang's (`chat_template_kwargs.thinking`).
fn form(fields: &mut Fields) -> Result<ChatForm, ApiError> {
    let mut thinking = false;
    if let Some(mut nested) = fields.object("thinking")? {
        let path = nested.path("type");
        thinking = match nested.string("type")?.as_deref() {
            Some("enabled") => true,
            Some("disabled") => false,
            Some(_) => return Err(ApiError::out_of_range(&path, "`enabled` or `disabled`", "another value")),
            None => return Err(ApiError::missing(&path, "`enabled` or `disabled`")),
        };
        nested.finish(&[], &["type"])?;
    }
    if let Some(mut nested) = fields.object("chat_template_kwargs")? {
        thinking |= nested.boolean("thinking")?.unwrap_or(false);
        nested.finish(&[], &["thinking"])?;
    }
    Ok(if thinking { ChatForm::Thinking } else { ChatForm::Chat })
}

/// `choices[]` of a whole answer.
pub(crate) fn choice(
    index: usize,
    delta: &Delta,
    form: ChatForm,
    with_logprobs: bool,
    tokenizer: &Tokenizer,
) -> Value {
    let mut message =
        json!({ "role": "assistant", "content": delta.text, "refusal": null, "annotations": [] });
    if form == ChatForm::Thinking {
        message["reasoning_content"] = delta.reasoning.clone().into();
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": with_logprobs.then(|| logprobs::chat(&delta.records, tokenizer)),
        "finish_reason": delta.finish.map(|finish| finish.name()),
    })
}

/// `choices[]` of a chunk. `first` adds the role; a chunk with a finish reason has an empty delta.
pub(crate) fn chunk_choice(
    index: usize,
    delta: &Delta,
    first: bool,
    with_logprobs: bool,
    tokenizer: &Tokenizer,
) -> Value {
    let mut fields = Map::new();
    if first {
        fields.insert("role".to_owned(), "assistant".into());
        fields.insert("content".to_owned(), "".into());
    }
    if !delta.reasoning.is_empty() {
        fields.insert("reasoning_content".to_owned(), delta.reasoning.clone().into());
    }
    if !delta.text.is_empty() {
        fields.insert("content".to_owned(), delta.text.clone().into());
    }
    let logprobs = with_logprobs && !delta.records.is_empty();
    json!({
        "index": index,
        "delta": fields,
        "logprobs": logprobs.then(|| logprobs::chat(&delta.records, tokenizer)),
        "finish_reason": delta.finish.map(|finish| finish.name()),
    })
}
