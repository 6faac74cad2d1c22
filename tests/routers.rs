//! Twenty requests through each router that people use, answered as a worker alone answers them.

use hotseam_tests::answers::{Case, Said, chat, completion, generate, with};
use hotseam_tests::http::{Answer, Reply, Server};
use hotseam_tests::pairs::worker;
use hotseam_tests::routers::{Behind, Kind, Router};
use serde_json::json;
use std::time::{Duration, Instant};

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

/// What an answer says.
fn said(case: &Case, answer: Answer, of: &str) -> Vec<Said> {
    let reply = Reply::from(answer);
    case.said(&reply)
        .unwrap_or_else(|why| panic!("{of}: {why:?}: {} {}: {}", case.path, case.body, reply.body))
}

/// Sends all cases through `router`; `direct` says what each has to be answered.
fn pass(kind: Kind, router: &Router, direct: &[Vec<Said>]) {
    for (case, want) in cases().iter().zip(direct) {
        let got = said(case, router.post(case.path, &case.body), &format!("{kind:?}"));
        // vLLM's router drops `n` of `sampling_params`, so that one choice comes.
        let dropped =
            kind == Kind::Vllm && case.path == "/generate" && case.body["sampling_params"]["n"] == 2;
        let want = if dropped { &want[..1] } else { want };
        assert_eq!(got, want, "{kind:?}: {} {}", case.path, case.body);
    }
}

fn direct(server: &Server) -> Vec<Vec<Said>> {
    let answers: Vec<_> =
        cases().iter().map(|case| said(case, server.post(case.path, &case.body), "a worker")).collect();
    assert_eq!(answers.len(), 20);
    assert!(answers[0][0].text.contains("tiger"), "{:?}", answers[0]);
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

/// Sends all cases through these routers to a pair over a transport.
fn in_front_of_a_pair(kinds: &[Kind], transport: &str) {
    if kinds.is_empty() {
        return;
    }
    let want = direct(&Server::start(&[]));
    let (prefill, decode) = (worker("prefill", transport, &[]), worker("decode", transport, &[]));
    for kind in kinds {
        let router = Router::start(*kind, Behind::Pairs(&[&prefill.address], &[&decode.address]));
        pass(*kind, &router, &want);
        for worker in [&prefill, &decode] {
            assert_empty(worker);
        }
    }
    let generated = |worker: &Server| {
        worker.ask("GET", "/server_info", None).json()["internal_states"][0]["generation_tokens_total"]
            .as_u64()
    };
    let least = 100 * kinds.len() as u64;
    assert!(generated(&decode) > Some(least), "decode generated {:?}", generated(&decode));
}

#[test]
fn routers_in_front_of_a_pair() {
    in_front_of_a_pair(&installed(), "kv_transport/tcp");
}

/// The transport is nothing that a router knows of, so that one of them is enough.
#[test]
fn a_router_in_front_of_a_pair_over_shared_memory() {
    let kinds: Vec<Kind> = installed().into_iter().filter(|kind| *kind == Kind::Smg).collect();
    in_front_of_a_pair(&kinds, "kv_transport/shm");
}
