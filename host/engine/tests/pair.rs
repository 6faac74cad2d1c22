//! Two engines and a network between them give what one gives: tokens, log-probabilities and logits, bit for bit.

mod common;
#[path = "../../../plugins/kv_transport/nixl/tests/library/mod.rs"]
mod nixl;
#[path = "common/pair.rs"]
mod pair;

use common::{ask, engine, sizes, stock};
use hotseam_engine::{Engine, EngineConfig, Event, Request, Role, Sampling, SubmitError, Topology};
use hotseam_model::Model;
use pair::{Heard, PairOf, hear, room, worker};
use std::sync::Arc;

/// Lengths at which groups, pages and windows begin and end.
const LENGTHS: [usize; 15] = [1, 4, 5, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025];

/// Requests of these lengths with ends of chunks at places of all kinds.
fn requests(lengths: &[usize]) -> Vec<Request> {
    let request = |(number, length): (usize, usize)| {
        let chunks = match number % 4 {
            0 => Vec::new(),
            1 => vec![3, 61, 64, 1],
            2 => vec![64, 64, 64, 63, 2],
            _ => vec![5, 7, 50, 33],
        };
        Request { chunks, tap_logits: true, ..ask(number, length, 9) }
    };
    lengths.iter().copied().enumerate().map(request).collect()
}

/// What one engine says to each, alone.
fn wanted(config: EngineConfig, requests: &[Request]) -> Vec<Heard> {
    let single = engine(config);
    requests.iter().map(|request| hear(&single.submit(request.clone()).unwrap()).unwrap()).collect()
}

/// Asks the pair, `at_once` requests at a time, and compares.
fn assert_equal(pair: &PairOf, requests: &[Request], want: &[Heard], at_once: usize) {
    for (requests, want) in requests.chunks(at_once).zip(want.chunks(at_once)) {
        let handles: Vec<_> = requests.iter().map(|request| pair.submit(request)).collect();
        for (((prefill, decode), want), request) in handles.iter().zip(want).zip(requests) {
            let length = request.prompt.len();
            let first = hear(prefill).unwrap_or_else(|(code, text)| panic!("{length}: {code} {text}"));
            let rest = hear(decode).unwrap_or_else(|(code, text)| panic!("{length}: {code} {text}"));
            assert_eq!(first.tokens, want.tokens[..1], "first token at {length}");
            assert_eq!(rest.tokens, want.tokens, "tokens at {length}");
            let logits: Vec<_> = first.logits.into_iter().chain(rest.logits).collect();
            assert!(logits == want.logits, "logits at {length}");
        }
    }
}

fn compare(transport: &str) {
    let requests = requests(&LENGTHS);
    let config = EngineConfig { max_seqs: 8, ..sizes() };
    let want = wanted(config, &requests);
    let pair = PairOf::new(transport, |config| {
        config.max_seqs = 8;
        config.pd.audit = true;
    });
    assert_equal(&pair, &requests, &want, 1);
    assert_equal(&pair, &requests, &want, 8);
    pair.assert_quiet();
    let map = pair.decode.kv_map().expect("audited");
    assert!(map.findings.is_empty() && map.rows.iter().all(|row| row.whole == row.expected), "{map:?}");
    let (name, _options) = transport.split_once('{').unwrap_or((transport, ""));
    assert!(map.transport.starts_with(name), "{map:?}");
}

/// `kv_transport/nixl` on the loopback, where its library is.
fn over_nixl() -> Option<String> {
    let library = nixl::path()?;
    Some(format!("kv_transport/nixl{{library: \"{library}\", ucx: \"NET_DEVICES=lo\"}}"))
}

#[test]
fn over_tcp_the_pair_says_what_one_engine_says() {
    compare("kv_transport/tcp");
}

#[test]
fn over_shared_memory_the_pair_says_what_one_engine_says() {
    compare("kv_transport/shm");
}

#[test]
fn over_nixl_the_pair_says_what_one_engine_says() {
    if let Some(transport) = over_nixl() {
        compare(&transport);
    }
}

/// The trained model, whose heads and layers are those of V4, at lengths of several pages.
#[test]
fn the_trained_model_says_what_one_engine_says() {
    let full = std::env::var("HOTSEAM_TEST_FULL").is_ok_and(|v| v == "1");
    let lengths: &[usize] = if full { &[257, 1025, 2049, 4094, 4095, 4096, 4096, 4096] } else { &[257, 600] };
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/nano-v4");
    let (config, weights) = hotseam_checkpoint::load(&path, |_, _| {}).expect("a checkpoint");
    let model = Arc::new(Model::new(config, weights, 4608));
    let change = |config: &mut EngineConfig| {
        (config.max_context, config.max_seqs, config.chunk) = (4608, 8, 256);
    };
    let requests: Vec<Request> = requests(lengths)
        .into_iter()
        .map(|request| Request { chunks: vec![200, 256, 1], ..request })
        .collect();
    let of = |role, transport: &str| pair::worker_of(Arc::clone(&model), role, pair::over(transport), change);
    let ask_all = |engine: Engine| -> Vec<Heard> {
        requests.iter().map(|request| hear(&engine.submit(request.clone()).unwrap()).unwrap()).collect()
    };
    let alone = |config: &mut EngineConfig| {
        change(config);
        config.topology = Topology::Single;
    };
    let want = ask_all(pair::worker_of(Arc::clone(&model), Role::Single, stock(), alone));
    assert!(ask_all(of(Role::Single, "kv_transport/local")) == want, "two stores of one engine");
    let transports = ["kv_transport/tcp", "kv_transport/shm"].map(str::to_owned);
    for transport in transports.into_iter().chain(over_nixl()) {
        let pair = PairOf::of(of(Role::Prefill, &transport), of(Role::Decode, &transport));
        for at_once in [1, 8] {
            assert_equal(&pair, &requests, &want, at_once);
        }
        pair.assert_quiet();
    }
}

