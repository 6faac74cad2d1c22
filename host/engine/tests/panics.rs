//! A panic in any call of any seam: the swap that brought it in goes back, no request notices, and nothing is lost.

mod common;

use common::{add, ask, end, engine, failed, kept, rule, sizes, stock, swap, unchecked, under_load, wanted};
use hotseam_engine::{Engine, EngineConfig, Request, Topology};
use hotseam_slots::{Change, Phase, Probation, Seam, SwapPolicy, SwapRequest, SwapStage};
use std::time::{Duration, Instant};

/// Some of short answers, so that there are many prefill steps and hand-offs.
fn requests() -> Vec<Request> {
    (0..4).map(|i| ask(i, 40 + 13 * i, if i % 2 == 0 { 60 } else { 6 })).collect()
}

fn paired() -> EngineConfig {
    EngineConfig { topology: Topology::Paired, ..sizes() }
}

/// Of a probation that ends with the fault, however long that takes to come.
fn until_it_fails() -> SwapPolicy {
    let policy = unchecked();
    SwapPolicy { probation: Probation { steps: 1 << 30, ..policy.probation }, ..policy }
}

/// Asserts that the swap was rolled back with 501, that `words` stand in its message, and that stock serves every cell.
fn assert_back(engine: &Engine, request: SwapRequest, words: &[&str]) {
    let record = swap(engine, request);
    let message = failed(&record, 501);
    assert!(matches!(end(&record), SwapStage::RolledBack { .. }), "{record:?}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    let snapshot = engine.slots().snapshot("live").expect("there");
    for cell in snapshot.cells() {
        assert!(!cell.generation.spec.name.starts_with("faulty/"), "{} after {message}", cell.cell);
    }
    assert_eq!(engine.slots().rules("live"), Some(stock()));
}

/// Waits until both stores are free again, asking for a token each time, since the engine counts in its turns.
fn assert_nothing_lost(engine: &Engine) {
    let start = Instant::now();
    loop {
        engine.submit(ask(9, 20, 1)).expect("taken").tokens().expect("answered");
        let stats = engine.stats();
        if (stats.free_pages, stats.waiting, stats.running) == (stats.total_pages, 0, 0) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{stats:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn in_any_op_of_a_step() {
    let engine = engine(sizes());
    let want = wanted(sizes(), &requests());
    let mut swaps = 0;
    under_load(&engine, &requests(), &want, || {
        for seam in Seam::ALL.iter().filter(|seam| **seam != Seam::KvTransport) {
            for (op, phase) in seam.ops().iter().flat_map(|op| Phase::ALL.iter().map(move |p| (op, p))) {
                let cell = format!("{seam}.{op}@{phase}");
                let variant = format!("faulty/{seam}{{fault: panic, call: {op}}}");
                let text = format!("failed with code 1 (panic): panicked: planted panic in {op}");
                let words = [&format!("E-PLUG-501 {cell}"), &format!("variant `faulty/{seam}{{"), &text];
                assert_back(&engine, add(&cell, &variant, until_it_fails()), &words.map(String::as_str));
                swaps += 1;
            }
        }
    });
    assert_eq!(swaps, 20, "two phases of ten ops");
    assert_nothing_lost(&engine);
}

#[test]
fn in_any_call_of_a_hand_off() {
    let engine = engine(paired());
    let want = wanted(paired(), &requests());
    under_load(&engine, &requests(), &want, || {
        for call in ["register", "put", "poll", "cancel"] {
            let words = match call {
                // Nobody cancels unless something failed before, and that is what is told.
                "cancel" => "failed with code 4 (internal): planted error of ticket ".to_owned(),
                call => format!("failed with code 1 (panic): panicked: planted panic in {call}"),
            };
            let variant = format!("faulty/kv_transport{{fault: panic, call: {call}}}");
            let words = ["E-PLUG-501 kv_transport: variant `faulty/kv_transport{", &words];
            assert_back(&engine, add("kv_transport", &variant, until_it_fails()), &words);
        }
    });
    // The instances that panicked could not confirm that they write no more: what they could write to comes back once
    // they have ended.
    assert_nothing_lost(&engine);
}

#[test]
fn a_hand_off_of_fewer_bytes_goes_back() {
    let engine = engine(paired());
    let want = wanted(paired(), &requests());
    let short = add("kv_transport", "faulty/kv_transport{fault: short-count}", until_it_fails());
    let words = ["E-PLUG-501 kv_transport", "the transport says that ", " bytes moved, expected "];
    under_load(&engine, &requests(), &want, || assert_back(&engine, short, &words));
    assert_nothing_lost(&engine);
}

#[test]
fn without_a_variant_to_go_back_to_a_hand_off_fails_its_own_request_only() {
    let engine = engine(paired());
    let want = wanted(paired(), &requests());
    for call in ["register", "put", "poll", "cancel"] {
        let variant = format!("faulty/kv_transport{{fault: panic, call: {call}}}");
        let rules = [stock(), vec![rule("kv_transport", &variant)]].concat();
        engine.slots().define("broken", rules).unwrap_or_else(|e| panic!("{e}"));
        let ask = || {
            let request = Request { assignment: "broken".into(), ..ask(0, 50, 8) };
            let (code, message) = engine.submit(request).expect("taken").tokens().expect_err("failed");
            assert_eq!(code, "E-PLUG-501", "{message}");
            assert!(message.starts_with("kv_transport: variant `faulty/kv_transport{"), "{message}");
            message
        };
        under_load(&engine, &requests(), &want, || {
            let words = if call == "cancel" { "planted error" } else { "planted panic" };
            assert!(ask().contains(words));
            assert!(ask().contains("not used again"), "one panic is enough");
        });
        assert!(engine.slots().remove("broken"));
    }
    assert_nothing_lost(&engine);
}

#[test]
fn in_the_calls_that_make_describe_and_end_an_instance() {
    let engine = engine(paired());
    let want = wanted(paired(), &requests());
    let events = engine.swaps().subscribe();
    let no_probation = Probation { steps: 0, ..Probation::default() };
    let policy = SwapPolicy { probation: no_probation, ..unchecked() };
    under_load(&engine, &requests(), &want, || {
        let mut backs = Vec::new();
        for seam in Seam::ALL {
            let with = |call| {
                let variant = format!("faulty/{seam}{{fault: panic, call: {call}}}");
                swap(&engine, add(seam.name(), &variant, policy))
            };
            for call in ["create", "info"] {
                let message = failed(&with(call), 303);
                let words = format!(
                    "E-PLUG-303 faulty/{seam}: {call} failed: panicked: planted panic in {call} (code 1). Check"
                );
                assert!(message.starts_with(&words), "`{words}` does not begin: {message}");
            }
            // It serves, and panics when it is swapped out.
            kept(&with("destroy"));
            let (assignment, who) = ("live".to_owned(), "test".to_owned());
            let back = swap(&engine, SwapRequest { assignment, change: Change::Back, policy, who });
            kept(&back);
            backs.push(back.id);
        }
        // Each has ended, while requests run, and the process with none of them.
        while !backs.is_empty() {
            let event = events.recv_timeout(Duration::from_secs(10));
            let event =
                event.unwrap_or_else(|_| panic!("the instances of the swaps {backs:?} have not ended"));
            if matches!(event.stage, SwapStage::Retired { .. }) {
                backs.retain(|back| *back != event.id);
            }
        }
    });
    assert_nothing_lost(&engine);
}
