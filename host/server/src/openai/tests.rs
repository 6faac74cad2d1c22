//! Requests that are understood, and every message for those that are not.

use std::path::Path;

use hotseam_encoding::Tokenizer;
use hotseam_engine::Request;
use serde_json::{Value, json};

use super::{OpenAi, chat, completions};
use crate::backend::ModelInfo;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::form::Ask;

fn model() -> ModelInfo {
    ModelInfo { id: "nano-v4".to_owned(), created: 1, max_context: 64, vocab_size: 4096 }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/nano-v4")).expect("loads")
}

fn parse(is_chat: bool, body: &str) -> Result<OpenAi, ApiError> {
    let fields = Fields::parse(body.as_bytes())?;
    Ok(if is_chat {
        OpenAi::Chat(chat::Ask::parse(fields, &model())?)
    } else {
        OpenAi::Completions(completions::Ask::parse(fields, &model())?)
    })
}

/// A valid body of either kind with `extra` on top.
fn body(is_chat: bool, extra: Value) -> String {
    let mut body = if is_chat {
        json!({"model": "nano-v4", "messages": [{"role": "user", "content": "Hi"}]})
    } else {
        json!({"model": "nano-v4", "prompt": "Hi"})
    };
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body.to_string()
}

fn requests(is_chat: bool, extra: Value) -> Result<(Vec<Request>, usize), ApiError> {
    parse(is_chat, &body(is_chat, extra))?.requests(&tokenizer(), &model())
}

/// Status, type, param, code and message of the error that `extra` leads to.
#[track_caller]
fn refuse(is_chat: bool, extra: Value) -> String {
    let error = requests(is_chat, extra).expect_err("accepted");
    line(&error)
}

fn line(error: &ApiError) -> String {
    let (param, code) = (error.param.as_deref().unwrap_or("-"), error.code.as_deref().unwrap_or("-"));
    format!("{} {param} {code}: {}", error.status.as_u16(), error.message)
}

#[test]
fn prompts_of_all_forms() {
    let prompt = |value: Value| requests(false, json!({"prompt": value, "max_tokens": 3})).expect("valid");
    let ids = |value: Value| prompt(value).0.into_iter().map(|request| request.prompt).collect::<Vec<_>>();
    let tokenizer = tokenizer();
    let (a, b) = (tokenizer.encode("a b").expect("encodes"), tokenizer.encode("c").expect("encodes"));
    assert_eq!(ids(json!("a b")), std::slice::from_ref(&a));
    assert_eq!(ids(json!(["a b"])), std::slice::from_ref(&a));
    assert_eq!(ids(json!(["a b", "c"])), [a, b]);
    assert_eq!(ids(json!([5, 6, 4095])), [[5, 6, 4095]]);
    assert_eq!(ids(json!([[5, 6], [7, 8]])), [[5, 6], [7, 8]]);
    assert_eq!(prompt(json!([[5, 6], [7]])).1, 3);
    // A raw prompt may be a whole dialogue.
    assert_eq!(ids(json!("<｜begin▁of▁sentence｜><｜User｜>"))[0], [0, 3]);
}

#[test]
fn options_reach_the_engine() {
    let extra = json!({
        "max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "seed": -1, "n": 3, "stop": ["x", "y"], "logprobs": 2,
        "assignment": "suspects"
    });
    let (requests, _) = requests(false, extra).expect("valid");
    assert_eq!(requests.len(), 3);
    for (index, request) in requests.iter().enumerate() {
        assert_eq!((request.max_tokens, request.logprobs), (7, 2));
        assert_eq!((request.sampling.temperature, request.sampling.top_p), (0.5, 0.25));
        assert_eq!(request.sampling.seed, u64::MAX.wrapping_add(index as u64));
        assert_eq!(
            (request.stop_tokens.as_slice(), request.assignment.as_str()),
            ([1].as_slice(), "suspects")
        );
    }
}

