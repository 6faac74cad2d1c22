//! The transport of a pair is swapped again and again on both ends while sixteen streams run: every text is that of a pair that
//! is never swapped, no request fails, and nothing is left.

use hotseam_tests::http::{Answer, Server, answer, send};
use hotseam_tests::root;
use hotseam_tests::routers::{Behind, Kind, Router};
use serde_json::{Value, json};
use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const STREAMS: usize = 16;
const GROUP: &str = "disaggregation.swap_group=pair";

/// What clients ask: the router in front of the pair, or both workers as a router does.
enum Front<'a> {
    Router(Router),
    Workers { prefill: &'a Server, decode: &'a Server },
}

/// Notes when parts of an answer come.
struct Timed<'a> {
    stream: TcpStream,
    last: Option<Instant>,
    pauses: &'a Mutex<Vec<(Instant, Duration)>>,
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(bytes)?;
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.pauses.lock().expect("no panic while it is held").push((now, now - last));
        }
        Ok(n)
    }
}

impl Front<'_> {
    /// Streams an answer; `pauses` gets the time between its parts.
    fn ask(&self, body: &Value, pauses: &Mutex<Vec<(Instant, Duration)>>) -> Answer {
        static ROOMS: AtomicU64 = AtomicU64::new(1 << 41);
        let post = |address: &str, body: &Value| {
            let mut stream = TcpStream::connect(address).expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a time-out");
            send(&mut stream, "POST", "/v1/completions", "", &body.to_string());
            stream
        };
        let hear = |stream| answer(Timed { stream, last: None, pauses });
        match self {
            Self::Router(router) => hear(post(&router.address, body)),
            Self::Workers { prefill, decode } => {
                let mut body = body.clone();
                let (host, port) = prefill.address.rsplit_once(':').expect("host and port");
                body["bootstrap_host"] = host.into();
                body["bootstrap_port"] = port.parse::<u16>().expect("a port").into();
                body["bootstrap_room"] = ROOMS.fetch_add(1, Ordering::Relaxed).into();
                let first = post(&prefill.address, &body);
                let heard = hear(post(&decode.address, &body));
                let first = answer(first);
                assert_eq!(first.status, 200, "prefill: {}", first.body);
                heard
            }
        }
    }
}

/// The text of a stream that has ended well.
fn text(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let lines: Vec<&str> =
        answer.body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).collect();
    assert_eq!(lines.last(), Some(&"[DONE]"), "{}", answer.body);
    let events =
        lines[..lines.len() - 1].iter().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    events
        .map(|event| {
            assert!(event["error"].is_null(), "{event}");
            event["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
        })
        .collect()
}

/// The request of a stream: prompts of several lengths, some over a page.
fn body(number: usize) -> Value {
    let line = "The old school stood by the river. Snow fell on the hills. ";
    let prompt = format!("{} {}", line.repeat(1 + number * 2), "Once upon a time");
    json!({
        "model": "nano-v4", "prompt": prompt, "max_tokens": 12 + number, "temperature": 0, "stream": true
    })
}

#[path = "../plugins/kv_transport/nixl/tests/library/mod.rs"]
mod nixl;

/// NIXL with options of this machine, where its library is.
fn over_nixl() -> Option<String> {
    let library = nixl::path()?;
    Some(format!("kv_transport/nixl{{library: {library}, ucx: NET_DEVICES=lo}}"))
}

/// The transport of `live`, with its options.
fn serving(worker: &Server) -> String {
    let view = worker.admin("GET", "/slots", "").json();
    let cells = view["assignments"]["live"]["cells"].as_array().expect("cells");
    let cell = cells.iter().find(|cell| cell["seam"] == "kv_transport").expect("the transport");
    cell["variant"].to_string()
}

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

fn longest(pauses: &Mutex<Vec<(Instant, Duration)>>) -> Duration {
    let mut pauses = pauses.lock().expect("no panic while it is held");
    pauses.drain(..).map(|(_, pause)| pause).max().unwrap_or_default()
}

fn mean(of: &[Duration]) -> f64 {
    of.iter().map(Duration::as_secs_f64).sum::<f64>() / of.len() as f64 * 1e3
}

