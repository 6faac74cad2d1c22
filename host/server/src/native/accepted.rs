//! SGLang's fields that are not implemented: accepted where they ask for nothing.

use serde_json::Value;

use crate::fields::NoEffect;
use crate::openai::accepted::{empty, field, is_false, is_true, one, zero};

const fn absent(name: &'static str) -> NoEffect {
    field(name, "null", |_| false)
}

/// Accepted in the body of `/generate`.
pub(crate) const BODY: [NoEffect; 29] = [
    absent("input_embeds"),
    absent("image_data"),
    absent("video_data"),
    absent("audio_data"),
    absent("modalities"),
    absent("token_ids_logprob"),
    absent("session_params"),
    absent("session_id"),
    absent("lora_path"),
    absent("lora_id"),
    absent("custom_logit_processor"),
    absent("decode_tp_size"),
    absent("priority"),
    absent("extra_key"),
    absent("max_thinking_tokens"),
    absent("bootstrap_pair_key"),
    field("return_hidden_states", "false", is_false),
    field("return_bytes", "false", is_false),
    field("return_entropy", "false", is_false),
    field("return_prompt_token_ids", "false", is_false),
    field("background", "false", is_false),
    field("log_metrics", "a boolean", Value::is_boolean),
    field("no_logs", "a boolean", Value::is_boolean),
    field("custom_labels", "an object", Value::is_object),
    field("conversation_id", "a string", Value::is_string),
    field("routing_key", "a string", Value::is_string),
    field("routed_dp_rank", "0", zero),
    field("data_parallel_rank", "0", zero),
    field("disagg_prefill_dp_rank", "0", zero),
];

/// Accepted in `sampling_params`.
pub(crate) const SAMPLING: [NoEffect; 17] = [
    field("top_k", "0 or -1", |value| zero(value) || value.as_i64() == Some(-1)),
    field("min_p", "0", zero),
    field("min_new_tokens", "0", zero),
    field("frequency_penalty", "0", zero),
    field("presence_penalty", "0", zero),
    field("repetition_penalty", "1", one),
    field("logit_bias", "{}", empty),
    field("stop_regex", "[]", empty),
    field("skip_special_tokens", "true", is_true),
    field("spaces_between_special_tokens", "a boolean", Value::is_boolean),
    field("no_stop_trim", "false", is_false),
    field("stream_interval", "1", one),
    absent("regex"),
    absent("json_schema"),
    absent("ebnf"),
    absent("structural_tag"),
    absent("custom_params"),
];
