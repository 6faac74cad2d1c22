//! Swaps that meet something else: another swap, a step that runs, an observer, an idle engine, the end of the engine.

mod common;

use common::{
    add, ask, end, engine, failed, kept, serving, sizes, stock, swap, unchecked, under_load, wanted,
};
use hotseam_engine::observe::{Call, Observer};
use hotseam_engine::{Engine, EngineConfig, Event, Request, SwapError, Topology};
use hotseam_slots::{CallError, Change, Probation, SwapPolicy, SwapRequest, SwapStage};
use std::time::{Duration, Instant};

const CELL: &str = "attention.core@decode";
const CORE: &str = "attention.core@decode:layers=1";
const PANIC: &str = "faulty/attention{fault: panic}";

fn probation(steps: u32) -> SwapPolicy {
    SwapPolicy { probation: Probation { steps, ..unchecked().probation }, ..unchecked() }
}

fn back(policy: SwapPolicy) -> SwapRequest {
    SwapRequest { assignment: "live".into(), change: Change::Back, policy, who: "test".into() }
}

fn answer(engine: &Engine, request: &Request) -> Vec<u32> {
    let handle = engine.submit(request.clone()).expect("taken");
    handle.tokens().unwrap_or_else(|(code, text)| panic!("{code}: {text}"))
}

#[test]
fn a_commit_in_the_middle_of_a_turn_is_guarded_too() {
    // A turn has a long prefill step and then a decode step, and most commits fall into the former.
    let config = EngineConfig { chunk: 512, ..sizes() };
    let prompts = (0..2).map(|i| ask(i, 1900 + i, 2));
    let requests: Vec<Request> = prompts.chain((2..4).map(|i| ask(i, 40, 100))).collect();
    let want = wanted(config.clone(), &requests);
    let engine = engine(config);
    let nan = || add(CELL, "faulty/attention{fault: nan}", unchecked());
    under_load(&engine, &requests, &want, || {
        for _ in 0..6 {
            failed(&swap(&engine, nan()), 502);
        }
    });
}

#[test]
fn a_way_back_that_fails_is_taken_back_itself() {
    let engine = engine(sizes());
    let want = wanted(sizes(), &[ask(0, 40, 60)]);
    kept(&swap(&engine, add(CELL, PANIC, probation(0))));
    let mma = "attention/cpu-sm120-mma";
    kept(&swap(&engine, add(CELL, mma, probation(0))));
    let rules = engine.slots().rules("live");
    let forever = Probation { steps: u32::MAX, ms: 60_000, idle_ms: 60_000, ..Probation::default() };
    let id = engine.swaps().begin(back(SwapPolicy { probation: forever, ..unchecked() })).expect("begun");
    while serving(&engine, CORE) != PANIC {
        std::thread::yield_now();
    }
    answer(&engine, &ask(0, 40, 60));
    failed(&engine.swaps().wait(id).expect("known"), 501);
    assert_eq!((serving(&engine, CORE).as_str(), engine.slots().rules("live")), (mma, rules));
    assert_eq!(engine.swaps().take_back("live", "test"), None, "it has ended");

    // By hand too.
    kept(&swap(&engine, add(CELL, "attention/cpu-stock", probation(0))));
    assert_eq!(answer(&engine, &ask(0, 40, 60)), want[0]);
    let id = engine.swaps().begin(back(SwapPolicy { probation: forever, ..unchecked() })).expect("begun");
    while engine.swaps().take_back("live", "test") != Some(id) {
        std::thread::yield_now();
    }
    failed(&engine.swaps().wait(id).expect("known"), 0);
    assert_eq!(serving(&engine, CORE), "attention/cpu-stock");
}