/// Every transport also serves two stores of one engine.
#[test]
fn in_one_process_every_transport_says_what_one_engine_says() {
    let requests = requests(&LENGTHS);
    let want = wanted(sizes(), &requests);
    let transports = ["kv_transport/local", "kv_transport/tcp", "kv_transport/shm"].map(str::to_owned);
    for transport in transports.into_iter().chain(over_nixl()) {
        let paired = worker(Role::Single, &transport, |config| config.pd.audit = true);
        for (request, want) in requests.iter().zip(&want) {
            let heard = hear(&paired.submit(request.clone()).unwrap());
            assert!(heard.as_ref() == Ok(want), "{transport} at {}", request.prompt.len());
        }
        let map = paired.kv_map().expect("audited");
        assert!(map.findings.is_empty() && !map.rows.is_empty(), "{map:?}");
    }
}

/// A sampled answer, log-probabilities and a first token that ends the answer are those of one engine.
#[test]
fn sampled_answers_and_stop_tokens_are_those_of_one_engine() {
    let sampling = Sampling { temperature: 0.9, top_p: 0.95, seed: 17 };
    let sampled = Request { sampling, logprobs: 3, ..ask(3, 77, 24) };
    let single = engine(sizes());
    let want = hear(&single.submit(sampled.clone()).unwrap()).unwrap();
    let pair = PairOf::new("kv_transport/tcp", |_| {});
    let (_prefill, decode) = pair.submit(&sampled);
    assert_eq!(hear(&decode), Ok(want));

    let first = hear(&single.submit(ask(4, 50, 1)).unwrap()).unwrap().tokens[0].0;
    let stopped = Request { stop_tokens: vec![first], ..ask(4, 50, 5) };
    let (_prefill, decode) = pair.submit(&stopped);
    assert_eq!(hear(&decode).unwrap().tokens, []);
    pair.assert_quiet();
}

/// What vllm's routers do: prefill answers first, and decode comes for the KV later.
#[test]
fn a_held_prompt_is_fetched_later() {
    let request = ask(5, 300, 9);
    let want = hear(&engine(sizes()).submit(request.clone()).unwrap()).unwrap();
    let pair = PairOf::new("kv_transport/tcp", |_| {});
    let mut placed = pair.placed(&request, room());
    placed.disaggregation.as_mut().unwrap().hold = true;
    let prefill = pair.prefill.submit(placed.clone()).unwrap();
    assert_eq!(hear(&prefill).unwrap().tokens, want.tokens[..1]);
    drop(prefill);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(pair.prefill.stats().rooms, 1);
    placed.disaggregation.as_mut().unwrap().hold = false;
    let decode = pair.decode.submit(placed).unwrap();
    assert_eq!(hear(&decode), Ok(want));
    pair.assert_quiet();
}

#[test]
fn a_role_refuses_requests_of_another() {
    let pair = PairOf::new("kv_transport/tcp", |config| config.pd.hosts = vec!["10.0.0.1".into()]);
    let plain = ask(1, 5, 2);
    for engine in [&pair.prefill, &pair.decode] {
        let error = engine.submit(plain.clone()).unwrap_err();
        assert!(matches!(error, SubmitError::Role { .. }), "{error}");
        assert!(error.to_string().contains("bootstrap_room"), "{error}");
    }
    let placed = pair.placed(&plain, room());
    let error = engine(sizes()).submit(placed.clone()).unwrap_err();
    assert!(error.to_string().contains("this worker's role is single"), "{error}");
    let error = pair.decode.submit(placed.clone()).unwrap_err();
    assert!(error.to_string().contains("`127.0.0.1`, which is not among disaggregation.hosts"), "{error}");
    let mut held = placed;
    held.disaggregation.as_mut().unwrap().host = "10.0.0.1".into();
    held.disaggregation.as_mut().unwrap().hold = true;
    assert!(pair.decode.submit(held).is_err());
    let sizes = EngineConfig { role: Role::Decode, topology: Topology::Single, ..sizes() };
    let error = sizes.validate(&common::model().config).unwrap_err();
    assert!(error.to_string().contains("engine.topology is single, expected paired"), "{error}");
}

/// Pages go while later chunks are still computed.
#[test]
fn pages_are_sent_while_the_prompt_is_computed() {
    let pair = PairOf::new("kv_transport/tcp", |_| {});
    let request = ask(6, 1500, 2);
    let (prefill, decode) = pair.submit(&request);
    let puts = || {
        let table = pair.prefill.slots().snapshot("live").unwrap();
        table.transport().unwrap().put.view().calls
    };
    let mut early = 0;
    while !matches!(prefill.events().try_recv(), Ok(Event::Token { .. })) {
        if pair.prefill.stats().prompt_tokens < 1400 {
            early = puts();
        }
        std::thread::yield_now();
    }
    assert!(early > 0, "nothing was sent before the prompt was computed");
    assert_eq!(hear(&decode).unwrap().tokens.len(), 2);
}
