//! One worker of a pair ends with SIGKILL at a chosen moment: the other says so, has nothing left of it, and goes on with the
//! process that comes after it on the same port.

use hotseam_tests::answers::{Case, Refusal, Said, completion};
use hotseam_tests::http::Server;
use hotseam_tests::pairs::{Census, assert_no_more, census, meet, placed, post, worker};
use hotseam_tests::root;
use serde_json::json;
use std::time::{Duration, Instant};

/// A prompt of a dozen chunks, so that there is time between the first and the last.
const SIZES: [&str; 4] = [
    "engine.chunk=64",
    "engine.max_context=2048",
    "engine.threads=1",
    "disaggregation.bootstrap_timeout_seconds=20",
];
/// Longest time from a death to what the other worker says of it.
const SOON: Duration = Duration::from_secs(15);

/// A pair, a request, and its right answer.
struct Stage {
    prefill: Server,
    decode: Server,
    case: Case,
    want: Vec<Said>,
}

/// What a client of one worker got, in a thread of its own.
type Answer<'scope> = std::thread::ScopedJoinHandle<'scope, Result<Vec<Said>, Refusal>>;

impl Stage {
    fn new(transport: &str) -> Self {
        let text = std::fs::read_to_string(root().join("assets/haystack/time-machine.txt")).expect("a book");
        let prompt = text.split_whitespace().skip(2_000).take(500).collect::<Vec<_>>().join(" ");
        let case = completion(json!({ "prompt": prompt, "max_tokens": 48, "stream": true }));
        let single = Server::start(&SIZES[..3]);
        let want = case.said(&post(&single.address, &case).expect("an answer")).expect("an answer");
        let start = |role| worker(role, transport, &SIZES);
        Self { prefill: start("prefill"), decode: start("decode"), case, want }
    }

    /// Waits until the prefill worker has computed another chunk.
    fn computing(&self, before: u64) {
        while self.computed() <= before {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn computed(&self) -> u64 {
        counter(&self.prefill, "prompt_tokens_total")
    }

    /// Both answer, and rightly.
    fn assert_works(&self) {
        let [first, second] = meet(&self.prefill, &self.decode, &self.case);
        assert_eq!(first.map(|reply| reply.status), Some(200), "{}", self.prefill.said());
        let second = second.unwrap_or_else(|| panic!("{}", self.decode.said()));
        assert_eq!(self.case.said(&second).as_ref(), Ok(&self.want));
    }
}

fn counter(worker: &Server, name: &str) -> u64 {
    let state = worker.ask("GET", "/server_info", None).json();
    state["internal_states"][0][name].as_u64().expect("a number")
}

/// Asks a worker in a thread of its own.
fn ask<'scope>(scope: &'scope std::thread::Scope<'scope, '_>, address: &str, case: &Case) -> Answer<'scope> {
    let (address, case) = (address.to_owned(), case.clone());
    scope.spawn(move || post(&address, &case).map_or(Err(Refusal::Cut), |reply| case.said(&reply)))
}

#[test]
fn either_worker_is_killed_at_any_moment_and_comes_back() {
    for transport in ["kv_transport/tcp", "kv_transport/shm"] {
        let mut stage = Stage::new(transport);
        stage.assert_works();
        let before: [Census; 2] = [census(&stage.prefill), census(&stage.decode)];
        prefill_before(&mut stage);
        prefill_during(&mut stage);
        prefill_after(&mut stage);
        decode_during(&mut stage);
        assert_no_more(&[(&stage.prefill, &before[0]), (&stage.decode, &before[1])]);
    }
}

/// The decode worker asks while prefill is dead, and is answered by the process that comes after it.
fn prefill_before(stage: &mut Stage) {
    let case = placed(&stage.prefill, &stage.case);
    stage.prefill.kill();
    std::thread::scope(|scope| {
        let answer = ask(scope, &stage.decode.address, &case);
        std::thread::sleep(Duration::from_millis(100));
        stage.prefill.start_again();
        let first = ask(scope, &stage.prefill.address, &case);
        assert!(first.join().expect("no panic").is_ok(), "{}", stage.prefill.said());
        assert_eq!(answer.join().expect("no panic").as_ref(), Ok(&stage.want), "{}", stage.decode.said());
    });
}

/// Some pages are there when prefill dies.
fn prefill_during(stage: &mut Stage) {
    let (case, before) = (placed(&stage.prefill, &stage.case), stage.computed());
    std::thread::scope(|scope| {
        let answer = ask(scope, &stage.decode.address, &case);
        let first = ask(scope, &stage.prefill.address, &case);
        stage.computing(before);
        stage.prefill.kill();
        let since = Instant::now();
        assert_eq!(first.join().expect("no panic"), Err(Refusal::Cut));
        let said = answer.join().expect("no panic");
        assert_eq!(said, Err(Refusal::Status(500, "E-PD-PEER".to_owned())), "{}", stage.decode.said());
        assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    });
    stage.prefill.start_again();
    stage.assert_works();
}

/// Once decode has the KV it needs prefill no more.
fn prefill_after(stage: &mut Stage) {
    let case = placed(&stage.prefill, &stage.case);
    let before = counter(&stage.decode, "generation_tokens_total");
    std::thread::scope(|scope| {
        let answer = ask(scope, &stage.decode.address, &case);
        let first = ask(scope, &stage.prefill.address, &case);
        assert!(first.join().expect("no panic").is_ok(), "{}", stage.prefill.said());
        while counter(&stage.decode, "generation_tokens_total") == before {
            std::thread::sleep(Duration::from_millis(2));
        }
        stage.prefill.kill();
        assert_eq!(answer.join().expect("no panic").as_ref(), Ok(&stage.want), "{}", stage.decode.said());
    });
    stage.prefill.start_again();
    stage.assert_works();
}

/// Decode dies while it receives: prefill says so and keeps nothing.
fn decode_during(stage: &mut Stage) {
    let (case, before) = (placed(&stage.prefill, &stage.case), stage.computed());
    std::thread::scope(|scope| {
        let answer = ask(scope, &stage.decode.address, &case);
        let first = ask(scope, &stage.prefill.address, &case);
        stage.computing(before);
        stage.decode.kill();
        let since = Instant::now();
        assert_eq!(answer.join().expect("no panic"), Err(Refusal::Cut));
        let said = first.join().expect("no panic");
        assert_eq!(said, Err(Refusal::Status(500, "E-PD-PEER".to_owned())), "{}", stage.prefill.said());
        assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    });
    stage.decode.start_again();
    stage.assert_works();
}
