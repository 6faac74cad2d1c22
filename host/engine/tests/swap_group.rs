//! Both ends of a pair form a swap group: what they must have alike changes on both or on neither, and no request fails for it.

mod common;
#[path = "common/group.rs"]
mod group;
#[path = "common/pair.rs"]
mod pair;

use common::{add, ask, end, kept, rule, serving, swap, unchecked};
use group::{
    CELL, Fake, GROUP, SHM, TCP, connected, grouped, last, meet, pair, quick, refusal, requests, under_load,
    wait_for,
};
use hotseam_engine::{Engine, Request, Role};
use hotseam_pd::{GroupMessage, Order};
use hotseam_slots::{Change, KvPolicy, MemberStep, Probation, SwapPolicy, SwapRequest, SwapStage};
use pair::{PairOf, hear, over, worker, worker_with};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn a_transport_swap_commits_on_both_whichever_is_asked() {
    let pair = pair();
    let ((), served) = under_load(&pair, &requests(), || {
        for round in 0..6 {
            let (asked, other) = match round % 2 {
                0 => (&pair.decode, &pair.prefill),
                _ => (&pair.prefill, &pair.decode),
            };
            let transport = if round % 2 == 0 { SHM } else { TCP };
            let events = asked.swaps().subscribe();
            kept(&swap(asked, add(CELL, transport, quick())));
            kept(&last(other));
            for engine in [asked, other] {
                assert_eq!(serving(engine, CELL), transport);
            }
            let steps: Vec<MemberStep> = events
                .try_iter()
                .filter_map(|event| match event.stage {
                    SwapStage::Member { reached, .. } => Some(reached),
                    _ => None,
                })
                .collect();
            use MemberStep::{Asked, Committed, Kept, Prepared, Well};
            assert_eq!(steps, [Asked, Prepared, Committed, Well, Kept], "round {round}");
        }
    });
    assert!(served > 6, "{served} requests");
    let who = last(&pair.prefill).who;
    assert!(who.starts_with("test") || who.contains("swap group `pair`"), "{who}");
    let view = pair.prefill.swaps().group().unwrap();
    assert!(view.name == GROUP && view.members.iter().all(|member| member.differs.is_empty()), "{view:?}");
}

#[test]
fn swaps_of_what_need_not_be_alike_are_a_worker_s_own() {
    let pair = pair();
    kept(&swap(&pair.decode, add("moe@decode", "moe/cpu-fused-scale", quick())).clone());
    assert!(pair.prefill.swaps().records().is_empty());
}

#[test]
fn what_one_worker_refuses_none_commits() {
    // Its plugin directory has no shm.
    let prefill = worker(Role::Prefill, TCP, grouped);
    let own = tempfile::tempdir().expect("a directory");
    let file = "libhotseam_kv_transport_shm.so";
    for entry in std::fs::read_dir(common::plugins()).expect("plugins").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("libhotseam_") && name.ends_with(".so") && name != file {
            std::fs::hard_link(entry.path(), own.path().join(&name))
                .or_else(|_| std::fs::copy(entry.path(), own.path().join(&name)).map(drop))
                .expect("a plugin");
        }
    }
    let loader = hotseam_loader::Loader::new(vec![own.path().to_owned()]).expect("a loader");
    let mut config = hotseam_engine::EngineConfig {
        role: Role::Decode,
        topology: hotseam_engine::Topology::Paired,
        ..common::sizes()
    };
    grouped(&mut config);
    let decode = common::engine_with(config, loader, over(TCP));
    let pair = PairOf::of(prefill, decode);
    meet(&pair);
    let (message, _) = under_load(&pair, &requests()[..3], || {
        let record = swap(&pair.prefill, add(CELL, SHM, quick()));
        refusal(&record)
    });
    assert!(message.contains("of swap group `pair`: E-PLUG-100"), "{message}");
    assert!(refusal(&last(&pair.decode)).contains("E-PLUG-100"));
    // Asked the other way round it is refused before the group hears of it.
    assert!(refusal(&swap(&pair.decode, add(CELL, SHM, quick()))).contains("E-PLUG-100"));
    for engine in [&pair.prefill, &pair.decode] {
        assert_eq!(serving(engine, CELL), TCP);
    }
}

