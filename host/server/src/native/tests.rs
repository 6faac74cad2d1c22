//! Bodies of `/generate` that are understood, every message for those that are not, and answers.

use std::path::Path;

use hotseam_encoding::Tokenizer;
use hotseam_engine::Request;
use serde_json::{Value, json};

use super::Ask;
use crate::backend::ModelInfo;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::form::Ask as _;

fn requests(body: Value) -> Result<Vec<Request>, ApiError> {
    let model = ModelInfo { id: "nano-v4".to_owned(), created: 1, max_context: 200, vocab_size: 4096 };
    let tokenizer = Tokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/nano-v4"));
    let ask = Ask::parse(Fields::parse(body.to_string().as_bytes())?, &model)?;
    ask.requests(&tokenizer.expect("loads"), &model).map(|(requests, _)| requests)
}

#[test]
fn what_routers_send_is_understood() {
    for model in [json!(null), json!("unknown"), json!("nano-v4")] {
        let body = json!({
            "model": model, "text": "Hi", "log_metrics": true, "return_hidden_states": false, "background": false,
            "no_logs": false, "return_bytes": false, "return_entropy": false, "return_text_in_logprobs": false,
            "stream": false, "sampling_params": {"temperature": 0.0, "max_new_tokens": 4}
        });
        let requests = requests(body).expect("valid");
        assert_eq!((requests.len(), requests[0].max_tokens), (1, 4));
    }
    // vLLM's router bounds prefill beside `sampling_params`.
    let body = json!({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 9}, "max_tokens": 1, "min_tokens": 1});
    assert_eq!(requests(body).expect("valid")[0].max_tokens, 1);
}

#[test]
fn batches_choices_and_parameters() {
    let body = json!({
        "input_ids": [[5, 6], [7]],
        "sampling_params": [
            {"n": 2, "sampling_seed": 10, "temperature": 0.5, "top_p": 0.25, "stop_token_ids": [9]},
            {"n": 2, "sampling_seed": 20, "ignore_eos": true}
        ],
        "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 3
    });
    let requests = requests(body).expect("valid");
    let seeds: Vec<u64> = requests.iter().map(|request| request.sampling.seed).collect();
    assert_eq!(seeds, [10, 11, 20, 21]);
    assert_eq!((requests[1].prompt.as_slice(), requests[3].prompt.as_slice()), (&[5, 6][..], &[7][..]));
    assert_eq!(requests[0].stop_tokens, [9, 1]);
    assert!(requests[2].stop_tokens.is_empty());
    assert_eq!((requests[0].sampling.temperature, requests[0].sampling.top_p), (0.5, 0.25));
    assert_eq!((requests[0].logprobs, requests[0].prompt_logprobs), (3, Some(1)));
    assert_eq!(requests[0].max_tokens, 128);
}

#[test]
fn what_is_wrong_is_named() {
    let with = |extra: Value| {
        let mut body = json!({"text": "Hi"});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        body
    };
    let params = |params: Value| with(json!({ "sampling_params": params }));
    let all = [
        (json!({}), "`text`: required, expected a prompt there or in `input_ids`"),
        (with(json!({"input_ids": [1]})), "`text`: only allowed without `input_ids`; give one of them"),
        (
            json!({"text": [5]}),
            "`text`: expected a string or an array of strings, found token ids; those go to `input_ids`",
        ),
        (
            json!({"input_ids": "Hi"}),
            "`input_ids`: expected an array of token ids or an array of such arrays, found text; that goes to `text`",
        ),
        (
            json!({"input_ids": [[5], [4096]]}),
            "`input_ids[1][0]`: expected a token id from 0 to 4095, found 4096",
        ),
        (json!({"input_ids": [[]]}), "`input_ids`: expected at least one token, found none"),
        (with(json!({"model": "gpt"})), "the model `gpt` does not exist; this server has `nano-v4`"),
        (
            with(json!({"sampling_parms": {}})),
            "`sampling_parms`: unknown field; did you mean `sampling_params`?",
        ),
        (with(json!({"image_data": "x"})), "`image_data`: not implemented here; leave it out, or give null"),
        (
            with(json!({"token_ids_logprob": [1]})),
            "`token_ids_logprob`: not implemented here; leave it out, or give null",
        ),
        (
            with(json!({"logprob_start_len": 9, "return_logprob": true})),
            "`logprob_start_len`: expected -1, or 0 to the tokens of the prompt, 2, found 9",
        ),
        (with(json!({"top_logprobs_num": [1]})), "`top_logprobs_num`: expected an integer, found an array"),
        (with(json!({"rid": ""})), "`rid`: expected 1 to 128 characters, found 0"),
        (with(json!({"rid": ["a", "b"]})), "`rid`: expected one name for each of 1 prompts, found 2"),
        (with(json!({"min_tokens": 2})), "`min_tokens`: not implemented here; leave it out, or give 0"),
        (
            params(json!({"max_new_tokens": 0})),
            "`sampling_params.max_new_tokens`: expected an integer from 1 to 4294967295, found 0",
        ),
        (
            params(json!({"max_new_tokens": 500})),
            "the context length of this model is 200 tokens, but 502 were asked for: 2 of prompt and 500 to generate; shorten one of them",
        ),
        (params(json!({"temperature": -1})), "`sampling_params.temperature`: expected 0 to 100, found -1"),
        (
            params(json!({"regex": "a*"})),
            "`sampling_params.regex`: not implemented here; leave it out, or give null",
        ),
        (
            params(json!({"top_k": 4})),
            "`sampling_params.top_k`: not implemented here; leave it out, or give 0 or -1",
        ),
        (
            params(json!({"stop": [""]})),
            "`sampling_params.stop[0]`: expected a string that is not empty, found \"\"",
        ),
        (
            params(json!({"stop_token_ids": [4096]})),
            "`sampling_params.stop_token_ids[0]`: expected a token id from 0 to 4095, found 4096",
        ),
        (
            params(json!([{}, {}])),
            "`sampling_params`: expected one object, or one for each of 1 prompts, found 2",
        ),
        (
            json!({"text": ["a", "b"], "sampling_params": [{"n": 2}, {}]}),
            "`sampling_params[1].n`: expected that of the first prompt, 2, found 1",
        ),
        (
            json!({"text": ["a"], "kv_transfer_params": {"do_remote_decode": true}}),
            "`kv_transfer_params`: only allowed with one prompt and `n` 1: the answer of several is a list and has no place for it",
        ),
    ];
    for (body, message) in all {
        assert_eq!(requests(body).expect_err("accepted").message, message);
    }
}
