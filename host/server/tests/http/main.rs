//! The public listener over a scripted engine.

mod native;
mod support;
mod worker;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use support::{Script, post, start};
use tokio::io::AsyncReadExt;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn says(text: &'static str) -> Script {
    Script { text, ..Script::default() }
}

fn slow() -> Script {
    Script {
        text: "one two three four five six seven",
        pause: Duration::from_millis(40),
        ..Script::default()
    }
}

#[tokio::test]
async fn a_chat_answer() {
    let site = start(says("The secret word is tiger."), true).await;
    let body = json!({"model": "nano-v4", "messages": [{"role": "user", "content": "Hi"}], "logprobs": true,
                      "top_logprobs": 2, "temperature": 0});
    let answer = site.post(CHAT, &body).await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: application/json"));
    assert!(answer.head.contains("x-request-id: "));
    let json = answer.json();
    assert_eq!(json["object"], "chat.completion");
    assert_eq!(json["system_fingerprint"], "fp_live");
    assert!(json["id"].as_str().expect("text").starts_with("chatcmpl-"));
    let choice = &json["choices"][0];
    assert_eq!(
        choice["message"],
        json!({"role": "assistant", "content": "The secret word is tiger.", "refusal": null, "annotations": []})
    );
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("stop"), &json!(0)));
    let content = choice["logprobs"]["content"].as_array().expect("an array");
    let text: String = content.iter().map(|entry| entry["token"].as_str().expect("text")).collect();
    assert_eq!(text, "The secret word is tiger.");
    assert_eq!(content[0]["bytes"], json!("The".as_bytes()));
    assert_eq!(content[0]["top_logprobs"].as_array().expect("an array").len(), 2);
    // The stop token is generated but not shown.
    assert_eq!(json["usage"]["completion_tokens"], content.len() + 1);
    assert_eq!(json["usage"]["prompt_tokens"], 6);
}

#[tokio::test]
async fn nullable_keys_are_present() {
    let site = start(says("x"), true).await;
    let chat =
        site.post(CHAT, &json!({"model": "nano-v4", "messages": [{"role": "user", "content": "Hi"}]})).await;
    let choice = &chat.json()["choices"][0];
    assert!(choice.get("logprobs").is_some_and(serde_json::Value::is_null));
    assert!(choice["message"].get("refusal").is_some_and(serde_json::Value::is_null));
    let text = site.post(TEXT, &json!({"model": "nano-v4", "prompt": [5]})).await;
    assert!(text.json()["choices"][0].get("logprobs").is_some_and(serde_json::Value::is_null));
}