#[test]
fn a_worker_that_would_end_on_something_else_refuses() {
    let pair = pair();
    // This one is prefill's own, since the other end is told not to be waited for.
    let alone = SwapPolicy { without_absent: true, ..quick() };
    kept(&swap(&pair.prefill, add(CELL, SHM, alone)));
    assert_eq!(serving(&pair.decode, CELL), SHM, "it is connected, so it went along");
    let all = SwapRequest { change: Change::Replace(over(TCP)), ..add(CELL, TCP, quick()) };
    assert!(refusal(&swap(&pair.prefill, all)).contains("hotseam swap SELECTOR VARIANT"));
}

#[test]
fn nobody_swaps_alone_by_mistake() {
    let pair = PairOf::new(TCP, grouped);
    let message = refusal(&swap(&pair.prefill, add(CELL, SHM, quick())));
    assert!(message.contains("E-PLUG-405 no worker of swap group `pair` is connected yet"), "{message}");
    meet(&pair);
    let PairOf { prefill, decode, api: _api } = pair;
    decode.shutdown();
    drop(decode);
    wait_for("decode has left", || connected(&prefill) == 0);
    // It has said that it leaves, so nobody is missed.
    assert!(prefill.swaps().group().unwrap().members.is_empty());
}

#[test]
fn a_decode_worker_connects_to_those_that_it_is_told() {
    let prefill = worker(Role::Prefill, TCP, grouped);
    let api = pair::Api::of(Arc::clone(prefill.registry().unwrap()));
    let place = (api.address.ip().to_string(), api.address.port());
    let decode = worker(Role::Decode, TCP, |config| {
        grouped(config);
        config.pd.prefill_workers = vec![place.clone()];
    });
    wait_for("they are connected", || connected(&prefill) == 1 && connected(&decode) == 1);
    kept(&swap(&prefill, add(CELL, SHM, quick())));
    assert_eq!(serving(&decode, CELL), SHM);
    drop(api);
    prefill.shutdown();
}

#[test]
fn a_member_that_dies_before_all_have_kept_takes_all_back() {
    let prefill = worker(Role::Prefill, TCP, grouped);
    let api = pair::Api::of(Arc::clone(prefill.registry().unwrap()));
    let deaths: [&[Order]; 4] = [
        &[],
        &[Order::Prepare],
        &[Order::Prepare, Order::Commit],
        &[Order::Prepare, Order::Commit, Order::Open],
    ];
    for before in deaths {
        let mut fake = Fake::decode("fake", &api, &prefill);
        let id = prefill.swaps().begin(add(CELL, SHM, quick())).expect("begun");
        let asked = before.iter().fold(None, |_, order| Some(fake.obey(*order)));
        if let (Some((peer, swap)), Some(Order::Open)) = (asked, before.last()) {
            // Nobody asks for the end of a member's probation.
            fake.group.send(peer, GroupMessage::Done { swap, order: Order::Well, members: Vec::new() });
        }
        // Without a word: its connection breaks as that of a process that was killed.
        let (peer, _) = fake.next();
        fake.group.send(peer, GroupMessage::State(Vec::new()));
        drop(std::mem::take(&mut fake.side));
        let record = prefill.swaps().wait(id).expect("a record");
        let message = match (end(&record), before.len()) {
            (SwapStage::Refused { message, .. }, 0 | 1) => message,
            (SwapStage::RolledBack { message, .. }, _) => message,
            other => panic!("{other:?} after {before:?}"),
        };
        assert!(message.contains("E-PLUG-405 worker fake"), "{message}");
        assert_eq!(serving(&prefill, CELL), TCP, "after {before:?}");
        wait_for("it is gone", || connected(&prefill) == 0);
    }
}

#[test]
fn a_member_that_does_not_answer_in_time_takes_all_back() {
    let prefill = worker(Role::Prefill, TCP, grouped);
    let api = pair::Api::of(Arc::clone(prefill.registry().unwrap()));
    let fake = Fake::decode("fake", &api, &prefill);
    let begun = Instant::now();
    let policy = SwapPolicy { prepare_ms: 3_000, ..quick() };
    let id = prefill.swaps().begin(add(CELL, SHM, policy)).expect("begun");
    let (_, message) = fake.next();
    assert!(matches!(message, GroupMessage::Prepare(_)), "{message:?}");
    let record = prefill.swaps().wait(id).expect("a record");
    assert!(begun.elapsed() < Duration::from_secs(60));
    let message = refusal(&record);
    assert!(message.contains("E-PLUG-405 no answer within 18 s from "), "{message}");
    assert_eq!(serving(&prefill, CELL), TCP);
}

