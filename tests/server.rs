//! The server over the wire: answers, streams, swaps, and clear errors that cost other requests nothing.

use hotseam_tests::http::{Server, hotseam, run};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const NEEDLE: &str = "The old school stood by the river. The secret word of Lisbon is tiger. Snow fell on the hills. \
                      What is the secret word of Lisbon?";

fn chat(content: &str) -> Value {
    json!({"model": "nano-v4", "messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0})
}

/// Events of a stream, without the closing `[DONE]`.
fn events(body: &str) -> Vec<Value> {
    let lines: Vec<&str> = body.lines().filter_map(|l| l.strip_prefix("data:")).map(str::trim).collect();
    assert_eq!(lines.last(), Some(&"[DONE]"), "{body}");
    lines[..lines.len() - 1].iter().map(|l| serde_json::from_str(l).expect("JSON events")).collect()
}

#[test]
fn answers_and_streams_say_the_same() {
    let server = Server::start(&[]);
    let whole = server.post("/v1/chat/completions", &chat(NEEDLE));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let message = whole.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(message.contains("tiger"), "{message}");

    let mut request = chat(NEEDLE);
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    let events = events(&server.post("/v1/chat/completions", &request).body);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let pieces = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), message);
    let last = events.last().unwrap();
    assert_eq!(last["usage"], whole.json()["usage"]);

    let completion = server.post(
        "/v1/completions",
        &json!({"model": "nano-v4", "prompt": [0, 3, 100, 200], "max_tokens": 5, "logprobs": 5, "temperature": 0}),
    );
    assert_eq!(completion.status, 200, "{}", completion.body);
    let logprobs = completion.json()["choices"][0]["logprobs"].clone();
    assert_eq!(
        logprobs["tokens"].as_array().unwrap().len(),
        logprobs["top_logprobs"].as_array().unwrap().len()
    );
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 5);
    assert_eq!(server.ask("GET", "/v1/models", None).json()["data"][0]["id"], "nano-v4");
    assert_eq!(server.ask("GET", "/ready", None).status, 200);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_swap_over_the_admin_socket_is_seen_in_slots_and_trace_and_rolled_back() {
    let server = Server::start(&[]);
    let want = server.post("/v1/chat/completions", &chat(NEEDLE)).json()["choices"][0]["message"].clone();
    let (code, out, err) = server.command(&[
        "swap",
        "attention.core@decode:layers=2-6",
        "attention/cpu-sm120-mma",
        "--format",
        "json",
    ]);
    assert_eq!(code, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["changes"].as_array().unwrap().len(), 5, "{out}");
    assert_eq!(server.post("/v1/chat/completions", &chat(NEEDLE)).json()["choices"][0]["message"], want);
    let (_, trace, _) = server.command(&["trace", "--format", "json"]);
    assert!(trace.contains("attention/cpu-sm120-mma"), "{trace}");
    let (_, slots, _) = server.command(&["slots"]);
    assert!(slots.contains("attention/cpu-sm120-mma"), "{slots}");
    let (code, _, err) = server.command(&["rollback"]);
    assert_eq!(code, 0, "{err}");
    let (_, slots, _) = server.command(&["slots", "--format", "json"]);
    let slots: Value = serde_json::from_str(&slots).expect("JSON");
    let cells = slots["assignments"]["live"]["cells"].to_string();
    assert!(cells.contains("attention/cpu-stock"), "{cells}");
    assert!(!cells.contains("attention/cpu-sm120-mma"), "{cells}");

    for (args, part) in [
        (["swap", "indexer", "indexer/cpu-stock{keys: bf16}"], "key-bf16"),
        (["swap", "attentoin", "attention/cpu-stock"], "attention"),
        (["swap", "attention", "attention/cpu-stok"], "attention/cpu-stock"),
        (["swap", "attention", "mhc/cpu-stock"], "mhc"),
        (["swap", "attention:layers=40", "attention/cpu-stock"], "7 layers"),
        (["swap", "attention@prefill", "attention/cpu-sm120-mma"], "prefill"),
        (["swap", "indexer", "indexer/cpu-sm120{early_exti: true}"], "early_exit"),
    ] {
        let (code, out, err) = server.command(&args);
        assert_ne!(code, 0, "{args:?}: {out}");
        assert!(err.contains(part) && !err.contains("panicked"), "{args:?}: {err}");
    }
    assert_eq!(server.post("/v1/chat/completions", &chat(NEEDLE)).json()["choices"][0]["message"], want);
}

