//! What goes wrong between workers fails the request in clear words, never makes tokens out of missing KV, and leaves no page
//! and no room behind.

mod common;
#[path = "common/pair.rs"]
mod pair;

use common::{ask, rule};
use crossbeam_channel::{Receiver, unbounded};
use hotseam_engine::{Bootstrap, Engine, Event, Request, Role};
use hotseam_pd::{
    DecodeEvent, DecodeSide, Done, Fingerprint, Patience, PrefillEvent, PrefillSide, Rank, Registry, Reserve,
    ToDecode,
};
use pair::{Api, PairOf, hear, room, worker};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(600);

/// A failure, and that no token came before it.
fn failure(handle: &hotseam_engine::Handle) -> (String, String) {
    loop {
        match handle.recv().expect("a last event") {
            Event::Failed { code, message } => return (code, message),
            Event::Logits { .. } => {}
            other => panic!("{other:?} before the failure"),
        }
    }
}

fn assert_fails(handle: &hotseam_engine::Handle, code: &str, texts: &[&str]) {
    let (found, message) = failure(handle);
    assert_eq!(found, code, "{message}");
    texts.iter().for_each(|text| assert!(message.contains(text), "`{message}` lacks `{text}`"));
}

fn quiet(engine: &Engine) {
    let start = Instant::now();
    loop {
        let stats = engine.stats();
        if stats.running + stats.waiting + stats.rooms == 0 && stats.free_pages == stats.total_pages {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{stats:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A prefill worker that does what a test says.
struct FakePrefill {
    side: Option<PrefillSide>,
    events: Receiver<PrefillEvent>,
    api: Api,
}

impl FakePrefill {
    fn new() -> Self {
        let (send, events) = unbounded();
        let listen = "127.0.0.1:0".parse().unwrap();
        let side = PrefillSide::start(listen, "fake", None, move |event| send.send(event).is_ok()).unwrap();
        let registry = Arc::new(Registry::default());
        registry.put(Rank::only("127.0.0.1".into(), side.address().port(), 256, "kv_f32".into()));
        Self { side: Some(side), events, api: Api::of(registry) }
    }

    fn placed(&self, request: &Request) -> Request {
        let bootstrap =
            Bootstrap { host: "127.0.0.1".into(), port: self.api.address.port(), room: room(), hold: false };
        Request { disaggregation: Some(bootstrap), ..request.clone() }
    }

    fn reserved(&self) -> (Box<Reserve>, crossbeam_channel::Sender<ToDecode>) {
        loop {
            match self.events.recv_timeout(Duration::from_secs(10)).expect("a reservation") {
                PrefillEvent::Reserve { reserve, reply, .. } => return (reserve, reply),
                PrefillEvent::Abort { .. } | PrefillEvent::Gone { .. } => {}
            }
        }
    }
}

fn done(room: u64) -> Done {
    Done {
        room,
        token: 5,
        logprob: 0,
        top: Vec::new(),
        chunks: 1,
        items: 0,
        bytes: 0,
        sums: Vec::new(),
        writers: Vec::new(),
    }
}

#[test]
fn a_prefill_worker_that_is_not_there_or_is_none_is_named() {
    let decode = worker(Role::Decode, "kv_transport/tcp", |config| config.pd.bootstrap_timeout = SHORT);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bootstrap = |port| Bootstrap { host: "127.0.0.1".into(), port, room: room(), hold: false };
    let request = Request { disaggregation: Some(bootstrap(port)), ..ask(1, 20, 3) };
    let handle = decode.submit(request.clone()).unwrap();
    assert_fails(&handle, "E-PD-BOOTSTRAP", &[&port.to_string(), "bootstrap registry"]);
    // Ranks that are still to come are waited for, and told in the end.
    let api = Api::of(Arc::new(Registry::default()));
    let request = Request { disaggregation: Some(bootstrap(api.address.port())), ..request };
    let handle = decode.submit(request).unwrap();
    assert_fails(&handle, "E-PD-BOOTSTRAP", &["no rank has registered yet"]);
    quiet(&decode);
}

#[test]
fn a_prefill_worker_that_dies_fails_its_requests_only() {
    let decode = worker(Role::Decode, "kv_transport/tcp", |config| config.pd.bootstrap_timeout = SHORT);
    let mut fake = FakePrefill::new();
    let first = decode.submit(fake.placed(&ask(1, 300, 3))).unwrap();
    let second = decode.submit(fake.placed(&ask(2, 300, 3))).unwrap();
    let (one, reply) = fake.reserved();
    fake.reserved();
    let (code, message) = ("E-STEP-502".to_owned(), "its numbers are not finite".to_owned());
    reply.send(ToDecode::Failed { room: one.room, code, message }).unwrap();
    assert_fails(&first, "E-STEP-502", &["not finite"]);
    drop(fake.side.take());
    assert_fails(&second, "E-PD-PEER", &["is gone"]);
    quiet(&decode);
}

#[test]
fn what_never_arrived_is_not_decoded() {
    let decode = worker(Role::Decode, "kv_transport/tcp", |config| config.pd.waiting_timeout = 2 * SHORT);
    let fake = FakePrefill::new();
    // It says that all is in place, and nothing is.
    let handle = decode.submit(fake.placed(&ask(1, 300, 3))).unwrap();
    let (reserve, reply) = fake.reserved();
    reply.send(ToDecode::Done(Box::new(done(reserve.room)))).unwrap();
    assert_fails(&handle, "E-KV-TRANSFER", &["0 items were written"]);
    // As above, with the right counts.
    let handle = decode.submit(fake.placed(&ask(2, 300, 3))).unwrap();
    let (reserve, reply) = fake.reserved();
    let items = reserve.items.iter().map(|list| list.len() as u64).sum();
    reply.send(ToDecode::Done(Box::new(Done { items, bytes: 1 << 20, ..done(reserve.room) }))).unwrap();
    assert_fails(&handle, "E-KV-TRANSFER", &["0 items were written"]);
    // It says nothing.
    let handle = decode.submit(fake.placed(&ask(3, 300, 3))).unwrap();
    let (reserve, _reply) = fake.reserved();
    assert_fails(&handle, "E-KV-TIMEOUT", &["did not deliver its KV"]);
    // Late news of a room that is over change nothing.
    reply.send(ToDecode::Done(Box::new(done(reserve.room)))).unwrap();
    reply.send(ToDecode::Done(Box::new(done(12345)))).unwrap();
    quiet(&decode);
}

/// Asks a prefill engine as a decode worker would that a test has made wrong.
struct FakeDecode {
    side: Option<DecodeSide>,
    events: Receiver<DecodeEvent>,
}

impl FakeDecode {
    fn new() -> Self {
        let (send, events) = unbounded();
        let patience = Patience { bootstrap: Duration::from_secs(5) };
        Self { side: Some(DecodeSide::new("fake", patience, move |event| send.send(event).is_ok())), events }
    }

    fn failed(&self) -> (String, String) {
        match self.events.recv_timeout(Duration::from_secs(15)).expect("an event") {
            DecodeEvent::Failed { code, message, .. } => (code, message),
            other => panic!("{other:?}"),
        }
    }
}

/// What a real decode worker asks for, to be made wrong.
fn recorded(prompt: &Request) -> (Fingerprint, Reserve) {
    let (fake, decode) = (FakePrefill::new(), worker(Role::Decode, "kv_transport/tcp", |_| {}));
    let _handle = decode.submit(fake.placed(prompt)).unwrap();
    match fake.events.recv_timeout(Duration::from_secs(10)).unwrap() {
        PrefillEvent::Reserve { fingerprint, reserve, .. } => ((*fingerprint).clone(), *reserve),
        other => panic!("{other:?}"),
    }
}

#[test]
fn reservations_that_do_not_fit_are_refused_on_both_sides() {
    let request = ask(1, 300, 3);
    let (print, right) = recorded(&request);
    let prefill =
        worker(Role::Prefill, "kv_transport/tcp", |config| config.pd.bootstrap_timeout = 10 * SHORT);
    let api = Api::of(Arc::clone(prefill.registry().unwrap()));
    let mut other = Fingerprint::default();
    for (name, value) in print.properties() {
        other.push(name.clone(), if name == "c4_ring" { "16" } else { value });
    }
    let mut short = right.items.clone();
    short[0].pop();
    let mut long = right.items.clone();
    long[3].extend(0..1000);
    let mut outside = right.items.clone();
    outside[1][0] = i32::MAX;
    let dead = format!("tcp 127.0.0.1:1 {}", "0".repeat(32));
    let cases: [(&Fingerprint, Reserve, &str, &str); 9] = [
        (&other, right.clone(), "E-PD-FINGERPRINT", "c4_ring: prefill has `8`, decode has `16`"),
        (&print, Reserve { prompt_sum: 1, ..right.clone() }, "E-PD-REQUEST", "they are not the same"),
        (&print, Reserve { prompt_tokens: 299, ..right.clone() }, "E-PD-REQUEST", "one of 299"),
        (
            &print,
            Reserve { assignment: "other".into(), ..right.clone() },
            "E-PD-REQUEST",
            "different assignments",
        ),
        (
            &print,
            Reserve { transport: "kv_transport/shm".into(), ..right.clone() },
            "E-PD-FINGERPRINT",
            "kv_transport/shm",
        ),
        (
            &print,
            Reserve { endpoint: "tcp nowhere".into(), ..right.clone() },
            "E-PLUG-501",
            "expected an endpoint",
        ),
        (&print, Reserve { items: short, ..right.clone() }, "E-PD-REQUEST", "swa: prefill has"),
        (
            &print,
            Reserve { items: long, ..right.clone() },
            "E-PD-REQUEST",
            "index_keys: prefill has 2 items to send",
        ),
        (&print, Reserve { items: outside, endpoint: dead, ..right.clone() }, "E-KV-TRANSFER", "127.0.0.1:1"),
    ];
    for (print, reserve, code, text) in cases {
        let mut fake = FakeDecode::new();
        let room = room();
        let reserve = Box::new(Reserve { room, layout: print.digest(), ..reserve });
        fake.side.as_mut().unwrap().reserve(
            "127.0.0.1",
            api.address.port(),
            Arc::new(print.clone()),
            reserve,
        );
        let bootstrap = Bootstrap { host: String::new(), port: 0, room, hold: false };
        let handle = prefill.submit(Request { disaggregation: Some(bootstrap), ..request.clone() }).unwrap();
        assert_fails(&handle, code, &[text]);
        let (found, message) = fake.failed();
        assert!(found == code && message.contains(text), "{found} {message}");
    }
    // A fingerprint that was never shown.
    let mut fake = FakeDecode::new();
    let reserve = Box::new(Reserve { room: room(), layout: 1, ..right });
    fake.side.as_mut().unwrap().reserve("127.0.0.1", api.address.port(), Arc::new(print), reserve);
    assert_eq!(fake.failed().0, "E-PD-FINGERPRINT");
    quiet(&prefill);
}

#[test]
fn workers_that_were_built_otherwise_refuse_each_other() {
    let request = ask(1, 80, 3);
    let mut rules = pair::over("kv_transport/tcp");
    rules.push(rule("indexer", "indexer/cpu-stock{keys: bf16}"));
    let prefill = pair::worker_with(Role::Prefill, rules, |_| {});
    let decode = worker(Role::Decode, "kv_transport/tcp", |config| config.index_topk = Some(7));
    let pair = PairOf::of(prefill, decode);
    let (prefill, decode) = pair.submit(&request);
    let texts = ["index_topk: prefill has", "decode has `7`", "layer 1 index_keys: prefill has `key-bf16"];
    assert_fails(&prefill, "E-PD-FINGERPRINT", &texts);
    assert_fails(&decode, "E-PD-FINGERPRINT", &texts);
    pair.assert_quiet();
}

#[test]
fn a_transport_within_one_process_is_refused_with_the_way_out() {
    let pair = PairOf::new("kv_transport/local", |config| config.pd.bootstrap_timeout = SHORT);
    let (prefill, decode) = pair.submit(&ask(1, 20, 3));
    assert_fails(&decode, "E-PD-TRANSPORT", &["kv_transport/tcp or kv_transport/shm"]);
    assert_fails(&prefill, "E-PD-BOOTSTRAP", &["no decode worker asked"]);
    pair.assert_quiet();
}

#[test]
fn either_worker_may_come_first_and_a_room_serves_one_request() {
    let pair = PairOf::new("kv_transport/tcp", |_| {});
    let request = ask(1, 300, 5);
    let number = room();
    let placed = pair.placed(&request, number);
    let mut heard = Vec::new();
    for decode_first in [true, false] {
        // The same room again, once the request before is over.
        let late = |engine: &Engine| {
            std::thread::sleep(Duration::from_millis(150));
            engine.submit(placed.clone()).unwrap()
        };
        let (prefill, decode) = match decode_first {
            true => {
                let decode = pair.decode.submit(placed.clone()).unwrap();
                (late(&pair.prefill), decode)
            }
            false => {
                let prefill = pair.prefill.submit(placed.clone()).unwrap();
                (prefill, late(&pair.decode))
            }
        };
        heard.push(hear(&decode).unwrap());
        hear(&prefill).unwrap();
        pair.assert_quiet();
    }
    assert_eq!(heard[0], heard[1]);
    // At one time it serves one.
    let first = pair.decode.submit(placed.clone()).unwrap();
    let second = pair.decode.submit(placed.clone()).unwrap();
    assert_fails(&second, "E-PD-ROOM", &["is in use"]);
    let prefill = pair.prefill.submit(placed).unwrap();
    assert_eq!(hear(&first).unwrap(), heard[0]);
    hear(&prefill).unwrap();
    pair.assert_quiet();
}

#[test]
fn a_half_that_never_comes_is_given_up() {
    let pair = PairOf::new("kv_transport/tcp", |config| config.pd.bootstrap_timeout = SHORT);
    let alone = pair.prefill.submit(pair.placed(&ask(1, 40, 2), room())).unwrap();
    assert_fails(&alone, "E-PD-BOOTSTRAP", &["no decode worker asked for it"]);
    let alone = pair.decode.submit(pair.placed(&ask(2, 40, 2), room())).unwrap();
    assert_fails(&alone, "E-PD-BOOTSTRAP", &["no request for it reached the prefill worker"]);
    let mut held = pair.placed(&ask(3, 40, 2), room());
    held.disaggregation.as_mut().unwrap().hold = true;
    assert_eq!(hear(&pair.prefill.submit(held).unwrap()).unwrap().tokens.len(), 1);
    pair.assert_quiet();
}

/// Clients that leave at any moment cost others nothing.
#[test]
fn clients_leave_at_any_moment() {
    let pair = PairOf::new("kv_transport/tcp", |config| {
        config.pd.bootstrap_timeout = SHORT;
        config.max_seqs = 6;
    });
    let request = ask(1, 700, 12);
    let want = {
        let (_prefill, decode) = pair.submit(&request);
        hear(&decode).unwrap()
    };
    for round in 0..24u64 {
        let (prefill, decode) = pair.submit(&ask(round as usize, 500, 12));
        let kept = pair.submit(&request);
        std::thread::sleep(Duration::from_millis(round * 3));
        match round % 3 {
            0 => drop(decode),
            1 => drop(prefill),
            _ => drop((prefill, decode)),
        }
        assert_eq!(hear(&kept.1).as_ref(), Ok(&want), "round {round}");
    }
    pair.assert_quiet();
}

/// A decode worker that goes away while its rooms are open.
#[test]
fn a_decode_worker_that_dies_leaves_nothing_behind() {
    let request = ask(1, 900, 3);
    let (print, right) = recorded(&request);
    let prefill = worker(Role::Prefill, "kv_transport/tcp", |_| {});
    let api = Api::of(Arc::clone(prefill.registry().unwrap()));
    for pause in [0, 20, 80] {
        let mut fake = FakeDecode::new();
        let number = room();
        let reserve = Box::new(Reserve { room: number, layout: print.digest(), ..right.clone() });
        fake.side.as_mut().unwrap().reserve(
            "127.0.0.1",
            api.address.port(),
            Arc::new(print.clone()),
            reserve,
        );
        let bootstrap = Bootstrap { host: String::new(), port: 0, room: number, hold: false };
        let handle = prefill.submit(Request { disaggregation: Some(bootstrap), ..request.clone() }).unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        drop(fake.side.take());
        let (code, message) = failure(&handle);
        assert!(
            ["E-PD-PEER", "E-KV-TRANSFER", "E-PD-BOOTSTRAP"].contains(&code.as_str()),
            "{code} {message}"
        );
    }
    quiet(&prefill);
}