/// Numbers that are not finite on the prefill worker: decode goes back with it, and no request notices.
#[test]
fn probation_takes_both_back() {
    let pair = pair();
    let long = Probation { steps: 1 << 20, ms: 60_000, ..Probation::default() };
    let policy = SwapPolicy { probation: long, ..unchecked() };
    let (records, _) = under_load(&pair, &requests(), || {
        let first = swap(&pair.decode, add("attention@prefill", "faulty/attention{fault: nan}", policy));
        let second = last(&pair.prefill);
        // A person takes it back on the worker that was not asked.
        let id = pair.decode.swaps().begin(add(CELL, SHM, policy)).expect("begun");
        wait_for("prefill has committed", || serving(&pair.prefill, CELL) == SHM);
        wait_for("it can be taken back", || pair.prefill.swaps().take_back("live", "somebody").is_some());
        let third = pair.decode.swaps().wait(id).expect("a record");
        [first, second, third, last(&pair.prefill)]
    });
    for (record, text) in records.iter().zip(["E-PLUG-502", "E-PLUG-502", "somebody", "somebody"]) {
        let SwapStage::RolledBack { message, .. } = end(record) else { panic!("{:?}", end(record)) };
        assert!(message.contains(text), "{message}");
    }
    for engine in [&pair.prefill, &pair.decode] {
        assert_eq!(serving(engine, CELL), TCP);
        assert_eq!(serving(engine, "attention.store@prefill:layers=0"), "attention/cpu-stock");
    }
}

/// A call that fails after the swap was kept: who notices goes back, and the other with it.
#[test]
fn a_swap_that_fails_late_is_taken_back_on_both() {
    let pair = pair();
    let none = SwapPolicy { probation: Probation { steps: 0, ..Probation::default() }, ..unchecked() };
    kept(&swap(&pair.decode, add("attention@prefill", "faulty/attention{fault: error}", none)));
    kept(&last(&pair.prefill));
    let request = ask(1, 40, 5);
    hear(&pair.submit(&request).1).expect("the step is repeated on the table before");
    let cell = "attention.store@prefill:layers=0";
    wait_for("both are back", || {
        [&pair.prefill, &pair.decode].iter().all(|engine| serving(engine, cell) == "attention/cpu-stock")
    });
    hear(&pair.submit(&request).1).expect("an answer");
    pair.assert_quiet();
}

/// Two prefill and two decode workers, each connected to each of the others' role: a swap asked at any reaches all, once.
#[test]
fn a_swap_reaches_workers_behind_others() {
    let prefill = [worker(Role::Prefill, TCP, grouped), worker(Role::Prefill, TCP, grouped)];
    let apis = prefill.each_ref().map(|p| pair::Api::of(Arc::clone(p.registry().unwrap())));
    let places: Vec<_> = apis.iter().map(|api| (api.address.ip().to_string(), api.address.port())).collect();
    let both = |config: &mut hotseam_engine::EngineConfig| {
        grouped(config);
        config.pd.prefill_workers = places.clone();
    };
    let decode = [worker(Role::Decode, TCP, both), worker(Role::Decode, TCP, both)];
    let all: Vec<&Engine> = prefill.iter().chain(&decode).collect();
    wait_for("all are connected", || all.iter().all(|engine| connected(engine) == 2));
    for (round, asked) in all.iter().enumerate() {
        let transport = if round % 2 == 0 { SHM } else { TCP };
        kept(&swap(asked, add(CELL, transport, quick())));
        for engine in &all {
            kept(&last(engine));
            assert_eq!(
                (engine.swaps().records().len(), serving(engine, CELL).as_str()),
                (round + 1, transport)
            );
        }
    }
    // One of them has a swap of its own: nobody swaps.
    let long = Probation { steps: 1 << 20, ms: 60_000, idle_ms: 60_000, ..Probation::default() };
    let busy = SwapPolicy { probation: long, ..unchecked() };
    let own = decode[1].swaps().begin(add("moe@decode", "moe/cpu-fused-scale", busy)).expect("begun");
    wait_for("it is on probation", || {
        let stage = decode[1].swaps().record(own).expect("a record").stage;
        matches!(stage, Some(SwapStage::Committed { .. }))
    });
    let message = refusal(&swap(&prefill[0], add(CELL, SHM, quick())));
    assert!(message.contains("E-PLUG-401"), "{message}");
    assert!(all.iter().all(|engine| serving(engine, CELL) == TCP));
    decode[1].swaps().take_back("live", "the test").expect("on probation");
}

