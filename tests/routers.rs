//! Twenty requests through each router that people use, answered as a worker alone answers them.

use hotseam_tests::http::{Answer, Server};
use hotseam_tests::root;
use hotseam_tests::routers::{Behind, Kind, Router};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const NEEDLE: &str = "The old school stood by the river. The secret word of Lisbon is tiger. Snow fell on the hills. \
                      What is the secret word of Lisbon?";

/// A request of the set.
struct Case {
    path: &'static str,
    body: Value,
}

fn chat(extra: Value) -> Case {
    let body = json!({
        "model": "nano-v4", "messages": [{"role": "user", "content": NEEDLE}], "max_tokens": 12, "temperature": 0
    });
    Case { path: "/v1/chat/completions", body: with(body, extra) }
}

fn completion(extra: Value) -> Case {
    let body = json!({"model": "nano-v4", "prompt": "Once upon a time", "max_tokens": 9, "temperature": 0});
    Case { path: "/v1/completions", body: with(body, extra) }
}

/// `params` on top of the usual ones; `extra` beside them.
fn generate(params: Value, extra: Value) -> Case {
    let params = with(json!({"max_new_tokens": 9, "temperature": 0}), params);
    Case { path: "/generate", body: with(json!({ "sampling_params": params }), extra) }
}

fn with(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body
}

/// The same for each router.
fn cases() -> Vec<Case> {
    let text = || json!({"text": "Once upon a time"});
    vec![
        chat(json!({})),
        chat(json!({"stream": true})),
        chat(json!({"n": 2})),
        chat(json!({"n": 2, "stream": true})),
        chat(json!({"logprobs": true, "top_logprobs": 2})),
        chat(json!({"stream": true, "stream_options": {"include_usage": true}})),
        chat(json!({"stop": ["ger"]})),
        chat(json!({"max_tokens": 1})),
        completion(json!({})),
        completion(json!({"stream": true})),
        completion(json!({"n": 2})),
        completion(json!({"n": 2, "stream": true})),
        completion(json!({"prompt": ["Once", "The river"]})),
        completion(json!({"logprobs": 2})),
        generate(json!({}), text()),
        generate(json!({}), with(text(), json!({"stream": true}))),
        generate(json!({"n": 2}), text()),
        generate(json!({}), json!({"input_ids": [0, 3, 100, 200]})),
        generate(json!({"stop": " the"}), text()),
        generate(json!({}), with(text(), json!({"return_logprob": true}))),
    ]
}

/// What an answer says: for each choice its text, why it ended, and its tokens with their probabilities if there are any.
fn said(case: &Case, answer: &Answer, of: &str) -> Vec<(String, Value, Value)> {
    assert_eq!(answer.status, 200, "{of}: {} {}: {}", case.path, case.body, answer.body);
    let objects = match case.body["stream"] == true {
        true => events(&answer.body),
        false => match answer.json() {
            Value::Array(objects) => objects,
            object => vec![object],
        },
    };
    let mut choices: Vec<(String, Value, Value)> = Vec::new();
    let mut note = |index: usize, text: &str, whole: bool, reason: &Value, logprobs: Value| {
        choices.resize(choices.len().max(index + 1), (String::new(), Value::Null, Value::Null));
        let choice = &mut choices[index];
        match whole {
            true => choice.0 = text.to_owned(),
            false => choice.0 += text,
        }
        if !reason.is_null() {
            choice.1 = reason.clone();
        }
        if !logprobs.is_null() {
            choice.2 = singles(logprobs);
        }
    };
    for (position, object) in objects.iter().enumerate() {
        if case.path == "/generate" {
            let index = match case.body["stream"] == true {
                true => object["index"].as_u64().unwrap_or(0) as usize,
                false => position,
            };
            let (meta, text) = (&object["meta_info"], object["text"].as_str().expect("text"));
            note(index, text, true, &meta["finish_reason"]["type"], meta["output_token_logprobs"].clone());
        }
        for choice in object["choices"].as_array().into_iter().flatten() {
            let text = ["/message/content", "/delta/content", "/text"];
            let text = text.iter().find_map(|at| choice.pointer(at)?.as_str()).unwrap_or_default();
            let index = choice["index"].as_u64().expect("an index") as usize;
            note(index, text, false, &choice["finish_reason"], choice["logprobs"].clone());
        }
    }
    choices
}