#[test]
fn a_swap_does_not_build_on_a_table_that_was_given_up() {
    let engine = engine(sizes());
    let want = wanted(sizes(), &[ask(0, 40, 60)]);
    let events = engine.swaps().subscribe();
    kept(&swap(&engine, add(CELL, PANIC, probation(0))));
    // Planned on the faulty table, and still before its commit when that fails.
    let shadow = SwapPolicy { shadow_steps: 1 << 30, shadow_ms: 1_000, ..unchecked() };
    let id = engine.swaps().begin(add("moe@decode", "moe/cpu-fused-scale", shadow)).expect("begun");
    let planned = |stage: &SwapStage| matches!(stage, SwapStage::Planned { .. });
    assert!(events.iter().any(|event| event.id == id && planned(&event.stage)));
    assert_eq!(answer(&engine, &ask(0, 40, 60)), want[0]);
    let record = engine.swaps().wait(id).expect("known");
    let SwapStage::Refused { code: None, message } = end(&record) else { panic!("{record:?}") };
    assert!(message.contains("changed by someone else"), "{message}");
    assert_eq!(
        (serving(&engine, CORE).as_str(), engine.slots().rules("live")),
        ("attention/cpu-stock", Some(stock()))
    );
    assert_eq!(answer(&engine, &ask(0, 40, 60)), want[0]);
    // The swap that brought the fault in is the one that went back.
    let first = engine.swaps().record(1).expect("known");
    assert!(matches!(end(&first), SwapStage::RolledBack { code: 501, .. }), "{first:?}");
}

#[test]
fn an_idle_swap_is_kept_soon_and_its_first_steps_are_looked_at_later() {
    let engine = engine(sizes());
    let want = wanted(sizes(), &[ask(0, 40, 60)]);
    let events = engine.swaps().subscribe();
    let idle = Probation { steps: 8, ms: 60_000, idle_ms: 50, ..Probation::default() };
    let policy = SwapPolicy { probation: idle, ..unchecked() };
    for (fault, code) in [("nan", 502), ("error", 501)] {
        let begun = Instant::now();
        let record = swap(&engine, add(CELL, &format!("faulty/attention{{fault: {fault}}}"), policy));
        kept(&record);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert_eq!(answer(&engine, &ask(0, 40, 60)), want[0]);
        let gone_back =
            |stage: &SwapStage| matches!(stage, SwapStage::RolledBack { code: found, .. } if *found == code);
        assert!(events.iter().any(|event| event.id == record.id && gone_back(&event.stage)));
        assert_eq!(serving(&engine, CORE), "attention/cpu-stock");
    }

    // A request that runs keeps it on probation.
    let steps = SwapPolicy { probation: Probation { steps: 200, ..idle }, ..policy };
    let mma = add(CELL, "attention/cpu-sm120-mma", steps);
    let record = under_load(&engine, &[ask(0, 40, 60)], &[], || swap(&engine, mma));
    let SwapStage::Kept { steps, .. } = end(&record) else { panic!("{record:?}") };
    assert!(*steps >= 200, "{steps}");
}

/// Fails the request, or takes its time.
struct Odd {
    fails: bool,
}

impl Observer for Odd {
    fn call(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        if self.fails {
            return Err(call.error("that is enough"));
        }
        std::thread::sleep(Duration::from_millis(5));
        call.run()
    }
}

#[test]
fn what_an_observer_does_is_not_held_against_a_swap() {
    let engine = engine(sizes());
    // The time of a step of one row is known.
    answer(&engine, &ask(0, 40, 60));
    let forever = Probation { steps: u32::MAX, ms: 60_000, idle_ms: 60_000, ..Probation::default() };
    let policy = SwapPolicy { probation: forever, ..unchecked() };
    let events = engine.swaps().subscribe();
    let id = engine.swaps().begin(add("moe", "moe/cpu-fused-scale", policy)).expect("begun");
    assert!(events.iter().any(|event| matches!(event.stage, SwapStage::Committed { .. })));
    for fails in [true, false] {
        let handle = engine.observe(ask(0, 10, 12), Box::new(Odd { fails })).expect("taken");
        let last = std::iter::from_fn(|| handle.recv()).last().expect("an end");
        match last {
            Event::Failed { message, .. } => {
                assert!(fails && message.contains("that is enough"), "{message}")
            }
            other => assert!(!fails, "{other:?}"),
        }
    }
    assert_eq!(engine.swaps().running().map(|record| record.id), Some(id), "still on probation");
    assert_eq!(engine.swaps().take_back("live", "test"), Some(id));
    failed(&engine.swaps().wait(id).expect("known"), 0);
}

