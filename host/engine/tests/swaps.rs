//! The life of a swap under load: what fails is taken back, no request fails, and tokens are those of an engine that was
//! never swapped.

mod common;

use common::{
    add, ask, end, engine, failed, kept, rule, serving, sizes, swap, unchecked, under_load, wanted,
};
use hotseam_engine::{EngineConfig, Request, SwapError};
use hotseam_slots::{Change, CheckDepth, Phase, Probation, SwapPolicy, SwapRequest, SwapStage};
use std::time::{Duration, Instant};

const CORE: &str = "attention.core@decode:layers=1";

fn requests() -> Vec<Request> {
    (0..4).map(|i| ask(i, 40 + 13 * i, 100)).collect()
}

#[test]
fn a_fault_in_a_step_goes_back_and_no_request_notices() {
    let want = wanted(sizes(), &requests());
    for (fault, code, words) in [
        ("panic", 501, &["attention.core@decode", "panic", "faulty/attention", "planted panic"][..]),
        ("error", 501, &["attention.core@decode", "planted error"]),
        ("nan", 502, &["not finite", "step "]),
    ] {
        let engine = engine(sizes());
        let events = engine.swaps().subscribe();
        let variant = format!("faulty/attention{{fault: {fault}}}");
        let record = under_load(&engine, &requests(), &want, || {
            swap(&engine, add("attention.core@decode", &variant, unchecked()))
        });
        let message = failed(&record, code);
        words.iter().for_each(|word| assert!(message.contains(word), "`{word}` is not in: {message}"));
        assert_eq!(serving(&engine, CORE), "attention/cpu-stock");
        let stages: Vec<SwapStage> = events.try_iter().map(|e| e.stage).collect();
        let committed = stages.iter().position(|s| matches!(s, SwapStage::Committed { .. }));
        let retried = stages.iter().position(|s| matches!(s, SwapStage::Retried { .. }));
        assert!(committed.is_some() && committed < retried, "{stages:?}");
        assert_eq!(engine.stats().free_pages, engine.stats().total_pages);
    }
}

#[test]
fn numbers_that_spoiled_the_kv_are_computed_again() {
    // Prompts of several chunks, of which the faulty variant writes some: NaN shows in the same step, but the KV of the
    // steps before it may hold some too.
    let requests: Vec<Request> = (0..3).map(|i| ask(i, 500 + i, 30)).collect();
    let want = wanted(sizes(), &requests);
    let engine = engine(sizes());
    let record = under_load(&engine, &requests, &want, || {
        swap(&engine, add("attention", "faulty/attention{fault: nan}", unchecked()))
    });
    failed(&record, 502);
}