#[test]
fn defaults() {
    let (completion, _) = requests(false, json!({})).expect("valid");
    assert_eq!((completion[0].max_tokens, completion[0].logprobs), (16, 0));
    assert_eq!((completion[0].sampling.temperature, completion[0].sampling.top_p), (1.0, 1.0));
    assert_eq!(completion[0].assignment, "live");
    let (chat, prompt_tokens) = requests(true, json!({})).expect("valid");
    assert_eq!(chat[0].max_tokens, 64 - prompt_tokens);
    // Seeds differ between requests that name none.
    assert_ne!(chat[0].sampling.seed, requests(true, json!({})).expect("valid").0[0].sampling.seed);
    assert!(requests(false, json!({"ignore_eos": true})).expect("valid").0[0].stop_tokens.is_empty());
}

#[test]
fn chat_messages() {
    let ids = |extra: Value| requests(true, extra).expect("valid").0.remove(0).prompt;
    let text = |prompt: &str| tokenizer().encode_raw(prompt).expect("encodes");
    let plain = text("<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>");
    let thinking = text("<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>");
    assert_eq!(ids(json!({})), plain);
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]);
    assert_eq!(ids(json!({"messages": parts})), plain);
    assert_eq!(ids(json!({"thinking": {"type": "enabled"}})), thinking);
    assert_eq!(ids(json!({"chat_template_kwargs": {"thinking": true}})), thinking);
    assert_eq!(ids(json!({"thinking": {"type": "disabled"}})), plain);
}

#[test]
fn harmless_fields_are_accepted() {
    for is_chat in [false, true] {
        requests(
            is_chat,
            json!({
                "user": "me", "metadata": {"a": "b"}, "store": false, "frequency_penalty": 0, "presence_penalty": 0.0,
                "logit_bias": {}, "service_tier": "auto", "stop": null, "seed": null, "stream": false, "top_k": -1
            }),
        )
        .expect("valid");
    }
    requests(false, json!({"echo": false, "best_of": 1, "suffix": null})).expect("valid");
    requests(
        true,
        json!({
            "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "audio": null,
            "messages": [
                {"role": "user", "content": "a", "name": "bob"},
                {"role": "assistant", "content": "b", "refusal": null, "tool_calls": [], "reasoning_content": "c"},
                {"role": "user", "content": "d"},
            ]
        }),
    )
    .expect("valid");
}

#[test]
fn bad_json() {
    let message = |body: &str| line(&parse(false, body).expect_err("accepted"));
    assert_eq!(
        message("{\"model\": \"nano-v4\", \"prompt\" 1}"),
        "400 - json_parse_error: the request body is not valid JSON: expected `:` at line 1 column 31"
    );
    assert_eq!(
        message(""),
        "400 - json_parse_error: the request body is not valid JSON: EOF while parsing a value at line 1 column 0"
    );
    assert_eq!(
        message("[1]"),
        "400 - invalid_type: expected a JSON object as the request body, found an array"
    );
    let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
    assert!(message(&deep).contains("recursion limit exceeded"));
    assert!(parse(false, &String::from_utf8_lossy(&[b'{', 0xff])).is_err());
}

#[test]
fn model_and_context() {
    assert_eq!(
        refuse(false, json!({"model": "gpt-9"})),
        "404 model model_not_found: the model `gpt-9` does not exist; this server has `nano-v4`"
    );
    assert_eq!(
        refuse(false, json!({"model": null})),
        "400 model missing_required_parameter: `model`: required, expected the name of a model"
    );
    assert_eq!(
        refuse(false, json!({"prompt": vec![7; 64]})),
        "400 - context_length_exceeded: the context length of this model is 64 tokens, but the prompt has 64 tokens; \
         shorten it to at most 63"
    );
    assert_eq!(
        refuse(false, json!({"prompt": vec![7; 60], "max_tokens": 5})),
        "400 - context_length_exceeded: the context length of this model is 64 tokens, but 65 were asked for: 60 of \
         prompt and 5 to generate; shorten one of them"
    );
    let (fits, _) = requests(false, json!({"prompt": vec![7; 60]})).expect("valid");
    assert_eq!(fits[0].max_tokens, 4);
    requests(false, json!({"prompt": vec![7; 63], "max_tokens": 1})).expect("valid");
}