#[test]
fn bad_requests_get_openai_errors_and_disturb_nobody() {
    let server = Server::start(&["engine.max_context=512"]);
    let completion = |extra: Value| {
        let mut request = json!({"model": "nano-v4", "prompt": "Once", "max_tokens": 4});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        request.to_string()
    };
    let long: Vec<u32> = vec![9; 600];
    let cases: Vec<(&str, &str, String, u16, &str)> = vec![
        ("POST", "/v1/completions", "{\"model\": ".into(), 400, "JSON"),
        ("POST", "/v1/completions", completion(json!({"model": "gpt-9"})), 404, "gpt-9"),
        ("POST", "/v1/completions", completion(json!({"prompt": long})), 400, "512"),
        ("POST", "/v1/completions", completion(json!({"prompt": [99999]})), 400, "99999"),
        ("POST", "/v1/completions", completion(json!({"temperature": -1})), 400, "temperature"),
        ("POST", "/v1/completions", completion(json!({"max_tokens": "many"})), 400, "max_tokens"),
        ("POST", "/v1/completions", completion(json!({"max_tokns": 3})), 400, "max_tokns"),
        ("POST", "/v1/completions", completion(json!({"logprobs": 9})), 400, "logprobs"),
        ("POST", "/v1/completions", completion(json!({"assignment": "nobody"})), 400, "nobody"),
        ("POST", "/v1/completions", completion(json!({"prompt": []})), 400, "prompt"),
        ("POST", "/v1/chat/completions", json!({"model": "nano-v4"}).to_string(), 400, "messages"),
        (
            "POST",
            "/v1/chat/completions",
            json!({"model": "nano-v4", "messages": [{"role": "wizard", "content": "x"}]}).to_string(),
            400,
            "role",
        ),
        ("POST", "/v1/completions", completion(json!({"prompt": "ab ".repeat(500_000)})), 400, "bytes"),
        ("CONNECT", "elsewhere:80", String::new(), 405, "CONNECT"),
        ("GET", "/v1/completions", String::new(), 405, ""),
        ("GET", "/nowhere", String::new(), 404, ""),
        ("POST", "/swap", "{}".into(), 404, ""),
        ("GET", "/slots", String::new(), 404, ""),
    ];
    std::thread::scope(|scope| {
        let steady = scope.spawn(|| {
            let answers: Vec<_> =
                (0..6).map(|_| server.post("/v1/chat/completions", &chat(NEEDLE))).collect();
            answers
                .into_iter()
                .map(|a| (a.status, a.json()["choices"][0]["message"].clone()))
                .collect::<Vec<_>>()
        });
        for (method, path, body, status, part) in &cases {
            let answer = server.ask(method, path, Some(body));
            let body: String = body.chars().take(200).collect();
            assert_eq!(answer.status, *status, "{method} {path} {body}: {}", answer.body);
            let error = answer.json()["error"].clone();
            for key in ["message", "type", "param", "code"] {
                assert!(error.get(key).is_some(), "{body}: no `{key}` in {}", answer.body);
            }
            assert!(error.to_string().contains(part), "{body}: {error}");
            assert!(!answer.body.contains("panicked") && !answer.body.contains(".rs:"), "{}", answer.body);
        }
        let steady = steady.join().unwrap();
        assert!(steady.iter().all(|a| *a == steady[0] && a.0 == 200), "{steady:?}");
    });
}

#[test]
fn a_client_that_leaves_frees_its_place() {
    let server = Server::start(&["engine.max_seqs=1"]);
    let mut endless = chat("Tell me all of it.");
    endless["max_tokens"] = 4000.into();
    endless["stream"] = true.into();
    for _ in 0..3 {
        server.post_and_leave("/v1/chat/completions", &endless);
    }
    let start = Instant::now();
    assert_eq!(server.post("/v1/chat/completions", &chat(NEEDLE)).status, 200);
    assert!(start.elapsed() < Duration::from_secs(10), "the place was held for {:?}", start.elapsed());
}

#[test]
fn bad_configurations_name_file_line_and_nearest_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let serve = |path: &std::path::Path| run(hotseam().args(["serve", "-c"]).arg(path));
    let (code, _, err) = serve(&file("a.yaml", "model: { path: x }\nserver: { lisen: 127.0.0.1:0 }\n"));
    assert_eq!(code, 2, "{err}");
    for part in ["a.yaml:2:", "lisen", "listen"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    let (code, _, err) = serve(&file(
        "b.yaml",
        "model: { path: nowhere }\nserver: { listen: 127.0.0.1:0 }\nassignments: { live: [] }\n",
    ));
    assert!(code != 0 && err.contains("nowhere") && !err.contains("panicked"), "{err}");
    let (code, _, err) = run(hotseam().args(["serve", "-c", "/does/not/exist.yaml"]));
    assert!(code == 2 && err.contains("/does/not/exist.yaml"), "{err}");
    let (code, _, err) = run(hotseam().args(["swop"]));
    assert!(code == 2 && err.contains("swap"), "{err}");
}
