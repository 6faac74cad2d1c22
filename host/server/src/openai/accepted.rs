//! Well-known fields that clients send and that are not implemented: accepted where they ask for nothing.

use serde_json::Value;

use crate::fields::NoEffect;

pub(crate) const fn field(
    name: &'static str,
    default: &'static str,
    harmless: fn(&Value) -> bool,
) -> NoEffect {
    NoEffect { name, default, harmless }
}

pub(crate) fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

pub(crate) fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

pub(crate) fn empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

pub(crate) fn is_false(value: &Value) -> bool {
    value == &Value::Bool(false)
}

pub(crate) fn is_true(value: &Value) -> bool {
    value == &Value::Bool(true)
}

/// Accepted by completions and chat.
pub(crate) const COMMON: [NoEffect; 17] = [
    field("user", "a string", Value::is_string),
    field("metadata", "an object", Value::is_object),
    field("store", "a boolean", Value::is_boolean),
    field("safety_identifier", "a string", Value::is_string),
    field("prompt_cache_key", "a string", Value::is_string),
    field("prompt_cache_retention", "a string", Value::is_string),
    field("service_tier", "\"auto\" or \"default\"", |value| value == "auto" || value == "default"),
    field("frequency_penalty", "0", zero),
    field("presence_penalty", "0", zero),
    field("repetition_penalty", "1", one),
    field("logit_bias", "{}", empty),
    field("top_k", "0 or -1", |value| zero(value) || value.as_i64() == Some(-1)),
    field("min_p", "0", zero),
    field("skip_special_tokens", "true", is_true),
    field("no_stop_trim", "false", is_false),
    field("return_hidden_states", "false", is_false),
    field("log_metrics", "a boolean", Value::is_boolean),
];

/// Accepted by `/v1/completions` besides [`COMMON`].
pub(crate) const COMPLETIONS: [NoEffect; 3] =
    [field("echo", "false", is_false), field("best_of", "1", one), field("suffix", "\"\"", empty)];

/// Accepted by `/v1/chat/completions` besides [`COMMON`].
pub(crate) const CHAT: [NoEffect; 17] = [
    field("tools", "[]", empty),
    field("functions", "[]", empty),
    field("tool_choice", "\"none\" or \"auto\"", |value| value == "none" || value == "auto"),
    field("function_call", "\"none\" or \"auto\"", |value| value == "none" || value == "auto"),
    field("parallel_tool_calls", "a boolean", Value::is_boolean),
    field("response_format", "{\"type\": \"text\"}", |value| value["type"] == "text"),
    field("modalities", "[\"text\"]", |value| value == &serde_json::json!(["text"])),
    field("verbosity", "\"medium\"", |value| value == "medium"),
    field("reasoning_effort", "\"none\"", |value| value == "none"),
    field("include_reasoning", "a boolean", Value::is_boolean),
    field("separate_reasoning", "true", is_true),
    field("stream_reasoning", "true", is_true),
    field("continue_final_message", "false", is_false),
    field("audio", "null", |_| false),
    field("prediction", "null", |_| false),
    field("web_search_options", "null", |_| false),
    field("moderation", "null", |_| false),
];

/// Accepted in a message of a chat.
pub(crate) const MESSAGE: [NoEffect; 7] = [
    field("name", "a string", Value::is_string),
    field("reasoning_content", "a string", Value::is_string),
    field("refusal", "null", |_| false),
    field("tool_calls", "[]", empty),
    field("function_call", "null", |_| false),
    field("annotations", "[]", empty),
    field("audio", "null", |_| false),
];