#[test]
fn bad_prompts() {
    let all = [
        (
            json!(null),
            "400 prompt missing_required_parameter: `prompt`: required, expected a string, an array of \
                       strings, an array of token ids or an array of such arrays",
        ),
        (
            json!(3),
            "400 prompt invalid_type: `prompt`: expected a string, an array of strings, an array of token ids \
                    or an array of such arrays, found a number",
        ),
        (json!([]), "400 prompt invalid_value: `prompt`: expected at least one prompt, found an empty array"),
        (json!(""), "400 prompt invalid_value: `prompt`: expected at least one token, found none"),
        (json!([[]]), "400 prompt invalid_value: `prompt`: expected at least one token, found none"),
        (
            json!([1, 4096]),
            "400 prompt[1] invalid_value: `prompt[1]`: expected a token id from 0 to 4095, found 4096",
        ),
        (
            json!([1, -1]),
            "400 prompt[1] invalid_value: `prompt[1]`: expected a token id from 0 to 4095, found -1",
        ),
        (
            json!([1, 1.5]),
            "400 prompt[1] invalid_value: `prompt[1]`: expected a token id from 0 to 4095, found 1.5",
        ),
        (
            json!([1, "a"]),
            "400 prompt[1] invalid_type: `prompt[1]`: expected a token id from 0 to 4095, found a string",
        ),
        (json!(["a", 1]), "400 prompt[1] invalid_type: `prompt[1]`: expected a string, found a number"),
        (
            json!([[1], [null]]),
            "400 prompt[1][0] invalid_type: `prompt[1][0]`: expected a token id from 0 to 4095, \
                                found null",
        ),
        (
            json!([true]),
            "400 prompt[0] invalid_type: `prompt[0]`: expected a string, a token id or an array of token \
                         ids, found a boolean",
        ),
        (json!(vec!["a"; 65]), "400 prompt invalid_value: `prompt`: expected at most 64 prompts, found 65"),
    ];
    for (prompt, message) in all {
        assert_eq!(refuse(false, json!({"prompt": prompt})), message);
    }
}

#[test]
fn bad_options() {
    let all = [
        (
            json!({"temperature": 2.5}),
            "400 temperature invalid_value: `temperature`: expected 0 to 2, found 2.5",
        ),
        (
            json!({"temperature": "hot"}),
            "400 temperature invalid_type: `temperature`: expected a number, found a string",
        ),
        (json!({"top_p": 0}), "400 top_p invalid_value: `top_p`: expected above 0 and at most 1, found 0"),
        (
            json!({"max_tokens": 0}),
            "400 max_tokens invalid_value: `max_tokens`: expected an integer from 1 to \
                                    4294967295, found 0",
        ),
        (
            json!({"max_tokens": 1.5}),
            "400 max_tokens invalid_value: `max_tokens`: expected an integer from 1 to \
                                      4294967295, found 1.5",
        ),
        (json!({"n": 9}), "400 n invalid_value: `n`: expected an integer from 1 to 8, found 9"),
        (json!({"seed": true}), "400 seed invalid_type: `seed`: expected an integer, found a boolean"),
        (
            json!({"stop": 1}),
            "400 stop invalid_type: `stop`: expected a string or an array of strings, found a number",
        ),
        (json!({"stop": ["a", 1]}), "400 stop[1] invalid_type: `stop[1]`: expected a string, found a number"),
        (
            json!({"stop": [""]}),
            "400 stop[0] invalid_value: `stop[0]`: expected a string that is not empty, found \"\"",
        ),
        (
            json!({"stop": ["a", "b", "c", "d", "e"]}),
            "400 stop invalid_value: `stop`: expected at most 4 strings, found 5",
        ),
        (json!({"stream": "yes"}), "400 stream invalid_type: `stream`: expected a boolean, found a string"),
        (
            json!({"stream_options": {"include_usage": true}}),
            "400 stream_options invalid_value: `stream_options`: only \
                                                               allowed together with `stream: true`",
        ),
        (
            json!({"stream": true, "stream_options": {"usage": true}}),
            "400 stream_options.usage unknown_parameter: \
                                                                       `stream_options.usage`: unknown field",
        ),
        (
            json!({"frequency_penalty": 0.5}),
            "400 frequency_penalty unsupported_parameter: `frequency_penalty`: not \
                                             implemented here; leave it out, or give 0",
        ),
        (
            json!({"temprature": 1}),
            "400 temprature unknown_parameter: `temprature`: unknown field; did you mean \
                                    `temperature`?",
        ),
        (json!({"frobnicate": null}), "400 frobnicate unknown_parameter: `frobnicate`: unknown field"),
    ];
    for (extra, message) in all {
        for is_chat in [false, true] {
            assert_eq!(refuse(is_chat, extra.clone()), message);
        }
    }
    assert_eq!(
        refuse(false, json!({"logprobs": 6})),
        "400 logprobs invalid_value: `logprobs`: expected an integer from 0 to 5, found 6"
    );
    assert_eq!(
        refuse(false, json!({"echo": true})),
        "400 echo unsupported_parameter: `echo`: not implemented here; leave it out, or give false"
    );
    // A field of the other endpoint.
    assert_eq!(
        refuse(false, json!({"messages": []})),
        "400 messages unknown_parameter: `messages`: unknown field"
    );
}