/// A prompt that is kept for a decode worker goes out on the transport that serves when it is fetched.
#[test]
fn a_kept_prompt_outlives_a_swap() {
    let pair = pair();
    let request = ask(5, 300, 9);
    let want = hear(&pair.submit(&request).1).unwrap();
    let mut placed = pair.placed(&request, pair::room());
    placed.disaggregation.as_mut().unwrap().hold = true;
    hear(&pair.prefill.submit(placed.clone()).unwrap()).unwrap();
    // The worker is not idle as long as it keeps a prompt, so probation lasts to its end.
    let short = SwapPolicy { probation: Probation { ms: 300, ..quick().probation }, ..quick() };
    kept(&swap(&pair.decode, add(CELL, SHM, short)));
    // A layout swap cannot take it along, and says what it waited for.
    let policy = SwapPolicy { kv: KvPolicy::Recompute, drain_ms: 200, ..short };
    let message = refusal(&swap(&pair.decode, add("indexer", "indexer/cpu-stock{keys: bf16}", policy)));
    assert!(message.contains("E-PLUG-403"), "{message}");
    placed.disaggregation.as_mut().unwrap().hold = false;
    assert_eq!(hear(&pair.decode.submit(placed).unwrap()), Ok(want));
    pair.assert_quiet();
}

/// A layout changes on both, while answers go on: those of one layout end before those of the other are asked for.
#[test]
fn a_layout_swap_commits_on_both_under_either_policy() {
    let rules = || {
        let mut rules = over(TCP);
        rules.push(rule("indexer", "indexer/cpu-stock{keys: bf16}"));
        rules
    };
    // Answers of requests whose index picks every entry do not depend on the keys' layout.
    let few: Vec<Request> = (0..4).map(|number| ask(number, 12 + number, 8)).collect();
    let pair = pair();
    let (_, served) = under_load(&pair, &few, || {
        for (round, kv) in [KvPolicy::Recompute, KvPolicy::Drain, KvPolicy::Recompute].into_iter().enumerate()
        {
            let keys =
                if round % 2 == 0 { "indexer/cpu-stock{keys: bf16}" } else { "indexer/cpu-stock{keys: f32}" };
            let asked = if round % 2 == 0 { &pair.prefill } else { &pair.decode };
            kept(&swap(asked, add("indexer", keys, SwapPolicy { kv, ..quick() })));
            for engine in [&pair.prefill, &pair.decode] {
                kept(&last(engine));
            }
        }
        let refused = swap(&pair.decode, add("indexer", "indexer/cpu-stock{keys: f32}", quick()));
        assert!(refusal(&refused).contains("E-PLUG-402"), "{refused:?}");
    });
    assert!(served > 4, "{served}");
    // What came out is what workers that began so say.
    let began =
        PairOf::of(worker_with(Role::Prefill, rules(), |_| {}), worker_with(Role::Decode, rules(), |_| {}));
    let request = ask(3, 400, 9);
    assert_eq!(hear(&pair.submit(&request).1), hear(&began.submit(&request).1));
}

