//! Members of a swap group that do what they should not, come late, or fail late; and what of a peer's swap a worker refuses.

mod common;
#[path = "common/group.rs"]
mod group;
#[path = "common/pair.rs"]
mod pair;

use common::{add, ask, end, kept, rule, serving};
use crossbeam_channel::{bounded, unbounded};
use group::{CELL, Fake, SHM, TCP, connected, grouped, last, quick, refusal, wait_for};
use hotseam_engine::{Bootstrap, Engine, Request, Role};
use hotseam_pd::{GroupMessage, Order, PrefillEvent, PrefillSide, Prepare, Rank, Registry, ToDecode};
use hotseam_slots::{Change, KvPolicy, MemberStep, Rule, SwapPolicy, SwapStage};
use pair::{Api, PairOf, hear, over, worker, worker_with};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A prefill worker that fakes can connect to.
fn prefill() -> (Engine, Api) {
    of(worker(Role::Prefill, TCP, grouped))
}

fn of(prefill: Engine) -> (Engine, Api) {
    let api = Api::of(Arc::clone(prefill.registry().unwrap()));
    (prefill, api)
}

fn to_shm(prefill: &Engine) -> u64 {
    prefill.swaps().begin(add(CELL, SHM, quick())).expect("begun")
}

/// Text of a swap that was taken back.
fn taken_back(prefill: &Engine, id: u64) -> String {
    match end(&prefill.swaps().wait(id).expect("a record")) {
        SwapStage::RolledBack { message, .. } => message.clone(),
        other => panic!("{other:?}"),
    }
}

/// Takes a member that has prepared to where it keeps the swap.
fn keep(fake: &Fake) -> String {
    fake.obey(Order::Commit);
    let (_, swap) = fake.obey(Order::Open);
    fake.did(&swap, Order::Well);
    fake.obey(Order::Keep);
    swap
}

/// A prefill worker and a member that have kept a swap: its number there, and its name.
fn kept_with_a_member() -> (Engine, Api, Fake, u64, String) {
    let (prefill, api) = prefill();
    let fake = Fake::decode("fake", &api, &prefill);
    let id = to_shm(&prefill);
    fake.obey(Order::Prepare);
    let swap = keep(&fake);
    kept(&prefill.swaps().wait(id).expect("a record"));
    (prefill, api, fake, id, swap)
}

/// Members go back with the prefill worker: the last word comes once all have.
fn all_go_back(fakes: &[&Fake]) {
    for fake in fakes {
        fake.obey(Order::TakeBack);
    }
    for fake in fakes {
        fake.hear(Order::Close);
    }
}

