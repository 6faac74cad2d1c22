//! Two prefill and two decode workers behind a router while workers are killed, stopped and started again: no wrong answer,
//! every failure explicit, nothing left behind.

use hotseam_tests::answers::{Case, Refusal, Said, chat, completion, generate, with};
use hotseam_tests::http::{Server, try_send};
use hotseam_tests::pairs::{Census, assert_no_more, census, meet, post, worker};
use hotseam_tests::routers::{Behind, Kind, Router};
use hotseam_tests::{full, root};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Sizes of the workers: prompts of several chunks, on few threads, and little patience.
const SIZES: [&str; 5] = [
    "engine.chunk=128",
    "engine.max_context=2048",
    "engine.threads=1",
    "disaggregation.bootstrap_timeout_seconds=5",
    "disaggregation.waiting_timeout_seconds=20",
];
/// The router looks often at its workers, and judges them by that alone: its circuit breaker counts what fails against both workers
/// of a pair, so that one that is dead takes those with it that are well (docs/routers.md).
const ROUTER: [&str; 7] = [
    "--health-check-interval-secs",
    "1",
    "--health-check-timeout-secs",
    "2",
    "--health-success-threshold",
    "1",
    "--disable-circuit-breaker",
];
/// Longest time from a worker's return to its use by the router.
const RECOVERY: Duration = Duration::from_secs(60);
/// How long a client waits before it asks again, where the router has no worker for it.
const BACK_OFF: Duration = Duration::from_millis(250);
/// Clients that ask at the same time.
const CLIENTS: usize = 16;

/// Something that happens to a worker once so many requests are done.
struct Blow {
    after: usize,
    worker: usize,
    kind: Kill,
}

enum Kill {
    /// SIGKILL, and a start so much later.
    Start(Duration),
    /// SIGSTOP, and SIGCONT so much later.
    Stop(Duration),
}