/// A layout swap that is taken back in its probation: both go back, and no request notices.
#[test]
fn a_layout_swap_is_taken_back_on_both_in_its_probation() {
    let pair = pair();
    let long = Probation { steps: 1 << 20, ms: 60_000, ..Probation::default() };
    let few: Vec<Request> = (0..4).map(|number| ask(number, 12 + number, 8)).collect();
    let request = ask(3, 400, 9);
    let want = hear(&pair.submit(&request).1);
    let keys = |engine: &Engine| {
        let all = engine.slots().snapshot("live").expect("there");
        let select =
            all.cells().find(|cell| cell.cell.to_string().starts_with("indexer.")).expect("an indexer");
        select.generation.spec.to_string()
    };
    under_load(&pair, &few, || {
        for (asked, other, kv) in [
            (&pair.decode, &pair.prefill, KvPolicy::Recompute),
            (&pair.prefill, &pair.decode, KvPolicy::Drain),
        ] {
            let events = asked.swaps().subscribe();
            let policy = SwapPolicy { kv, probation: long, ..unchecked() };
            let id =
                asked.swaps().begin(add("indexer", "indexer/cpu-stock{keys: bf16}", policy)).expect("begun");
            while !matches!(events.recv().expect("a stage").stage, SwapStage::Committed { .. }) {}
            for engine in [asked, other] {
                assert_eq!(keys(engine), "indexer/cpu-stock{keys: bf16}");
            }
            // What is asked for now is served on the new layout.
            let (_prefill, decode) = pair.submit(&few[0]);
            hear(&decode).expect("an answer");
            wait_for("it can be taken back", || other.swaps().take_back("live", "somebody").is_some());
            for record in [asked.swaps().wait(id).expect("a record"), last(other)] {
                let SwapStage::RolledBack { message, .. } = end(&record) else {
                    panic!("{:?}", end(&record))
                };
                assert!(message.contains("somebody"), "{message}");
            }
            for engine in [asked, other] {
                assert_eq!(keys(engine), "indexer/cpu-stock");
            }
        }
    });
    assert_eq!(hear(&pair.submit(&request).1), want);
}

/// Hand-offs fail on the new transport: their rooms are asked for once more, on the old one, and no request fails.
#[test]
fn rooms_are_asked_for_again_when_the_new_transport_fails() {
    let pair = pair();
    let long = Probation { steps: 1 << 20, ms: 60_000, ..Probation::default() };
    let policy = SwapPolicy { probation: long, ..unchecked() };
    under_load(&pair, &requests(), || {
        for (round, fault) in
            ["fault: panic, call: put", "fault: short-count", "fault: panic, call: register"]
                .iter()
                .enumerate()
        {
            let asked = if round % 2 == 0 { &pair.decode } else { &pair.prefill };
            let record = swap(asked, add(CELL, &format!("faulty/kv_transport{{{fault}}}"), policy));
            for record in [&record, &last(&pair.prefill), &last(&pair.decode)] {
                let SwapStage::RolledBack { message, .. } = end(record) else { panic!("{:?}", end(record)) };
                assert!(message.contains("E-PLUG-501"), "{fault}: {message}");
            }
            for engine in [&pair.prefill, &pair.decode] {
                assert_eq!(serving(engine, CELL), TCP, "{fault}");
            }
        }
    });
}

#[test]
fn who_may_ask_is_asked_first() {
    let pair = pair();
    pair.decode.swaps().ask_first(|swap| match swap.who.contains("somebody else") {
        true => Err("not this one".to_owned()),
        false => Ok(()),
    });
    let request = SwapRequest { who: "somebody else".into(), ..add(CELL, SHM, quick()) };
    assert!(refusal(&swap(&pair.prefill, request)).contains("not this one"));
    assert!(pair.decode.swaps().records().is_empty());
    kept(&swap(&pair.prefill, add(CELL, SHM, quick())));
    let who = last(&pair.decode).who;
    assert!(who.starts_with("swap group `pair`, worker ") && who.ends_with("for test"), "{who}");
}

#[test]
fn workers_of_other_groups_are_not_asked() {
    let other = |config: &mut hotseam_engine::EngineConfig| config.pd.swap_group = Some("other".into());
    let pair = PairOf::of(worker(Role::Prefill, TCP, grouped), worker(Role::Decode, TCP, other));
    let (_prefill, decode) = pair.submit(&ask(9, 10, 1));
    hear(&decode).unwrap();
    assert_eq!((connected(&pair.prefill), connected(&pair.decode)), (0, 0));
    assert!(refusal(&swap(&pair.decode, add(CELL, SHM, quick()))).contains("swap group `other`"));
    let alone = SwapPolicy { without_absent: true, ..quick() };
    kept(&swap(&pair.decode, add(CELL, SHM, alone)));
    assert_eq!((serving(&pair.prefill, CELL).as_str(), serving(&pair.decode, CELL).as_str()), (TCP, SHM));
}
