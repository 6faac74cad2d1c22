//! Swaps that change the layout of the KV, prefixes across writers, and the crash marker.

mod common;

use common::{
    add, ask, end, engine, failed, kept, prompt, rule, serving, sizes, stock, swap, unchecked, under_load,
    wanted,
};
use hotseam_engine::{Engine, EngineConfig, Request, Topology};
use hotseam_slots::{KvPolicy, Probation, SwapMarker, SwapPolicy, SwapStage};
use std::time::Duration;

const BF16: &str = "indexer/cpu-stock{keys: bf16}";
const SELECT: &str = "indexer.select@decode:layers=1";

fn policy(kv: KvPolicy) -> SwapPolicy {
    SwapPolicy { kv, ..unchecked() }
}

fn requests() -> Vec<Request> {
    (0..3).map(|i| ask(i, 40 + 13 * i, 120 + 40 * i)).collect()
}

#[test]
fn refuse_keeps_the_old_layout() {
    let engine = engine(sizes());
    let want = wanted(sizes(), &requests());
    let refused = || swap(&engine, add("indexer", BF16, policy(KvPolicy::Refuse)));
    let message = failed(&under_load(&engine, &requests(), &want, refused), 402);
    for word in ["E-PLUG-402", "key-f32", "key-bf16", "drain", "recompute"] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert_eq!(serving(&engine, SELECT), "indexer/cpu-stock");
}