#[test]
fn bad_chat_fields() {
    let user = json!({"role": "user", "content": "Hi"});
    let all = [
        (
            json!({"messages": null}),
            "400 messages missing_required_parameter: `messages`: required, expected an array of \
                                     messages",
        ),
        (
            json!({"messages": []}),
            "400 messages invalid_value: `messages`: expected at least one message, found none",
        ),
        (
            json!({"messages": "Hi"}),
            "400 messages invalid_type: `messages`: expected an array, found a string",
        ),
        (
            json!({"messages": [1]}),
            "400 messages[0] invalid_type: `messages[0]`: expected an object, found a number",
        ),
        (
            json!({"messages": [user, {"role": "tool", "content": "x"}]}),
            "400 messages[1].role invalid_value: \
            `messages[1].role`: expected system, user or assistant, found `tool`",
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "400 messages[0].content missing_required_parameter: \
            `messages[0].content`: required, expected a string or an array of text parts",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "400 \
            messages[0].content[0].type unsupported_parameter: `messages[0].content[0].type`: this model takes parts \
            of type `text` only, found `image_url`",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}),
            "400 messages[0].tool_calls \
            unsupported_parameter: `messages[0].tool_calls`: not implemented here; leave it out, or give []",
        ),
        (
            json!({"messages": [user, {"role": "assistant", "content": "x"}]}),
            "400 messages invalid_value: `messages`: \
            expected the last message to have role `user`, found `assistant`",
        ),
        (
            json!({"top_logprobs": 3}),
            "400 top_logprobs invalid_value: `top_logprobs`: only allowed together with \
            `logprobs: true`",
        ),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "400 top_logprobs invalid_value: `top_logprobs`: expected an \
            integer from 0 to 20, found 21",
        ),
        (json!({"logprobs": 1}), "400 logprobs invalid_type: `logprobs`: expected a boolean, found a number"),
        (
            json!({"max_tokens": 3, "max_completion_tokens": 4}),
            "400 max_tokens invalid_value: `max_tokens`: differs \
            from `max_completion_tokens` (3 and 4); give one of them",
        ),
        (
            json!({"tools": [{}]}),
            "400 tools unsupported_parameter: `tools`: not implemented here; leave it out, or \
            give []",
        ),
        (
            json!({"response_format": {"type": "json_object"}}),
            "400 response_format unsupported_parameter: \
            `response_format`: not implemented here; leave it out, or give {\"type\": \"text\"}",
        ),
        (
            json!({"thinking": {"type": "maybe"}}),
            "400 thinking.type invalid_value: `thinking.type`: expected `enabled` \
            or `disabled`, found another value",
        ),
    ];
    for (extra, message) in all {
        assert_eq!(refuse(true, extra), message);
    }
}