/// Sends something that is answered, so that all that was sent before has been heard.
fn settle(fake: &Fake) {
    fake.order("no such swap", Order::Commit);
    match fake.next().1 {
        GroupMessage::Failed { message, .. } => assert!(message.contains("not known here"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_member_that_says_too_much_is_cut_off() {
    let (prefill, api) = prefill();
    let fake = Fake::decode("fake", &api, &prefill);
    let prepare = fake.asked_for(&prefill, add(CELL, SHM, quick()));
    // The swap thread takes nothing in until it is let go.
    let (go, gate) = bounded::<()>(0);
    prefill.swaps().ask_first(move |_| {
        let _ = gate.recv();
        Ok(())
    });
    fake.say(GroupMessage::Prepare(Box::new(Prepare { swap: "flood".into(), ..prepare })));
    for _ in 0..3000 {
        // Until the connection is gone.
        fake.group.send(fake.group.here().last().map_or(0, |here| here.0), GroupMessage::State(Vec::new()));
    }
    wait_for("it is cut off while nothing is taken in", || connected(&prefill) == 0);
    drop(go);
    // Its end was not lost among what it said.
    let begun = Instant::now();
    wait_for("the swap began", || prefill.swaps().records().len() == 2);
    let message = refusal(&last(&prefill));
    assert!(message.contains("not connected of swap group `pair`: fake from"), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(10), "nobody waits for it");
    // Others are heard as ever.
    prefill.swaps().ask_first(|_| Ok(()));
    let calm = Fake::decode("fake", &api, &prefill);
    let id = to_shm(&prefill);
    calm.obey(Order::Prepare);
    keep(&calm);
    kept(&prefill.swaps().wait(id).expect("a record"));
}

/// What a peer asks for before this worker can write it down does not begin.
#[test]
fn peers_wait_until_somebody_decides_about_them() {
    let (prefill, api) = of(worker(Role::Prefill, TCP, |config| {
        grouped(config);
        config.pd.peers_wait = true;
    }));
    let fake = Fake::decode("fake", &api, &prefill);
    let prepare = fake.asked_for(&prefill, add(CELL, SHM, quick()));
    fake.say(GroupMessage::Prepare(Box::new(prepare.clone())));
    match fake.next().1 {
        GroupMessage::Failed { code: 405, message, .. } => {
            assert!(message.contains("still starting"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(prefill.swaps().records().len(), 1, "the one that it was asked for itself");
    prefill.swaps().ask_first(|_| Ok(()));
    let swap = prepare.swap.clone();
    fake.say(GroupMessage::Prepare(Box::new(prepare)));
    for order in [Order::Prepare, Order::Commit, Order::Open, Order::Well, Order::Keep] {
        if !matches!(order, Order::Prepare | Order::Well) {
            fake.order(&swap, order);
        }
        fake.hear_done(order);
    }
    kept(&last(&prefill));
}

/// A member leads, the prefill worker follows, and another member is asked by it.
#[test]
fn only_the_worker_above_orders() {
    let (prefill, api) = prefill();
    let above = Fake::decode("above", &api, &prefill);
    let prepare = above.asked_for(&prefill, add(CELL, SHM, quick()));
    let below = Fake::decode("below", &api, &prefill);
    let swap = prepare.swap.clone();
    above.say(GroupMessage::Prepare(Box::new(prepare.clone())));
    assert_eq!(below.prepare().swap, swap);
    let elsewhere = GroupMessage::Elsewhere { swap: swap.clone() };
    for order in [Order::Commit, Order::Open, Order::Keep, Order::Close] {
        below.order(&swap, order);
        assert_eq!(below.next().1, elsewhere, "{order:?}");
    }
    below.did(&swap, Order::Prepare);
    above.hear_done(Order::Prepare);
    below.order(&swap, Order::Commit);
    assert_eq!(below.next().1, elsewhere);
    assert_eq!(serving(&prefill, CELL), TCP, "nobody above has said so");
    for order in [Order::Commit, Order::Open] {
        above.order(&swap, order);
        below.obey(order);
        above.hear_done(order);
    }
    below.did(&swap, Order::Well);
    above.hear_done(Order::Well);
    above.order(&swap, Order::Keep);
    below.obey(Order::Keep);
    above.hear_done(Order::Keep);
    kept(&last(&prefill));
    // A worker that comes later had no part in it.
    let stranger = Fake::decode("stranger", &api, &prefill);
    stranger.order(&swap, Order::TakeBack);
    settle(&stranger);
    assert_eq!(serving(&prefill, CELL), SHM);
    // To ask for it once more is too late.
    stranger.say(GroupMessage::Prepare(Box::new(prepare)));
    assert_eq!(stranger.next().1, elsewhere);
    // Whoever took part may still fail late, and all others hear of it.
    below.order(&swap, Order::TakeBack);
    below.hear_done(Order::TakeBack);
    assert_eq!(serving(&prefill, CELL), TCP);
    above.hear(Order::TakeBack);
    assert!(matches!(end(&last(&prefill)), SwapStage::RolledBack { .. }));
}

#[test]
fn a_swap_that_was_kept_is_taken_back_when_a_member_fails_late() {
    let (prefill, _api, fake, id, swap) = kept_with_a_member();
    fake.order(&swap, Order::TakeBack);
    fake.hear_done(Order::TakeBack);
    assert_eq!(serving(&prefill, CELL), TCP);
    wait_for("it is told", || {
        let record = prefill.swaps().record(id).expect("a record");
        matches!(end(&record), SwapStage::RolledBack { message, .. } if message.contains("worker fake"))
    });
    // Once more is no harm.
    fake.order(&swap, Order::TakeBack);
    fake.hear_done(Order::TakeBack);
    assert_eq!(serving(&prefill, CELL), TCP);
}

/// In a group of four two workers have a part in the same swap that do not ask each other: each may say that it failed late.
#[test]
fn a_member_that_another_one_asks_may_take_a_kept_swap_back() {
    let (prefill, api) = prefill();
    let [below, beside, other] = ["below", "beside", "other"].map(|name| Fake::decode(name, &api, &prefill));
    let id = to_shm(&prefill);
    let Prepare { swap, .. } = beside.prepare();
    beside.say(GroupMessage::Elsewhere { swap: swap.clone() });
    let asked = other.prepare();
    other.say(GroupMessage::Elsewhere { swap: asked.swap });
    below.obey(Order::Prepare);
    keep(&below);
    kept(&prefill.swaps().wait(id).expect("a record"));
    beside.order(&swap, Order::TakeBack);
    beside.hear_done(Order::TakeBack);
    wait_for("it is taken back", || serving(&prefill, CELL) == TCP);
    // Those that did not say it hear of it.
    for fake in [&below, &other] {
        fake.hear(Order::TakeBack);
    }
}

/// What came on top of a swap stays, and whoever wants the swap back is told.
#[test]
fn a_kept_swap_with_another_one_on_top_is_not_taken_back() {
    let (prefill, _api, fake, _, swap) = kept_with_a_member();
    let own = prefill.swaps().begin(add("moe", "moe/cpu-fused-scale", quick())).expect("begun");
    kept(&prefill.swaps().wait(own).expect("a record"));
    fake.order(&swap, Order::TakeBack);
    let told = std::iter::repeat_with(|| fake.next().1).find_map(|message| match message {
        GroupMessage::Failed { message, .. } => Some(message),
        _ => None,
    });
    assert!(told.is_some_and(|told| told.contains("swapped again since")));
    assert_eq!(serving(&prefill, CELL), SHM);
}

#[test]
fn nobody_lets_the_group_wait_for_hours() {
    let (prefill, api) = prefill();
    let _fake = Fake::decode("fake", &api, &prefill);
    let policy = SwapPolicy { drain_ms: 3_600_000, ..quick() };
    let id = prefill.swaps().begin(add(CELL, SHM, policy)).expect("begun");
    let message = refusal(&prefill.swaps().wait(id).expect("a record"));
    assert!(message.contains("E-PLUG-405") && message.contains("longer than 600 s"), "{message}");
}

/// One member has kept the swap and fails before all have.
#[test]
fn a_member_that_fails_after_it_has_kept_the_swap_takes_all_back() {
    let (prefill, api) = prefill();
    let [first, second] = ["first", "second"].map(|name| Fake::decode(name, &api, &prefill));
    let id = to_shm(&prefill);
    for order in [Order::Prepare, Order::Commit, Order::Open] {
        for fake in [&first, &second] {
            let (_, swap) = fake.obey(order);
            if order == Order::Open {
                fake.did(&swap, Order::Well);
            }
        }
    }
    let (_, swap) = first.obey(Order::Keep);
    second.hear(Order::Keep);
    let (code, message) = (501, "a call failed late".to_owned());
    first.say(GroupMessage::Order { swap, order: Order::TakeBack, code, message });
    all_go_back(&[&first, &second]);
    let message = taken_back(&prefill, id);
    assert!(message.contains("worker first") && message.contains("a call failed late"), "{message}");
    assert_eq!(serving(&prefill, CELL), TCP);
}

#[test]
fn a_worker_that_joins_while_a_swap_gets_ready_takes_part() {
    let (prefill, api) = prefill();
    let slow = Fake::decode("slow", &api, &prefill);
    let id = to_shm(&prefill);
    let swap = slow.prepare().swap;
    let place = (api.address.ip().to_string(), api.address.port());
    let decode = worker(Role::Decode, TCP, |config| {
        grouped(config);
        config.pd.prefill_workers = vec![place.clone()];
    });
    wait_for("it has joined", || connected(&prefill) == 2 && !decode.swaps().records().is_empty());
    assert_eq!(serving(&decode, CELL), TCP);
    slow.did(&swap, Order::Prepare);
    keep(&slow);
    kept(&prefill.swaps().wait(id).expect("a record"));
    kept(&last(&decode));
    assert_eq!((serving(&prefill, CELL).as_str(), serving(&decode, CELL).as_str()), (SHM, SHM));
}

#[test]
fn a_worker_that_joins_later_makes_all_go_back_unless_another_asks_it() {
    let (prefill, api) = prefill();
    let first = Fake::decode("first", &api, &prefill);
    let begin = || {
        let id = to_shm(&prefill);
        first.obey(Order::Prepare);
        first.hear(Order::Commit);
        (id, Fake::decode("late", &api, &prefill))
    };
    // It would be ready.
    let (id, late) = begin();
    let (_, swap) = late.obey(Order::Prepare);
    first.did(&swap, Order::Commit);
    all_go_back(&[&first, &late]);
    let message = taken_back(&prefill, id);
    let expected =
        "E-PLUG-405 worker late from 127.0.0.1 of swap group `pair` joined while the swap ran; ask again";
    assert_eq!(message, expected);
    drop(late);
    wait_for("it is gone", || connected(&prefill) == 1);
    // It has something else to do.
    let (id, late) = begin();
    let prepare = late.prepare();
    late.fail(&prepare.swap, 401, "E-PLUG-401 swap 7 is running");
    all_go_back(&[&first, &late]);
    let message = taken_back(&prefill, id);
    assert!(message.contains("worker late") && message.contains("E-PLUG-401"), "{message}");
    drop(late);
    wait_for("it is gone", || connected(&prefill) == 1);
    // Another worker asks it, so this one need not.
    let (id, late) = begin();
    let swap = late.prepare().swap;
    late.say(GroupMessage::Elsewhere { swap: swap.clone() });
    first.did(&swap, Order::Commit);
    let (_, swap) = first.obey(Order::Open);
    first.did(&swap, Order::Well);
    first.obey(Order::Keep);
    kept(&prefill.swaps().wait(id).expect("a record"));
    assert_eq!(serving(&prefill, CELL), SHM);
}

/// Requests that a layout swap holds back are not late for it.
#[test]
fn requests_wait_as_long_as_a_swap_holds_them_back() {
    let short = Duration::from_millis(800);
    let pair = PairOf::new(TCP, |config| {
        grouped(config);
        (config.pd.bootstrap_timeout, config.pd.waiting_timeout) = (short, short);
    });
    group::meet(&pair);
    // Answers of requests whose index picks every entry do not depend on the keys' layout.
    let request = ask(1, 12, 8);
    let want = hear(&pair.submit(&request).1).expect("an answer");
    let slow = Fake::decode("slow", &pair.api, &pair.prefill);
    let policy = SwapPolicy { kv: KvPolicy::Drain, ..quick() };
    let events = pair.prefill.swaps().subscribe();
    let id =
        pair.prefill.swaps().begin(add("indexer", "indexer/cpu-stock{keys: bf16}", policy)).expect("begun");
    slow.obey(Order::Prepare);
    slow.obey(Order::HoldKept);
    let swap = slow.hear(Order::HoldRooms);
    let quiet = |stage: &SwapStage| matches!(stage, SwapStage::Member { reached: MemberStep::Quiet, .. });
    while !quiet(&events.recv_timeout(Duration::from_secs(20)).expect("the decode worker holds").stage) {}
    let handles = pair.submit(&request);
    std::thread::sleep(3 * short);
    for handle in [&handles.0, &handles.1] {
        assert!(handle.events().try_recv().is_err(), "it waits");
    }
    slow.did(&swap, Order::HoldRooms);
    keep(&slow);
    kept(&pair.prefill.swaps().wait(id).expect("a record"));
    kept(&last(&pair.decode));
    assert_eq!(hear(&handles.1), Ok(want));
    hear(&handles.0).expect("prefill's part");
    pair.assert_quiet();
}

/// A room that is to be asked for again is not asked for while a swap holds it back, and that time does not count either.
#[test]
fn rooms_are_asked_for_again_as_long_as_a_swap_holds_them_back() {
    let short = Duration::from_millis(800);
    let fake = Fake::unconnected();
    let (send, events) = unbounded();
    let (listen, group) = ("127.0.0.1:0".parse().unwrap(), Some(Arc::clone(&fake.group)));
    let side = PrefillSide::start(listen, "fake", group, move |event| send.send(event).is_ok()).unwrap();
    let registry = Arc::new(Registry::default());
    registry.put(Rank::only("127.0.0.1".into(), side.address().port(), 256, "kv_f32".into()));
    let api = Api::of(registry);
    let decode = worker(Role::Decode, TCP, |config| {
        grouped(config);
        config.pd.waiting_timeout = short;
    });
    let asked = || loop {
        match events.recv_timeout(Duration::from_secs(20)).expect("the room is asked for") {
            PrefillEvent::Reserve { reserve, reply, .. } => return (reserve.room, reply),
            PrefillEvent::Abort { reason, .. } => panic!("given up: {reason}"),
            PrefillEvent::Gone { .. } => {}
        }
    };
    let bootstrap =
        Bootstrap { host: "127.0.0.1".into(), port: api.address.port(), room: pair::room(), hold: false };
    let request = Request { disaggregation: Some(bootstrap), ..ask(1, 20, 3) };
    let handle = decode.submit(request).expect("taken");
    let (room, reply) = asked();
    wait_for("it is connected", || connected(&decode) == 1);
    let policy = SwapPolicy { kv: KvPolicy::Recompute, ..quick() };
    let id = decode.swaps().begin(add("indexer", "indexer/cpu-stock{keys: bf16}", policy)).expect("begun");
    fake.obey(Order::Prepare);
    fake.obey(Order::HoldKept);
    let swap = fake.hear(Order::HoldRooms);
    reply.send(ToDecode::Again { room }).unwrap();
    std::thread::sleep(2 * short);
    assert!(events.try_recv().is_err(), "it is held back");
    fake.did(&swap, Order::HoldRooms);
    fake.obey(Order::Commit);
    fake.obey(Order::Open);
    fake.did(&swap, Order::Well);
    let (_, reply) = asked();
    reply.send(ToDecode::Again { room }).unwrap();
    // It was given up if the time of the swap counted.
    let (room, reply) = asked();
    let (code, message) = ("E-TEST".to_owned(), "enough".to_owned());
    reply.send(ToDecode::Failed { room, code, message }).unwrap();
    assert_eq!(hear(&handle), Err(("E-TEST".to_owned(), "enough".to_owned())));
    fake.obey(Order::Keep);
    kept(&decode.swaps().wait(id).expect("a record"));
}

/// The stage in which old and new run side by side ends with the swap.
#[test]
fn a_swap_that_is_called_off_ends_its_shadow_stage() {
    let (prefill, api) = prefill();
    let fake = Fake::decode("fake", &api, &prefill);
    let policy = SwapPolicy { shadow_steps: 1 << 20, shadow_ms: 300_000, ..quick() };
    let id = prefill.swaps().begin(add(CELL, SHM, policy)).expect("begun");
    let prepare = fake.prepare();
    // It has its plan when it asks others, and then runs both.
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    fake.fail(&prepare.swap, 405, "no");
    fake.go_back();
    let message = refusal(&prefill.swaps().wait(id).expect("a record"));
    assert!(message.contains("worker fake") && begun.elapsed() < Duration::from_secs(60), "{message}");
}

/// What of a peer's swap is a worker's own affair is refused before anything of it is loaded.
#[test]
fn a_peer_names_no_paths_and_no_other_seams() {
    // A variant with an address that this worker's own assignment names.
    const OWN: &str = "kv_transport/tcp{listen: '127.0.0.1:0'}";
    let (prefill, api) = of(worker_with(Role::Prefill, over(OWN), grouped));
    let fake = Fake::decode("fake", &api, &prefill);
    let prepare = fake.asked_for(&prefill, add(CELL, SHM, quick()));
    let loaded = || prefill.slots().registry().loader().opened().len();
    let (records, before) = (prefill.swaps().records().len(), loaded());
    let ask = |change: Change| {
        let change = serde_json::to_string(&change).unwrap();
        fake.say(GroupMessage::Prepare(Box::new(Prepare { change, ..prepare.clone() })));
        fake.next().1
    };
    let rules = |rules: &[(&str, &str)]| {
        rules.iter().map(|(select, variant)| rule(select, variant)).collect::<Vec<Rule>>()
    };
    let transport = |variant: &str| Change::Add(rules(&[(CELL, variant)]));
    let cases = [
        (Change::Replace(over(SHM)), "a list of all rules is a worker's own affair"),
        (
            Change::Add(rules(&[(CELL, SHM), ("moe", "moe/cpu-fused-scale")])),
            "cells of moe need not be alike",
        ),
        (Change::Add(rules(&[("!mhc", "")])), "cells of mhc need not be alike"),
        (
            transport("kv_transport/nixl{library: /tmp/evil.so}"),
            "option `library` of kv_transport/nixl is no plain word",
        ),
        (
            transport("kv_transport/nccl{library: evil.so}"),
            "option `library` of kv_transport/nccl is no plain word",
        ),
        (
            transport("kv_transport/tcp{listen: '0.0.0.0:0'}"),
            "option `listen` of kv_transport/tcp is no plain word",
        ),
        (
            Change::Add(rules(&[("attention", "attention/cpu-stock{file: ../x}")])),
            "option `file` of attention/cpu-stock is no plain word",
        ),
    ];
    for (change, text) in cases {
        match ask(change) {
            GroupMessage::Failed { code: 405, message, .. } => {
                assert!(
                    message.starts_with("E-PLUG-405") && message.contains(text),
                    "{message}, expected {text}"
                );
            }
            other => panic!("{other:?}, expected {text}"),
        }
    }
    assert_eq!((prefill.swaps().records().len(), loaded()), (records, before));
    let change = serde_json::to_string(&transport(OWN)).unwrap();
    let (swap, transport) = ("own".to_owned(), TCP.to_owned());
    fake.say(GroupMessage::Prepare(Box::new(Prepare { swap, change, transport, ..prepare })));
    fake.hear_done(Order::Prepare);
    fake.order("own", Order::TakeBack);
    fake.hear_done(Order::TakeBack);
    fake.order("own", Order::Close);
    refusal(&last(&prefill));
}