/// Entries in every layout of attention, in turn; one phase alone would read what the other did not write.
#[test]
fn attention_entries_change_their_layout_in_both_phases_at_once() {
    let engine = engine(sizes());
    for variant in ["attention/cpu-stock{kv: bf16}", "attention/cpu-stock{kv: fp8}", "attention/cpu-stock"] {
        let request = || add("attention", variant, policy(KvPolicy::Drain));
        kept(&under_load(&engine, &requests(), &[], || swap(&engine, request())));
        assert_eq!(serving(&engine, "attention.core@decode:layers=1"), variant);
    }
    let alone = add("attention@decode", "attention/cpu-stock{kv: fp8}", policy(KvPolicy::Drain));
    let record = swap(&engine, alone);
    let SwapStage::Refused { message, .. } = end(&record) else { panic!("{record:?}") };
    for word in ["share a pool", "kv-f32", "kv-fp8-ds-mla"] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn drain_lets_the_old_end_and_holds_the_new() {
    let engine = engine(sizes());
    let events = engine.swaps().subscribe();
    let record = under_load(&engine, &requests(), &[], || {
        swap(&engine, add("indexer", BF16, policy(KvPolicy::Drain)))
    });
    kept(&record);
    let stages: Vec<SwapStage> = events.try_iter().map(|e| e.stage).collect();
    let draining = stages.iter().position(|s| matches!(s, SwapStage::Draining { left } if *left > 0));
    let committed = stages.iter().position(|s| matches!(s, SwapStage::Committed { .. }));
    assert!(draining.is_some() && draining < committed, "{stages:?}");
    let SwapStage::Kept { recomputed, .. } = end(&record) else { panic!("{record:?}") };
    assert_eq!(*recomputed, 0, "nothing that ran had to start again");
    assert_eq!(serving(&engine, SELECT), BF16);
}

#[test]
fn a_drain_that_takes_too_long_is_refused() {
    let engine = engine(sizes());
    // Of different lengths, so that they do not end at one step: at such a moment there is nothing to drain.
    let requests: Vec<Request> = (0..4).map(|i| ask(i, 40, 500 + 70 * i)).collect();
    let want = wanted(sizes(), &requests);
    let short = add("indexer", BF16, SwapPolicy { drain_ms: 0, ..policy(KvPolicy::Drain) });
    let message = failed(&under_load(&engine, &requests, &want, || swap(&engine, short)), 403);
    for word in ["E-PLUG-403", " sequences of the old layout", "after 0 ms", "drain_ms"] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    // Requests are admitted again.
    assert_eq!(engine.submit(ask(1, 30, 4)).expect("taken").tokens().expect("answered").len(), 4);
    assert_eq!(serving(&engine, SELECT), "indexer/cpu-stock");
}

#[test]
fn recompute_goes_on_with_the_same_answers() {
    for topology in [Topology::Single, Topology::Paired] {
        let config = EngineConfig { topology, ..sizes() };
        let engine = engine(config.clone());
        // `index_topk` is 8 and entries are few, so that every entry is chosen: keys of another layout change nothing that a
        // client can see, and all tokens can be compared.
        let requests: Vec<Request> = (0..3).map(|i| ask(i, 12 + i, 18)).collect();
        let want = wanted(config, &requests);
        let (mut there, mut recomputed) = (false, 0);
        under_load(&engine, &requests, &want, || {
            for _ in 0..6 {
                there = !there;
                let variant = if there { BF16 } else { "indexer/cpu-stock" };
                let record = swap(&engine, add("indexer", variant, policy(KvPolicy::Recompute)));
                kept(&record);
                let SwapStage::Kept { recomputed: n, .. } = end(&record) else { continue };
                recomputed += n;
            }
        });
        assert!(recomputed > 0, "{topology}: nobody was in flight");
        let stats = engine.stats();
        assert_eq!((stats.free_pages, stats.waiting, stats.running), (stats.total_pages, 0, 0));
    }
}

#[test]
fn a_recomputed_request_hears_every_logit_once() {
    let engine = engine(sizes());
    let request = Request { tap_logits: true, ..ask(0, 10, 1800) };
    let handle = engine.submit(request).expect("taken");
    while engine.stats().generated_tokens < 20 {
        std::thread::yield_now();
    }
    kept(&swap(&engine, add("indexer", BF16, policy(KvPolicy::Recompute))));
    let mut positions = Vec::new();
    let mut tokens = 0;
    while let Some(event) = handle.recv() {
        match event {
            hotseam_engine::Event::Logits { position, .. } => positions.push(position as usize),
            hotseam_engine::Event::Token { .. } => tokens += 1,
            hotseam_engine::Event::Prompt { .. } => {}
            hotseam_engine::Event::Done { completion_tokens, .. } => assert_eq!(completion_tokens, 1800),
            hotseam_engine::Event::Failed { code, message } => panic!("{code}: {message}"),
        }
    }
    assert_eq!((positions, tokens), ((0..10 + 1800 - 1).collect(), 1800));
}

#[test]
fn a_fault_after_a_recompute_goes_back_to_the_old_layout() {
    let engine = engine(sizes());
    let requests: Vec<Request> = (0..3).map(|i| ask(i, 12 + i, 18)).collect();
    let want = wanted(sizes(), &requests);
    // Every id but the last is out of range, which the engine's bounds turn into an error of the core, or the guard into
    // one of the indexer.
    let guarded = EngineConfig { guard: true, ..sizes() };
    let watched = common::engine(guarded);
    let variant = "faulty/indexer{fault: out-of-range, keys: bf16}";
    let faulty = || swap(&watched, add("indexer", variant, policy(KvPolicy::Recompute)));
    let record = under_load(&watched, &requests, &want, faulty);
    let message = failed(&record, 501);
    assert!(message.contains("faulty/indexer"), "{message}");
    assert_eq!(serving(&watched, SELECT), "indexer/cpu-stock");
    drop(engine);
}

/// First chunk's writers of the last prefill, as `live` sees them.
fn writers(engine: &Engine) -> Vec<String> {
    let mut found: Vec<String> = engine.origins("live").into_iter().map(|o| o.writer_variant).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn prefixes_are_reused_across_writers_only_where_allowed() {
    for across in [false, true] {
        let engine = engine(EngineConfig { prefix_across_writers: across, ..sizes() });
        let request = Request { reuse_prefill: true, ..Request::greedy(prompt(0, 200), 4) };
        let run = || engine.submit(request.clone()).expect("taken").tokens().expect("answered");
        let first = run();
        let before = engine.stats().prompt_tokens;
        assert_eq!(run(), first);
        assert_eq!(engine.stats().prompt_tokens, before, "the same writers: reused");
        let quick = SwapPolicy { probation: Probation { steps: 0, ..Probation::default() }, ..unchecked() };
        kept(&swap(&engine, add("attention@prefill", "faulty/attention{fault: marks-entries}", quick)));
        run();
        let again = engine.stats().prompt_tokens - before;
        assert_eq!(again, if across { 0 } else { 200 }, "across {across}");
        let marks = "faulty/attention{fault: marks-entries}".to_owned();
        assert_eq!(writers(&engine).contains(&marks), !across, "{:?}", writers(&engine));
    }
}

#[test]
fn the_marker_is_there_while_a_swap_is_on_probation() {
    let state = tempfile::tempdir().expect("a directory");
    let mut config = sizes();
    config.swap.state_dir = Some(state.path().to_owned());
    config.swap.owner = "a:1".to_owned();
    let engine = engine(config);
    let file = SwapMarker::path(state.path(), "a:1");
    let probation = Probation { steps: 1 << 30, ms: 600, ..Probation::default() };
    let id = engine.swaps().begin(add(
        "moe@decode",
        "moe/cpu-fused-scale",
        SwapPolicy { probation, ..unchecked() },
    ));
    let id = id.expect("begun");
    while !file.exists() {
        assert!(engine.swaps().running().is_some(), "{:?}", engine.swaps().records());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(SwapMarker::find(state.path(), "a:1").expect("readable"), None, "this process has not died");
    let text = std::fs::read_to_string(&file).expect("readable");
    kept(&engine.swaps().wait(id).expect("known"));
    assert!(!file.exists(), "cleared after probation");

    // A process that had the number before has.
    let mut earlier: SwapMarker = serde_json::from_str(&text).expect("a marker");
    earlier.started -= 1;
    earlier.write(state.path()).expect("written");
    assert_eq!(SwapMarker::find(state.path(), "a:1").expect("readable"), Some(earlier));

    // As a process leaves it that dies: its number is nobody's.
    let dead = text.replacen(&format!("\"pid\": {}", std::process::id()), "\"pid\": 4194305", 1);
    std::fs::write(&file, dead).expect("written");
    let marker = SwapMarker::find(state.path(), "a:1").expect("readable").expect("a marker");
    assert_eq!((marker.rules_before.clone(), marker.assignment.as_str()), (stock(), "live"));
    assert_eq!(marker.rules_after, [stock(), vec![rule("moe@decode", "moe/cpu-fused-scale")]].concat());
    let notice = marker.notice();
    for word in ["pid 4194305", "swap 1", "`live`", "moe/cpu-fused-scale", "previous variants", "test"] {
        assert!(notice.contains(word), "`{word}` is not in: {notice}");
    }
    SwapMarker::clear(state.path(), "a:1").expect("removed");
    assert_eq!(SwapMarker::find(state.path(), "a:1").expect("readable"), None);
    std::fs::write(&file, "{").expect("written");
    SwapMarker::find(state.path(), "a:1").expect_err("not a marker");

    // Without a marker there is no commit.
    std::fs::remove_file(&file).expect("removed");
    std::fs::create_dir(file.with_extension("part")).expect("made");
    let record = swap(&engine, add("moe@prefill", "moe/cpu-fused-scale", unchecked()));
    let SwapStage::Refused { code: None, message } = end(&record) else { panic!("{record:?}") };
    assert!(message.contains("crash marker cannot be written"), "{message}");
}