#[test]
fn nobody_waits_for_a_swap_of_an_engine_that_has_stopped() {
    for round in 0..8 {
        let engine = engine(sizes());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        match engine.swaps().begin(add("moe", "moe/cpu-fused-scale", probation(0))) {
                            Ok(id) => {
                                assert!(engine.swaps().wait(id).is_some_and(|record| record.end.is_some()))
                            }
                            Err(SwapError::Busy { .. }) => std::thread::yield_now(),
                            Err(SwapError::Stopped) => return,
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(round * 3));
            engine.shutdown();
        });
        assert_eq!(engine.swaps().running(), None);
    }
}

#[test]
fn an_engine_stops_in_any_stage_of_a_swap() {
    let forever = Probation { steps: u32::MAX, ms: 60_000, idle_ms: 60_000, ..Probation::default() };
    let on_probation = SwapPolicy { probation: forever, ..unchecked() };
    let in_shadow = SwapPolicy { shadow_steps: u32::MAX, shadow_ms: 60_000, ..unchecked() };
    for (policy, last) in [(on_probation, "kept"), (in_shadow, "refused")] {
        let engine = engine(sizes());
        let id = engine.swaps().begin(add("moe", "moe/cpu-fused-scale", policy)).expect("begun");
        while engine.swaps().record(id).is_some_and(|record| record.stage.is_none()) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        engine.shutdown();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let record = engine.swaps().record(id).expect("known");
        let stage = serde_json::to_value(end(&record)).expect("JSON")["stage"].clone();
        assert_eq!(stage, last, "{record:?}");
    }
}

#[test]
fn generations_retire_also_if_swaps_follow_at_once() {
    let engine = engine(sizes());
    let events = engine.swaps().subscribe();
    // A way back leaves the table that the swap before it brought in.
    for _ in 0..10 {
        kept(&swap(&engine, add(CELL, "attention/cpu-sm120-mma", probation(0))));
        kept(&swap(&engine, back(probation(0))));
    }
    let mut retired = 0;
    while retired < 20 {
        // Far below the time after which they count as stuck.
        let event = events.recv_timeout(Duration::from_secs(5)).expect("all retire");
        retired += usize::from(matches!(event.stage, SwapStage::Retired { .. }));
    }
}

#[test]
fn only_what_uses_the_change_ends_its_probation() {
    // Either change is used once for each prompt, and not by the decode steps that follow.
    for (select, variant) in
        [("moe@prefill", "moe/cpu-fused-scale"), ("kv_transport", "faulty/kv_transport{fault: next-layer}")]
    {
        let engine = engine(EngineConfig { topology: Topology::Paired, ..sizes() });
        let probation = Probation { steps: 3, ms: 60_000, idle_ms: 60_000, ..Probation::default() };
        let policy = SwapPolicy { probation, ..unchecked() };
        let id = engine.swaps().begin(add(select, variant, policy)).expect("begun");
        let committed = |stage: &SwapStage| matches!(stage, SwapStage::Committed { .. });
        let record = || engine.swaps().record(id).expect("known");
        while !record().stage.as_ref().is_some_and(committed) {
            assert!(record().end.is_none(), "{select}: {:?}", record());
            std::thread::sleep(Duration::from_millis(1));
        }
        for i in 0..3 {
            assert!(record().end.is_none(), "{select}: {:?}", record());
            answer(&engine, &ask(i, 40, 30));
        }
        let record = engine.swaps().wait(id).expect("known");
        assert!(matches!(end(&record), SwapStage::Kept { steps: 3, .. }), "{select}: {record:?}");
    }
}