#[test]
fn transports_are_swapped_on_both_ends_under_sixteen_streams() {
    let swaps = if hotseam_tests::full() { 100 } else { 6 };
    let worker = |role: &str, sets: &[&str]| {
        Server::serve(&root().join(format!("configs/pd-{role}.yaml")), &[&[GROUP], sets].concat())
    };
    // In turns; the one that the workers start with is the second.
    let mut rotation = ["kv_transport/shm", "kv_transport/tcp"].map(str::to_owned).to_vec();
    rotation.extend(over_nixl());
    // A path in options is only taken from a peer where the worker's own file names it.
    let named = rotation.get(2).map(|nixl| {
        format!("assignments.nixl={{extends: live, rules: [{{select: kv_transport, use: '{nixl}'}}]}}")
    });
    let named: Vec<&str> = named.as_deref().into_iter().collect();
    let prefill = worker("prefill", &named);
    let known = format!("disaggregation.prefill_workers=['{}']", prefill.address);
    let decode = worker("decode", &[&named[..], &[&known]].concat());
    let front = match Kind::Smg.installed() {
        true => {
            Front::Router(Router::start(Kind::Smg, Behind::Pairs(&[&prefill.address], &[&decode.address])))
        }
        false => Front::Workers { prefill: &prefill, decode: &decode },
    };
    let pauses = Mutex::new(Vec::new());
    let want: Vec<String> = (0..STREAMS).map(|number| text(&front.ask(&body(number), &pauses))).collect();

    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (mut with, mut without, mut took) = (Vec::new(), Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        for (number, want) in want.iter().enumerate() {
            let (front, stop, served, pauses) = (&front, &stop, &served, &pauses);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    assert_eq!(&text(&front.ask(&body(number), pauses)), want, "stream {number}");
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let _stop = Stop(&stop);
        // All streams run, and the warm pace is known.
        while served.load(Ordering::SeqCst) < STREAMS {
            std::thread::sleep(Duration::from_millis(10));
        }
        for swap in 0..swaps {
            let (asked, other) = if swap % 2 == 0 { (&prefill, &decode) } else { (&decode, &prefill) };
            let transport = &rotation[swap % rotation.len()];
            let name = transport.split('{').next().expect("a name");
            longest(&pauses);
            let begun = Instant::now();
            let (code, out, said) =
                asked.command(&["swap", "kv_transport", transport, "--wait", "--probation", "6"]);
            took.push(begun.elapsed());
            with.push(longest(&pauses));
            assert_eq!(code, 0, "swap {swap} to {transport}: {out} {said}");
            for step in ["is ready", "has committed", "is well", "keeps it"] {
                assert!(said.contains(step), "no member {step}: {said}");
            }
            for worker in [asked, other] {
                let found = serving(worker);
                assert!(found.contains(name), "swap {swap}: {found}, expected {transport}");
            }
            std::thread::sleep(took[swap].min(Duration::from_millis(300)));
            without.push(longest(&pauses));
        }
    });
    let served = served.load(Ordering::SeqCst);
    eprintln!(
        "{swaps} swaps over {rotation:?}, {served} requests in {STREAMS} streams, 0 failed; a swap took {:.0} ms in the mean; \
         longest pause in a stream {:.0} ms with a swap, {:.0} ms without (means of the swaps)",
        mean(&took),
        mean(&with),
        mean(&without)
    );
    for worker in [&prefill, &decode] {
        assert_empty(worker);
        let (code, slots, _) = worker.command(&["slots"]);
        assert!(
            code == 0 && slots.contains("swap group   pair") && slots.contains("connected, alike"),
            "{slots}"
        );
    }
}

/// A worker that is killed takes nobody with it into a state that the other does not have.
#[test]
fn a_worker_that_is_killed_in_the_middle_is_followed_by_one_that_matches() {
    let prefill = Server::serve(&root().join("configs/pd-prefill.yaml"), &[GROUP]);
    let known = format!("disaggregation.prefill_workers=['{}']", prefill.address);
    let decode = Server::serve(&root().join("configs/pd-decode.yaml"), &[GROUP, &known]);
    let slots = |worker: &Server| worker.command(&["slots"]).1;
    let until = |what: &str, is: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    until("they are connected", &|| slots(&prefill).contains("connected, alike"));
    let change = json!({
        "select": "kv_transport", "use": "kv_transport/shm",
        "policy": {"probation": {"steps": 1_000_000, "ms": 60_000, "idle_ms": 60_000}}
    });
    let answer = prefill.admin("POST", "/swap", &change.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    for worker in [&prefill, &decode] {
        assert!(serving(worker).contains("kv_transport/shm"), "{}", serving(worker));
    }
    let decode = decode.killed_and_started_again();
    until("prefill is back too", &|| slots(&prefill).contains("rolled back: E-PLUG-405"));
    assert!(decode.said().contains("starts with its previous variants"), "{}", decode.said());
    until("they are alike again", &|| {
        slots(&prefill).contains("connected, alike") && slots(&decode).contains("connected, alike")
    });
    for worker in [&prefill, &decode] {
        assert!(serving(worker).contains("kv_transport/tcp"), "{}", serving(worker));
    }
    let log = std::fs::read_to_string(decode.state().join("audit.jsonl")).expect("an audit log");
    let asked = log.lines().find(|line| line.contains("\"asked\"")).expect("the peer's request");
    assert!(asked.contains("swap group `pair`, worker ") && asked.contains("for uid "), "{asked}");
}