#[tokio::test]
async fn completions_of_several_prompts() {
    let site = start(says("a b c d"), true).await;
    let body =
        json!({"model": "nano-v4", "prompt": ["x", "y"], "n": 2, "seed": 10, "max_tokens": 2, "logprobs": 1});
    let json = site.post(TEXT, &body).await.json();
    let choices = json["choices"].as_array().expect("an array");
    assert_eq!(
        choices.iter().map(|choice| choice["index"].as_u64()).collect::<Vec<_>>(),
        [0, 1, 2, 3].map(Some)
    );
    for choice in choices {
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("a b"), &json!("length")));
        assert_eq!(choice["logprobs"]["tokens"], json!(["a", " b"]));
        assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1]));
        assert_eq!(choice["logprobs"]["top_logprobs"][0], json!({"a": -0.5}));
    }
    assert_eq!(json["usage"], json!({"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}));
    let seen = site.script.seen.lock().expect("unpoisoned");
    assert_eq!(seen.iter().map(|request| request.sampling.seed).collect::<Vec<_>>(), [10, 11, 10, 11]);
}

#[tokio::test]
async fn a_chat_stream() {
    let pause = Duration::from_millis(5);
    let site = start(Script { text: "naïve 🦀 END and a long tail", pause, ..Script::default() }, true).await;
    let body = json!({"model": "nano-v4", "messages": [{"role": "user", "content": "Hi"}], "stream": true,
                      "stream_options": {"include_usage": true}, "stop": " END", "n": 2});
    let answer = site.post(CHAT, &body).await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/event-stream"));
    let events = answer.events();
    let (usage, chunks) = events.split_last().expect("events");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["prompt_tokens"], 6);
    assert!(usage["usage"]["completion_tokens"].as_u64().expect("a number") > 8);
    for index in [0, 1] {
        let own: Vec<_> = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index).collect();
        let (first, last) = (&own[0]["choices"][0], &own[own.len() - 1]["choices"][0]);
        assert_eq!(first["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("stop")));
        let text: String =
            own.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, "naïve 🦀");
        for chunk in &own {
            assert!(chunk.get("usage").is_some_and(serde_json::Value::is_null));
            assert!(chunk["choices"][0].get("logprobs").is_some());
            assert_eq!((&chunk["id"], &chunk["object"]), (&usage["id"], &json!("chat.completion.chunk")));
        }
        assert!(own[..own.len() - 1].iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    }
    // The tail after the stop string was not waited for.
    site.cancelled(2).await;
}

#[tokio::test]
async fn a_completion_stream_joins_to_the_whole() {
    let site = start(says("one two three"), true).await;
    let mut body = json!({"model": "nano-v4", "prompt": "x", "logprobs": 0});
    let whole = site.post(TEXT, &body).await.json();
    body["stream"] = true.into();
    let events = site.post(TEXT, &body).await.events();
    let join = |key: &str| -> Vec<serde_json::Value> {
        let lists = events.iter().filter_map(|event| event["choices"][0]["logprobs"][key].as_array());
        lists.flatten().cloned().collect()
    };
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(whole["choices"][0]["text"], text);
    for key in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        assert_eq!(whole["choices"][0]["logprobs"][key], json!(join(key)), "{key}");
    }
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test]
async fn models_health_and_unknown_routes() {
    let site = start(says("x"), true).await;
    let list = site.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "nano-v4");
    assert_eq!(list["data"][0]["max_model_len"], 8192);
    assert_eq!(site.get("/v1/models/nano-v4").await.json(), list["data"][0]);
    assert_eq!(site.get("/v1/models/nano%2Dv4").await.status, 200);
    let missing = site.get("/v1/models/gpt").await;
    assert_eq!((missing.status, missing.code().as_str()), (404, "model_not_found"));
    assert_eq!(site.get("/v1/models/%zz").await.status, 404);
    for path in ["/health", "/ready"] {
        assert_eq!(site.get(path).await.status, 200);
    }
    let unknown = site.get("/v1/slots").await;
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "unknown_url"));
    let method = site.get(CHAT).await;
    assert_eq!((method.status, method.code().as_str()), (405, "method_not_allowed"));
    assert!(method.head.contains("allow: post"));
    assert_eq!(site.post("/v1/models", &json!({})).await.status, 405);
    // The admin endpoints are not here.
    for path in ["/slots", "/swap", "/rollback", "/trace", "/stats", "/kv", "/assignments/live"] {
        assert_eq!(site.get(path).await.status, 404, "{path}");
        assert_eq!(site.post(path, &json!({})).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn bodies_are_bounded() {
    let site = start(says("x"), true).await;
    let large = json!({"model": "nano-v4", "prompt": "a".repeat(1 << 16)});
    let answer = site.post(TEXT, &large).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"));
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let small = json!({"model": "nano-v4", "prompt": "x"}).to_string();
    let (left, right) = small.split_at(9);
    let chunked = format!("{head}{:x}\r\n{left}\r\n{:x}\r\n{right}\r\n0\r\n\r\n", left.len(), right.len());
    assert_eq!(site.raw(&chunked).await.status, 200);
    let piece = "b".repeat(40_000);
    let chunked = format!("{head}{0:x}\r\n{piece}\r\n{0:x}\r\n{piece}\r\n0\r\n\r\n", piece.len());
    assert_eq!(site.raw(&chunked).await.status, 413);
}

#[tokio::test]
async fn bad_requests_do_not_disturb_others() {
    let site = start(slow(), true).await;
    let good = post(TEXT, &json!({"model": "nano-v4", "prompt": "x"}));
    let (answer, ()) = tokio::join!(site.raw(&good), async {
        let broken =
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 3\r\n\r\n{\"m";
        let answer = site.raw(broken).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "json_parse_error"));
        let long = site.post(TEXT, &json!({"model": "nano-v4", "prompt": vec![5; 8192]})).await;
        assert_eq!((long.status, long.code().as_str()), (400, "context_length_exceeded"));
        let message = long.json()["error"]["message"].as_str().expect("text").to_owned();
        assert!(message.contains("8192 tokens"), "{message}");
        let model = site.post(TEXT, &json!({"model": "gpt", "prompt": "x"})).await;
        assert_eq!((model.status, model.code().as_str()), (404, "model_not_found"));
        let arm = site.post(TEXT, &json!({"model": "nano-v4", "prompt": "x", "assignment": "nope"})).await;
        assert_eq!((arm.status, arm.code().as_str()), (400, "unknown_assignment"));
        let message = arm.json()["error"]["message"].as_str().expect("text").to_owned();
        assert_eq!(message, "`assignment`: unknown assignment `nope`; there are: live, suspects");
    });
    assert_eq!(answer.json()["choices"][0]["text"], "one two three four five six seven");
}

#[tokio::test]
async fn request_ids_are_echoed() {
    let site = start(says("x"), true).await;
    let head = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: my-id-7\r\n\r\n";
    assert!(site.raw(head).await.head.contains("x-request-id: my-id-7"));
}

#[tokio::test]
async fn a_full_engine_and_too_many_choices() {
    let site = start(slow(), true).await;
    site.script.full.store(true, Ordering::SeqCst);
    let body = json!({"model": "nano-v4", "prompt": "x"});
    let answer = site.post(TEXT, &body).await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "server_busy"));
    assert!(answer.head.contains("retry-after: 1"));
    site.script.full.store(false, Ordering::SeqCst);
    // Eight choices fit; a ninth does not until they end.
    let all = post(TEXT, &json!({"model": "nano-v4", "prompt": "x", "n": 8}));
    let (first, second) = tokio::join!(site.raw(&all), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        site.post(TEXT, &body).await
    });
    assert_eq!((first.status, second.status), (200, 429));
    assert_eq!(site.post(TEXT, &body).await.status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_cancels() {
    for stream in [true, false] {
        let site = start(slow(), true).await;
        let body = json!({"model": "nano-v4", "prompt": "x", "stream": stream});
        let mut connection = site.connect(&post(TEXT, &body)).await;
        if stream {
            let mut head = [0; 64];
            connection.read_exact(&mut head).await.expect("the stream begins");
        } else {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        drop(connection);
        site.cancelled(1).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_cancels() {
    let never = Script { text: "x", pause: Duration::from_secs(3600), ..Script::default() };
    let site = start(never, true).await;
    let body = json!({"model": "nano-v4", "prompt": "x", "stream": true});
    let connection = site.connect(&post(TEXT, &body)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(connection);
    site.cancelled(1).await;
}

#[tokio::test]
async fn a_failure_in_the_engine_does_not_leak() {
    let script = Script { text: "one two three", fail_after: Some(2), ..Script::default() };
    let site = start(script, true).await;
    let answer = site.post(TEXT, &json!({"model": "nano-v4", "prompt": "x"})).await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "E-PLUG-501"));
    assert!(!answer.body.contains("internal/path"), "{}", answer.body);
    let stream = site.post(TEXT, &json!({"model": "nano-v4", "prompt": "x", "stream": true})).await;
    let events = stream.events();
    assert_eq!(events[events.len() - 1]["error"]["code"], "E-PLUG-501");
}

/// A router asks another worker when it sees a status; an event among others comes too late for that.
#[tokio::test]
async fn a_stream_that_fails_before_its_first_token_has_a_status() {
    let script = Script { text: "one two three", fail_after: Some(0), ..Script::default() };
    let site = start(script, true).await;
    for path in [TEXT, CHAT, "/generate"] {
        let body = match path {
            CHAT => {
                json!({"model": "nano-v4", "messages": [{"role": "user", "content": "x"}], "stream": true})
            }
            TEXT => json!({"model": "nano-v4", "prompt": "x", "stream": true}),
            _ => json!({"text": "x", "stream": true}),
        };
        let answer = site.post(path, &body).await;
        assert_eq!((answer.status, answer.code().as_str()), (500, "E-PLUG-501"), "{path}");
        assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
    }
}

#[tokio::test]
async fn loading_and_draining() {
    let mut site = start(says("x"), false).await;
    // A router sends requests to whoever is well.
    let paths = ["/health", "/ready", "/v1/models", "/server_info"];
    for answer in [
        site.get(paths[0]).await,
        site.get(paths[1]).await,
        site.get(paths[2]).await,
        site.get(paths[3]).await,
        site.post(TEXT, &json!({})).await,
    ] {
        assert_eq!((answer.status, answer.code().as_str()), (503, "loading"));
        assert!(answer.head.contains("retry-after: 1"));
    }
    drop(site.stop.take());
    site.task.await.expect("ends");
}

#[tokio::test]
async fn streams_finish_within_the_grace_time_or_are_cut() {
    // Until its end, until some token, before the first.
    let long = "one two three four five six seven eight nine ten eleven twelve thirteen";
    for (pause, text, complete) in [(20, "a b c d", true), (45, long, false), (2_000, "a b c d", false)] {
        let script = Script { pause: Duration::from_millis(pause), text, ..Script::default() };
        let mut site = start(script, true).await;
        let request = post(TEXT, &json!({"model": "nano-v4", "prompt": "x", "stream": true}));
        let mut connection = site.connect(&request).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let started = Instant::now();
        site.stop.take().expect("running").send(()).expect("listened to");
        let mut raw = Vec::new();
        connection.read_to_end(&mut raw).await.expect("reads");
        site.task.await.expect("ends");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        let answer = support::Answer::parse(&raw);
        if pause == 2_000 {
            assert_eq!((answer.status, answer.code().as_str()), (503, "shutting_down"));
            continue;
        }
        let events = answer.events();
        let last = &events[events.len() - 1];
        if complete {
            assert_eq!(last["choices"][0]["finish_reason"], "stop");
        } else {
            assert!(events.len() > 1, "{}", answer.body);
            assert_eq!(last["error"]["code"], "shutting_down");
        }
    }
}