#[test]
fn a_slow_variant_is_taken_back() {
    let engine = engine(sizes());
    let want = wanted(sizes(), &requests());
    let slow = |policy| add("attention.core@decode", "faulty/attention{fault: slow}", policy);
    let record = under_load(&engine, &requests(), &want, || swap(&engine, slow(unchecked())));
    let message = failed(&record, 502);
    for word in ["decode steps of ", "expected at most 10 times", "latency_factor"] {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    // Control: without a limit it is kept.
    let probation = Probation { steps: 8, latency_factor: None, ..unchecked().probation };
    let policy = SwapPolicy { probation, ..unchecked() };
    kept(&under_load(&engine, &requests()[..1], &want[..1], || swap(&engine, slow(policy))));
}

#[test]
fn a_fault_after_probation_goes_back_too() {
    let engine = engine(sizes());
    let policy = SwapPolicy { probation: Probation { steps: 0, ..Probation::default() }, ..unchecked() };
    kept(&swap(&engine, add("attention.core@decode", "faulty/attention{fault: panic}", policy)));
    assert_eq!(serving(&engine, CORE), "faulty/attention{fault: panic}");
    let events = engine.swaps().subscribe();
    let want = wanted(sizes(), &requests());
    under_load(&engine, &requests(), &want, || ());
    let back = |stage: &SwapStage| matches!(stage, SwapStage::RolledBack { code: 501, .. });
    let event = events.iter().find(|e| back(&e.stage)).expect("an event");
    assert_eq!((event.id, event.assignment.as_str()), (1, "live"));
    assert_eq!(serving(&engine, CORE), "attention/cpu-stock");
}

#[test]
fn conformance_stops_faults_and_its_verdicts_are_remembered() {
    let state = tempfile::tempdir().expect("a directory");
    let config = || {
        let mut config = sizes();
        config.swap.state_dir = Some(state.path().to_owned());
        config
    };
    let first = engine(config());
    let faulty = |fault: &str| format!("faulty/attention{{fault: {fault}}}");
    let quick = SwapPolicy { conformance: CheckDepth::Quick, ..unchecked() };
    for fault in ["panic", "nan", "half-scale"] {
        let message = failed(&swap(&first, add("attention", &faulty(fault), quick)), 304);
        assert!(message.contains("attention.core case") && !message.contains("remembered"), "{message}");
        let message = failed(&swap(&first, add("attention", &faulty(fault), quick)), 304);
        assert!(message.contains("(remembered)"), "{message}");
    }
    assert_eq!(serving(&first, CORE), "attention/cpu-stock");
    let events = first.swaps().subscribe();
    let no_probation = SwapPolicy { probation: Probation { steps: 0, ..Probation::default() }, ..quick };
    kept(&swap(&first, add("attention@decode", "attention/cpu-sm120-mma", no_probation)));
    let cached = |events: &[SwapStage]| {
        events.iter().find_map(|s| match s {
            SwapStage::Conformed { cached, cases, .. } => Some((*cached, *cases > 0)),
            _ => None,
        })
    };
    let stages: Vec<SwapStage> = events.try_iter().map(|e| e.stage).collect();
    assert_eq!(cached(&stages), Some((false, true)));
    drop(first);

    // Another process would find the files.
    let second = engine(config());
    let events = second.swaps().subscribe();
    kept(&swap(&second, add("attention@decode", "attention/cpu-sm120-mma", no_probation)));
    let stages: Vec<SwapStage> = events.try_iter().map(|e| e.stage).collect();
    assert_eq!(cached(&stages), Some((true, true)));
    let message = failed(&swap(&second, add("attention", &faulty("nan"), quick)), 304);
    assert!(message.contains("(remembered)"), "{message}");
}

#[test]
fn a_hang_in_preparation_is_refused_and_the_engine_serves() {
    let engine = engine(sizes());
    let policy = SwapPolicy { conformance: CheckDepth::Quick, prepare_ms: 700, ..unchecked() };
    let begun = Instant::now();
    let message = failed(&swap(&engine, add("attention", "faulty/attention{fault: hang}", policy)), 303);
    assert!(message.contains("did not end") && begun.elapsed() < Duration::from_secs(10), "{message}");
    under_load(&engine, &requests(), &wanted(sizes(), &requests()), || ());
}

#[test]
fn a_shadow_compares_on_live_inputs_and_refuses_what_differs() {
    let want = wanted(sizes(), &requests());
    let engine = engine(sizes());
    let policy = SwapPolicy { shadow_steps: 3, ..unchecked() };
    for (fault, words) in [
        ("half-scale", &["E-PLUG-304", "`out` differs by", "expected at most 0.1"][..]),
        ("nan", &["not finite"]),
        ("panic", &["planted panic"]),
        ("error", &["planted error"]),
        ("unwritten-tail", &["not finite"]),
        ("past-end", &["wrote outside `out`"]),
    ] {
        let variant = format!("faulty/attention{{fault: {fault}}}");
        let request = add("attention.core@decode", &variant, policy);
        let message = failed(&under_load(&engine, &requests(), &want, || swap(&engine, request)), 304);
        words.iter().for_each(|word| assert!(message.contains(word), "`{word}` is not in: {message}"));
    }
    assert_eq!(serving(&engine, CORE), "attention/cpu-stock");

    let events = engine.swaps().subscribe();
    let request = add("attention.core@decode", "faulty/attention{fault: split-scale}", policy);
    kept(&under_load(&engine, &requests(), &[], || swap(&engine, request)));
    let shadowed = events.try_iter().find_map(|e| match e.stage {
        SwapStage::Shadowed { steps, calls, worst, cell } => Some((steps, calls, worst, cell)),
        _ => None,
    });
    let (steps, calls, worst, cell) = shadowed.expect("it was shadowed");
    assert!(steps >= 3 && calls > 0 && worst < 0.05, "{steps} {calls} {worst}");
    assert!(cell.is_some_and(|c| c.phase == Some(Phase::Decode)));
}

#[test]
fn one_swap_at_a_time_and_none_for_what_is_active() {
    let engine = engine(sizes());
    let policy = SwapPolicy {
        probation: Probation { steps: 100_000, ms: 400, ..Probation::default() },
        ..unchecked()
    };
    let id = engine.swaps().begin(add("attention@decode", "attention/cpu-sm120-mma", policy)).expect("begun");
    let busy = engine.swaps().begin(add("moe", "moe/cpu-stock", policy)).expect_err("one at a time");
    assert_eq!((&busy, busy.code()), (&SwapError::Busy { running: id }, Some(401)));
    assert!(busy.to_string().starts_with("E-PLUG-401 swap 1 is running or on probation"), "{busy}");
    assert_eq!(engine.swaps().running().map(|r| r.id), Some(id));
    kept(&engine.swaps().wait(id).expect("known"));
    assert_eq!(engine.swaps().running(), None);
    let again = swap(&engine, add("attention@decode", "attention/cpu-sm120-mma", policy));
    assert_eq!(end(&again), &SwapStage::AlreadyActive);

    let back = SwapRequest {
        assignment: "live".into(),
        change: Change::Back,
        policy: unchecked(),
        who: "test".into(),
    };
    kept(&swap(&engine, back.clone()));
    assert_eq!(serving(&engine, CORE), "attention/cpu-stock");
    let record = swap(&engine, back);
    let SwapStage::Refused { code: None, message } = end(&record) else { panic!("{record:?}") };
    assert!(message.contains("no change to roll back"), "{message}");
    assert!(engine.swaps().wait(99).is_none());
    assert_eq!(engine.swaps().records().len(), 4);
}

#[test]
fn a_plan_says_what_would_change_and_changes_nothing() {
    let engine = engine(sizes());
    let before = engine.slots().snapshot("live").expect("there").digest();
    let change = Change::Add(vec![rule("indexer", "indexer/cpu-stock{keys: bf16}")]);
    let plan = engine.swaps().plan("live", &change).expect("a plan");
    let json = serde_json::to_value(&plan).expect("JSON");
    assert_eq!(json["changes"].as_array().map(Vec::len), Some(4), "{json}");
    assert_eq!(json["layouts"][0]["pool"], "index key");
    assert_eq!(json["layouts"][0]["layer"], 1);
    assert_eq!(json["newcomers"][0]["cells"], 4);
    assert_eq!(plan.rules_after.len(), plan.rules_before.len() + 1);
    assert_eq!(engine.slots().snapshot("live").expect("there").digest(), before);
    let error = engine.swaps().plan("live", &Change::Back).expect_err("nothing to take back");
    assert!(error.to_string().contains("no change to roll back"), "{error}");
}

#[test]
fn old_generations_retire_and_too_many_files_are_told() {
    let mut config = sizes();
    config.swap.mapped_limit = 5;
    let engine = engine(config);
    let events = engine.swaps().subscribe();
    let policy = SwapPolicy { probation: Probation { steps: 0, ..Probation::default() }, ..unchecked() };
    for i in 0..3 {
        let variant = ["attention/cpu-sm120-mma", "attention/cpu-stock"][i % 2];
        kept(&swap(&engine, add("attention@decode", variant, policy)));
    }
    let mut retired = 0;
    let mut over = Vec::new();
    while let Ok(event) = events.recv_timeout(Duration::from_secs(5)) {
        match event.stage {
            SwapStage::Retired { .. } => retired += 1,
            SwapStage::MappedOverLimit { mapped, limit } => over.push((mapped, limit)),
            _ => {}
        }
        if retired == 3 {
            break;
        }
    }
    assert_eq!(retired, 3);
    assert!(over.len() == 3 && over.iter().all(|o| *o == (6, 5)), "{over:?}");
    assert_eq!(SwapStage::MappedOverLimit { mapped: 6, limit: 5 }.code(), Some(504));
}

#[test]
fn many_swaps_between_equal_files_change_no_token() {
    let twins = tempfile::Builder::new().prefix("twins-").tempdir_in(common::plugins()).expect("a directory");
    let mut bytes =
        std::fs::read(common::plugins().join("libhotseam_attention_cpu_stock.so")).expect("built");
    bytes.extend_from_slice(b"another hash");
    let twin = twins.path().join("libhotseam_attention_cpu_stock.so");
    std::fs::write(&twin, bytes).expect("written");
    let config = EngineConfig { max_seqs: 4, ..sizes() };
    let want = wanted(config.clone(), &requests());
    let engine = engine(config);
    let policy = SwapPolicy {
        conformance: CheckDepth::Quick,
        probation: Probation { steps: 2, ms: 200, ..Probation::default() },
        ..SwapPolicy::default()
    };
    under_load(&engine, &requests(), &want, || {
        for i in 0..20 {
            let variant = if i % 2 == 0 { twin.display().to_string() } else { "attention/cpu-stock".into() };
            kept(&swap(&engine, add("attention", &variant, policy)));
        }
    });
    assert_eq!(engine.slots().rules("live").map(|r| r.len()), Some(common::stock().len() + 1));
}

#[test]
fn generations_that_stay_in_use_are_told() {
    let mut config = sizes();
    config.swap.patience = Duration::from_millis(50);
    let engine = engine(config);
    let policy = SwapPolicy { probation: Probation { steps: 0, ..Probation::default() }, ..unchecked() };
    let held = engine.slots().snapshot("live").expect("there");
    let events = engine.swaps().subscribe();
    // The first is kept for a rollback until the second.
    for variant in ["attention/cpu-sm120-mma", "attention/cpu-stock"] {
        kept(&swap(&engine, add("attention@decode", variant, policy)));
    }
    kept(&swap(&engine, add("attention@decode", "attention/cpu-sm120-mma", policy)));
    let stuck = |stage: &SwapStage| matches!(stage, SwapStage::RetireStuck { holders, .. } if *holders >= 1);
    let event = events.iter().find(|e| stuck(&e.stage)).expect("told");
    assert_eq!(event.stage.code(), Some(503));
    drop(held);
    let ended = events.iter().find(|e| matches!(e.stage, SwapStage::Retired { .. }) && e.id == 3);
    assert!(ended.is_some());
}
