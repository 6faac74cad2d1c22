//! SGLang's `/generate` over a scripted engine.

use std::time::Duration;

use crate::support::{Script, start};
use serde_json::{Value, json};

const PATH: &str = "/generate";

fn says(text: &'static str) -> Script {
    Script { text, ..Script::default() }
}

fn params() -> Value {
    json!({"temperature": 0, "max_new_tokens": 64})
}

#[tokio::test]
async fn one_prompt_has_one_object() {
    let site = start(says("a b"), true).await;
    let body = json!({"text": "Hi", "sampling_params": params(), "rid": "mine"});
    let answer = site.post(PATH, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut json = answer.json();
    let meta = json["meta_info"].as_object_mut().expect("an object");
    assert!(meta.remove("e2e_latency").and_then(|seconds| seconds.as_f64()).is_some_and(|s| s >= 0.0));
    let ids = json["output_ids"].as_array().expect("an array").clone();
    // The token that ended the answer is among them, its text is not.
    assert_eq!((json["text"].as_str(), ids.last()), (Some("a b"), Some(&json!(1))));
    assert_eq!(
        json["meta_info"],
        json!({
            "id": "mine", "finish_reason": {"type": "stop", "matched": 1}, "prompt_tokens": 2,
            "completion_tokens": ids.len(), "cached_tokens": 0, "weight_version": "default",
            "system_fingerprint": "fp_live"
        })
    );
}

#[tokio::test]
async fn limits_and_stop_strings_are_named() {
    let site = start(says("one two three four"), true).await;
    let ask = |params: Value| json!({"input_ids": [5, 6], "sampling_params": params});
    let short = site.post(PATH, &ask(json!({"max_new_tokens": 2}))).await.json();
    assert_eq!(short["meta_info"]["finish_reason"], json!({"type": "length", "length": 2}));
    let cut = site.post(PATH, &ask(json!({"max_new_tokens": 9, "stop": [" five", " three"]}))).await.json();
    assert_eq!(cut["text"], "one two");
    assert_eq!(cut["meta_info"]["finish_reason"], json!({"type": "stop", "matched": " three"}));
    assert_eq!(cut["output_ids"].as_array().expect("an array").len(), cut["meta_info"]["completion_tokens"]);
}

#[tokio::test]
async fn batches_and_choices_have_lists() {
    let site = start(says("a b"), true).await;
    let body = json!({"text": ["x", "y"], "rid": "r", "sampling_params": {"max_new_tokens": 1, "n": 2}});
    let list = site.post(PATH, &body).await.json();
    let ids: Vec<&str> = list
        .as_array()
        .expect("a list")
        .iter()
        .map(|o| o["meta_info"]["id"].as_str().expect("text"))
        .collect();
    assert_eq!(ids, ["r_0_0", "r_0_1", "r_1_0", "r_1_1"]);
    // A batch of one is a batch.
    let one = site.post(PATH, &json!({"input_ids": [[5]], "sampling_params": params()})).await.json();
    assert_eq!(one.as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_stream_tells_everything_so_far() {
    let pause = Duration::from_millis(5);
    let site = start(Script { text: "naïve 🦀 END and a tail", pause, ..Script::default() }, true).await;
    let params = json!({"max_new_tokens": 64, "stop": " END"});
    let mut body = json!({"text": "x", "sampling_params": params, "return_logprob": true});
    let whole = site.post(PATH, &body).await.json();
    body["stream"] = true.into();
    let answer = site.post(PATH, &body).await;
    assert!(answer.head.contains("content-type: text/event-stream"));
    let events = answer.events();
    for pair in events.windows(2) {
        let (text, next) = (pair[0]["text"].as_str().expect("text"), pair[1]["text"].as_str().expect("text"));
        assert!(next.starts_with(text), "{text:?} {next:?}");
        assert!(pair[0]["meta_info"]["finish_reason"].is_null() && pair[0].get("index").is_none());
        let count = |event: &Value| event["output_ids"].as_array().expect("an array").len();
        assert!(count(&pair[0]) <= count(&pair[1]));
    }
    let last = events.last().expect("events");
    assert_eq!((&last["text"], &last["output_ids"]), (&whole["text"], &whole["output_ids"]));
    for key in ["output_token_logprobs", "input_token_logprobs", "finish_reason", "completion_tokens"] {
        assert_eq!(last["meta_info"][key], whole["meta_info"][key], "{key}");
    }
    // Several choices say which they are.
    body["sampling_params"]["n"] = 2.into();
    let events = site.post(PATH, &body).await.events();
    for index in [0, 1] {
        let own: Vec<&Value> = events.iter().filter(|event| event["index"] == index).collect();
        assert_eq!(own.last().expect("events")["text"], "naïve 🦀");
    }
}

#[tokio::test]
async fn probabilities_in_sglangs_form() {
    let site = start(says("a"), true).await;
    let mut body = json!({
        "input_ids": [5, 6, 7], "sampling_params": params(), "return_logprob": true, "logprob_start_len": 1,
        "top_logprobs_num": 2, "return_text_in_logprobs": true
    });
    let meta = site.post(PATH, &body).await.json()["meta_info"].clone();
    // The first reported token of the prompt has none.
    let input = meta["input_token_logprobs"].as_array().expect("a list");
    assert_eq!((&input[0][0], &input[0][1]), (&Value::Null, &json!(6)));
    assert_eq!((&input[1][0], &input[1][1], input.len()), (&json!(-0.25), &json!(7), 2));
    assert_eq!(meta["input_top_logprobs"][0], Value::Null);
    assert_eq!(meta["input_top_logprobs"][1][1][0], json!(-1.5));
    let output = meta["output_token_logprobs"].as_array().expect("a list");
    assert_eq!((&output[0][0], &output[0][2]), (&json!(-0.5), &json!("a")));
    assert_eq!(output[1], json!([-0.125, 1, "<｜end▁of▁sentence｜>"]));
    assert_eq!(meta["output_top_logprobs"].as_array().map(Vec::len), Some(2));
    // Without a start there are none of the prompt, and the key is there all the same.
    body["logprob_start_len"] = json!(-1);
    body["return_text_in_logprobs"] = false.into();
    let meta = site.post(PATH, &body).await.json()["meta_info"].clone();
    assert_eq!(
        (&meta["input_token_logprobs"], &meta["output_token_logprobs"][0][2]),
        (&json!([]), &Value::Null)
    );
    body["return_logprob"] = false.into();
    assert!(site.post(PATH, &body).await.json()["meta_info"].get("output_token_logprobs").is_none());
}
