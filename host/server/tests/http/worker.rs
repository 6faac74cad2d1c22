//! What routers ask of a worker, over a scripted engine.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Script, Site, start};
use hotseam_engine::Role;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn script(role: Role) -> Script {
    Script { text: "one two three", role, ..Script::default() }
}

async fn json(site: &Site, path: &str) -> Value {
    let answer = site.get(path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

#[tokio::test]
async fn probes_of_every_router() {
    for (role, mode) in [(Role::Single, "null"), (Role::Prefill, "prefill"), (Role::Decode, "decode")] {
        let site = start(script(role), true).await;
        assert_eq!(json(&site, "/health_generate").await["status"], "ok");
        for path in ["/server_info", "/get_server_info", "/model_info", "/get_model_info"] {
            let info = json(&site, path).await;
            assert_eq!(
                (&info["served_model_name"], &info["disaggregation_mode"]),
                (&json!("nano-v4"), &json!(mode))
            );
        }
        let info = json(&site, "/server_info").await;
        assert_eq!((&info["max_total_tokens"], &info["max_running_requests"]), (&json!(4096), &json!(8)));
        assert_eq!(
            (&info["tp_size"], &info["dp_size"], &info["page_size"]),
            (&json!(1), &json!(1), &json!(256))
        );
        assert_eq!(info["internal_states"][0]["num_rooms"], 3);
        assert_eq!(json(&site, "/model_info").await["architectures"], json!(["DeepseekV4ForCausalLM"]));
        assert_eq!(
            json(&site, "/get_load").await,
            json!([{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 512}])
        );
        let loads = json(&site, "/v1/loads?include=core,disagg,queues,memory").await;
        let rank = &loads["loads"][0];
        assert_eq!((&rank["num_running_reqs"], &rank["token_usage"]), (&json!(2), &json!(0.125)));
        assert_eq!(rank.get("disagg_mode").is_some(), role != Role::Single);
        // A worker that has it is taken for vLLM.
        assert_eq!(site.get("/version").await.status, 404);
        assert_eq!(site.post("/server_info", &json!({})).await.status, 405);
    }
}

#[tokio::test]
async fn a_dead_engine_is_not_well() {
    let site = start(Script { fail_after: Some(0), ..script(Role::Single) }, true).await;
    let answer = site.get("/health_generate").await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "unhealthy"));
}

#[tokio::test]
async fn caches_are_flushed() {
    let site = start(script(Role::Single), true).await;
    // Routers send no body.
    let bare = "POST /flush_cache HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(site.raw(bare).await.status, 200);
    assert_eq!(site.get("/flush_cache").await.status, 200);
    assert_eq!(site.script.flushed.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn requests_are_aborted_by_name() {
    let text = "one two three four five six seven";
    let slow = Script { pause: Duration::from_millis(40), text, ..script(Role::Single) };
    let site = start(slow, true).await;
    let params = json!({"n": 2, "max_new_tokens": 64});
    let body = json!({"text": "x", "rid": "r", "sampling_params": params, "stream": true});
    let abort = |rid: &'static str, after: u64| {
        let site = &site;
        async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            site.post("/abort_request", &json!({ "rid": rid })).await.json()["aborted"].clone()
        }
    };
    let (answer, one, other) =
        tokio::join!(site.post("/generate", &body), abort("r_1", 80), abort("somebody", 90));
    assert_eq!((one, other), (json!(1), json!(0)));
    let last = |index: usize| {
        let mut own = answer.events().into_iter().filter(|event| event["index"] == index);
        own.next_back().expect("events")["meta_info"]["finish_reason"]["type"].clone()
    };
    assert_eq!((last(0), last(1)), (json!("stop"), json!("abort")));
    site.cancelled(1).await;
    let chat =
        json!({"model": "nano-v4", "messages": [{"role": "user", "content": "Hi"}], "rid": "c", "n": 2});
    let (answer, both) = tokio::join!(site.post(CHAT, &chat), abort("c", 80));
    assert_eq!((both, answer.json()["id"].as_str()), (json!(2), Some("c")));
    assert_eq!(answer.json()["choices"][1]["finish_reason"], "abort");
    site.cancelled(3).await;
    let all = async {
        tokio::time::sleep(Duration::from_millis(80)).await;
        site.post("/abort_request", &json!({"abort_all": true})).await.json()["aborted"].clone()
    };
    let (answer, ended) = tokio::join!(site.post(CHAT, &chat), all);
    assert_eq!((answer.status, ended), (200, json!(2)));
    let nobody = site.post("/abort_request", &json!({"rid": ""})).await;
    assert_eq!((nobody.status, nobody.code().as_str()), (400, "missing_required_parameter"));
}

/// Bodies of the three generating endpoints with `extra` on top.
fn bodies(extra: Value) -> [(&'static str, Value); 3] {
    let chat = json!({"model": "nano-v4", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
    let text = json!({"model": "nano-v4", "prompt": "Hi", "max_tokens": 1});
    let native = json!({"text": "Hi", "sampling_params": {"max_new_tokens": 1}});
    [(CHAT, chat), ("/v1/completions", text), ("/generate", native)].map(|(path, mut body)| {
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        (path, body)
    })
}

#[tokio::test]
async fn bootstrap_fields_reach_the_engine_and_a_single_worker_refuses_them() {
    let fields = json!({"bootstrap_host": "p1", "bootstrap_port": 8998, "bootstrap_room": 9_223_372_036_854_775_807_u64});
    let single = start(script(Role::Single), true).await;
    let decode = start(script(Role::Decode), true).await;
    for (path, body) in bodies(fields) {
        let refused = single.post(path, &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "wrong_role"));
        assert_eq!(refused.json()["error"]["param"], "bootstrap_room");
        assert_eq!(decode.post(path, &body).await.status, 200);
        let request = decode.script.seen.lock().expect("unpoisoned").pop().expect("a request");
        let place = request.disaggregation.expect("a meeting");
        assert_eq!((place.host.as_str(), place.port, place.room), ("p1", 8998, (1 << 63) - 1));
        assert!(!place.hold);
    }
    assert!(single.script.seen.lock().expect("unpoisoned").is_empty());
}

#[tokio::test]
async fn vllm_gets_the_parameters_for_decode_from_prefill() {
    let ask = json!({"kv_transfer_params": {
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null, "remote_block_ids": null,
        "remote_host": null, "remote_port": null
    }, "min_tokens": 1});
    let prefill = start(script(Role::Prefill), true).await;
    let decode = start(script(Role::Decode), true).await;
    for (path, body) in bodies(ask) {
        let raw = crate::support::post(path, &body).replace("host: x", "host: p1:8001");
        let answer = prefill.raw(&raw).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let params = answer.json()["kv_transfer_params"].clone();
        assert_eq!((&params["remote_host"], &params["remote_port"]), (&json!("p1"), &json!(8001)));
        let held = prefill.script.seen.lock().expect("unpoisoned").pop().and_then(|r| r.disaggregation);
        let held = held.expect("a meeting");
        assert_eq!((held.hold, json!([held.room])), (true, params["remote_block_ids"].clone()));
        let mut body = body;
        body["kv_transfer_params"] = params;
        assert_eq!(decode.post(path, &body).await.status, 200);
        let got = decode.script.seen.lock().expect("unpoisoned").pop().and_then(|r| r.disaggregation);
        assert_eq!(got, Some(hotseam_engine::Bootstrap { hold: false, ..held }));
        let refused = prefill.post(path, &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "wrong_role"));
    }
}