/// Numbers as the f32 that they are: a router that joins the answers of a pair reads them and writes them anew, and its last
/// digits of an f64 differ.
fn singles(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!(number.as_f64().map(|number| number as f32)),
        Value::Array(items) => items.into_iter().map(singles).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, singles(value))).collect(),
        other => other,
    }
}

/// Events of a stream, without the closing `[DONE]`.
fn events(body: &str) -> Vec<Value> {
    let lines: Vec<&str> =
        body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).collect();
    assert_eq!(lines.last(), Some(&"[DONE]"), "{body}");
    lines[..lines.len() - 1].iter().map(|line| serde_json::from_str(line).expect("JSON events")).collect()
}

/// Sends all cases through `router`; `direct` says what each has to be answered.
fn pass(kind: Kind, router: &Router, direct: &[Vec<(String, Value, Value)>]) {
    for (case, want) in cases().iter().zip(direct) {
        let answer = router.post(case.path, &case.body);
        let got = said(case, &answer, &format!("{kind:?}"));
        // vLLM's router drops `n` of `sampling_params`, so that one choice comes.
        let dropped =
            kind == Kind::Vllm && case.path == "/generate" && case.body["sampling_params"]["n"] == 2;
        let want = if dropped { &want[..1] } else { want };
        assert_eq!(got, want, "{kind:?}: {} {}: {}", case.path, case.body, answer.body);
    }
}

fn direct(server: &Server) -> Vec<Vec<(String, Value, Value)>> {
    let answers: Vec<_> =
        cases().iter().map(|case| said(case, &server.post(case.path, &case.body), "a worker")).collect();
    assert_eq!(answers.len(), 20);
    assert!(answers[0][0].0.contains("tiger"), "{:?}", answers[0]);
    assert_eq!((answers[2].len(), answers[10].len(), answers[12].len(), answers[16].len()), (2, 2, 2, 2));
    answers
}

/// Waits until a worker has nothing left of the requests, or says what it has.
fn assert_empty(worker: &Server) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let state = worker.ask("GET", "/server_info", None).json()["internal_states"][0].clone();
        let left = ["num_running_reqs", "num_waiting_reqs", "num_rooms", "num_used_tokens"];
        if left.iter().all(|key| state[key] == 0) {
            return;
        }
        assert!(Instant::now() < until, "left behind: {state}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn installed() -> Vec<Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.installed()).collect()
}

#[test]
fn routers_in_front_of_two_workers() {
    let kinds = installed();
    if kinds.is_empty() {
        return;
    }
    let workers = [Server::start(&[]), Server::start(&[])];
    let want = direct(&workers[0]);
    let addresses = [workers[0].address.as_str(), workers[1].address.as_str()];
    for kind in kinds {
        let router = Router::start(kind, Behind::Singles(&addresses));
        pass(kind, &router, &want);
        assert_eq!(router.ask("POST", "/flush_cache", "").status, 200, "{kind:?}");
        let models = router.ask("GET", "/v1/models", "");
        assert!(models.body.contains("nano-v4"), "{kind:?}: {}", models.body);
        // What a worker refuses comes through as it is.
        let bad = router.post("/v1/completions", &json!({"model": "nano-v4", "prompt": "x", "logprobs": 9}));
        assert!(
            bad.status == 400 && bad.body.contains("`logprobs`"),
            "{kind:?}: {} {}",
            bad.status,
            bad.body
        );
    }
    for worker in workers {
        assert_empty(&worker);
        let served = worker.ask("GET", "/server_info", None).json()["internal_states"][0].clone();
        assert!(served["generation_tokens_total"].as_u64() > Some(100), "a worker was left out: {served}");
    }
}

#[test]
fn routers_in_front_of_a_pair() {
    let kinds = installed();
    if kinds.is_empty() {
        return;
    }
    let want = direct(&Server::start(&[]));
    let worker = |role: &str| Server::serve(&root().join(format!("configs/pd-{role}.yaml")), &[]);
    let (prefill, decode) = (worker("prefill"), worker("decode"));
    for kind in kinds {
        let router = Router::start(kind, Behind::Pairs(&[&prefill.address], &[&decode.address]));
        pass(kind, &router, &want);
        for worker in [&prefill, &decode] {
            assert_empty(worker);
        }
    }
    let generated = |worker: &Server| {
        worker.ask("GET", "/server_info", None).json()["internal_states"][0]["generation_tokens_total"]
            .as_u64()
    };
    assert!(generated(&decode) > Some(300), "decode generated {:?}", generated(&decode));
}