/// What became of the requests.
#[derive(Debug, Default)]
struct Tally {
    right: usize,
    /// Those whose client left.
    left: usize,
    failed: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

/// Text of a book, from a word on.
fn book(from: usize, words: usize) -> String {
    let text = std::fs::read_to_string(root().join("assets/haystack/time-machine.txt")).expect("a book");
    text.split_whitespace().skip(2_000 + from).take(words).collect::<Vec<_>>().join(" ")
}

/// Requests of all forms, with prompts of one to seven chunks.
fn cases() -> Vec<Case> {
    let text = |from, words| json!({ "text": book(from, words) });
    let prompt = |from, words| json!({ "prompt": book(from, words) });
    let streamed = |extra| with(extra, json!({ "stream": true }));
    vec![
        chat(json!({})),
        chat(json!({ "stream": true })),
        completion(json!({})),
        completion(streamed(prompt(0, 60))),
        generate(json!({}), text(100, 20)),
        generate(json!({}), streamed(text(200, 30))),
        completion(prompt(300, 150)),
        completion(streamed(prompt(500, 250))),
        generate(json!({ "max_new_tokens": 24 }), text(900, 90)),
        generate(json!({ "max_new_tokens": 24 }), streamed(text(1_100, 180))),
        chat(json!({ "n": 2 })),
        chat(json!({ "n": 2, "stream": true })),
        completion(with(prompt(1_500, 450), json!({ "max_tokens": 4 }))),
        generate(json!({ "max_new_tokens": 1 }), text(2_000, 70)),
        completion(streamed(with(prompt(2_500, 40), json!({ "max_tokens": 32 })))),
        generate(json!({}), with(text(3_000, 25), json!({ "return_logprob": true }))),
    ]
}

/// Asks the router and says what became of it.
fn one(router: &str, case: &Case, want: &[Said], tally: &Mutex<Tally>) {
    let since = Instant::now();
    let heard = post(router, case).map(|reply| (case.said(&reply), reply));
    let mut tally = tally.lock().expect("no client panics");
    let wrong =
        |what: String| format!("{} {:.80}: {what}, after {:.1?}", case.path, case.body, since.elapsed());
    match heard {
        Some((Ok(said), _)) if said == want => tally.right += 1,
        Some((Ok(said), _)) => tally.wrong.push(wrong(format!("{said:?}, expected {want:?}"))),
        Some((Err(Refusal::Status(status, code)), _)) => {
            *tally.failed.entry(format!("{status} {code}")).or_default() += 1;
            drop(tally);
            if status == 503 {
                std::thread::sleep(BACK_OFF);
            }
        }
        Some((Err(Refusal::Event(code)), _)) => {
            *tally.failed.entry(format!("event {code}")).or_default() += 1
        }
        Some((Err(Refusal::Cut), _)) => *tally.failed.entry("connection broken".to_owned()).or_default() += 1,
        Some((Err(Refusal::Malformed(what)), _)) => tally.wrong.push(wrong(what)),
        None => tally.wrong.push(wrong("no answer".to_owned())),
    }
}

/// Asks the router and leaves: after the first bytes of a stream, or before the answer.
fn leave(router: &str, case: &Case, pause: Duration) {
    let Ok(mut stream) = TcpStream::connect(router) else { return };
    if try_send(&mut stream, "POST", case.path, "", &case.body.to_string()).is_ok() {
        let _ = stream.set_read_timeout(Some(pause));
        let _ = stream.read(&mut [0; 64]);
    }
}

/// Blows spread over the requests: these workers are killed in turn, and between two of the deaths others are stopped.
fn blows(requests: usize, killed: &[usize], stopped: &[(usize, Duration)]) -> Vec<Blow> {
    let kill = |(number, worker): (usize, &usize)| {
        let pause = Duration::from_millis(200 + 400 * (number as u64 % 3));
        (*worker, Kill::Start(pause))
    };
    let mut blows: Vec<(usize, Kill)> = killed.iter().enumerate().map(kill).collect();
    for (worker, pause) in stopped {
        blows.insert(blows.len() / 2, (*worker, Kill::Stop(*pause)));
    }
    let count = blows.len();
    let blow = |(number, (worker, kind))| Blow { after: requests * (number + 1) / (count + 1), worker, kind };
    blows.into_iter().enumerate().map(blow).collect()
}

/// Deals the blows as requests are done, each once the router has found those well that had the blows before: with both
/// workers of a role gone there is nothing to be seen but refusals.
fn strike(workers: &mut [Server], blows: &[Blow], done: &AtomicUsize, router: &Router) {
    for blow in blows {
        let until = Instant::now() + RECOVERY;
        while done.load(Ordering::Relaxed) < blow.after {
            std::thread::sleep(Duration::from_millis(5));
        }
        while !router.finds_all_well() {
            assert!(Instant::now() < until, "a worker does not come back: {}", router.said());
            std::thread::sleep(Duration::from_millis(50));
        }
        let worker = &mut workers[blow.worker];
        match blow.kind {
            Kill::Start(pause) => {
                worker.kill();
                std::thread::sleep(pause);
                worker.start_again();
            }
            Kill::Stop(pause) => {
                worker.signal("STOP");
                std::thread::sleep(pause);
                worker.signal("CONT");
            }
        }
    }
}

/// Every pair answers every case rightly, straight and without a router.
fn assert_all_pairs(workers: &[Server], cases: &[Case], want: &[Vec<Said>]) {
    for (number, (case, want)) in cases.iter().zip(want).enumerate() {
        let (prefill, decode) = (&workers[number % 2], &workers[2 + number / 2 % 2]);
        let [first, second] = meet(prefill, decode, case);
        assert!(first.is_some_and(|reply| reply.status == 200), "{}: {}", case.path, prefill.said());
        let second = second.unwrap_or_else(|| panic!("no answer: {}", decode.said()));
        assert_eq!(case.said(&second).as_ref(), Ok(want), "{} {}", case.path, case.body);
    }
}

fn shared_memory() -> usize {
    std::fs::read_dir("/dev/shm").map_or(0, |entries| entries.flatten().count())
}

/// Runs `requests` requests against two pairs over `transport` under blows.
fn chaos(transport: &str, requests: usize, killed: &[usize], stopped: &[(usize, Duration)]) {
    let cases = cases();
    let want: Vec<Vec<Said>> = {
        let single = Server::start(&SIZES[..3]);
        let answer = |case: &Case| {
            let reply = post(&single.address, case).expect("an answer");
            case.said(&reply).unwrap_or_else(|why| panic!("{why:?}: {}", reply.body))
        };
        cases.iter().map(answer).collect()
    };
    let shared = shared_memory();
    let mut workers: Vec<Server> = ["prefill", "prefill", "decode", "decode"]
        .into_iter()
        .map(|role| worker(role, transport, &SIZES))
        .collect();
    assert_all_pairs(&workers, &cases, &want);
    let before: Vec<Census> = workers.iter().map(census).collect();
    let addresses: Vec<String> = workers.iter().map(|worker| worker.address.clone()).collect();
    let router = {
        let [a, b, c, d] = [0, 1, 2, 3].map(|number| addresses[number].as_str());
        Router::start_with(Kind::Smg, Behind::Pairs(&[a, b], &[c, d]), &ROUTER)
    };
    let blows = blows(requests, killed, stopped);
    let (next, done, tally) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Tally::default()));
    let since = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| strike(&mut workers, &blows, &done, &router));
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= requests {
                        return;
                    }
                    // Neighbours in time are different requests in each round.
                    let of = (number + number / cases.len() * 5) % cases.len();
                    if number % 10 == 7 {
                        leave(
                            &router.address,
                            &cases[of],
                            Duration::from_millis(5 + number as u64 * 37 % 400),
                        );
                        tally.lock().expect("no client panics").left += 1;
                    } else {
                        one(&router.address, &cases[of], &want[of], &tally);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let tally = tally.into_inner().expect("no client panics");
    let failed: usize = tally.failed.values().sum();
    eprintln!(
        "{transport}: {requests} requests in {:.1?}, {} blows: {} right, {} left, {failed} failed {:?}, {} wrong; {} retries by the router",
        since.elapsed(),
        blows.len(),
        tally.right,
        tally.left,
        tally.failed,
        tally.wrong.len(),
        router.counter("smg_worker_retries_total"),
    );
    assert!(tally.wrong.is_empty(), "{}", tally.wrong.join("\n"));
    assert_eq!(tally.right + tally.left + failed, requests);
    assert!(tally.right * 2 > requests, "most requests failed: {tally:?}");
    // All of them are again what they were.
    assert_all_pairs(&workers, &cases, &want);
    drop(router);
    let pairs: Vec<(&Server, &Census)> = workers.iter().zip(&before).collect();
    assert_no_more(&pairs);
    assert!(shared_memory() <= shared, "files in /dev/shm were left");
}

#[test]
fn no_answer_is_wrong_while_workers_die() {
    if !Kind::Smg.installed() {
        return;
    }
    match full() {
        // Each is killed twice. One is stopped for a while, another for longer than its peers wait.
        true => {
            let stopped = [(0, Duration::from_secs(4)), (3, Duration::from_secs(12))];
            for transport in ["kv_transport/tcp", "kv_transport/shm"] {
                chaos(transport, 500, &[0, 2, 1, 3, 2, 0, 3, 1], &stopped);
            }
        }
        false => chaos("kv_transport/shm", 60, &[0, 3], &[]),
    }
}
