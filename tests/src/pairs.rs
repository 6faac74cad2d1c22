//! Prefill and decode workers in processes of their own, which keep their ports when they are started again.

use crate::answers::{Case, with};
use crate::http::{Reply, Server, reply, try_send};
use crate::root;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time for what requests have left behind to go: connections that routers keep, threads that wait for work.
const SETTLE: Duration = Duration::from_secs(30);
/// Longest silence of an answer.
const SILENCE: Duration = Duration::from_secs(240);

/// Starts a worker of a role over a transport, on a port that stays its own.
pub fn worker(role: &str, transport: &str, overrides: &[&str]) -> Server {
    let listen = format!("server.listen=127.0.0.1:{}", own_port());
    let carrier = format!("assignments.live[4].use={transport}");
    let overrides = [overrides, &[listen.as_str(), carrier.as_str()]].concat();
    Server::serve(&root().join(format!("configs/pd-{role}.yaml")), &overrides)
}

/// A port of the loopback below those that the system gives to connections, one of which could have it while the worker is
/// dead.
fn own_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = 20_000 + (std::process::id() % 1_000) as u16 * 12;
    loop {
        let port = begin + NEXT.fetch_add(1, Ordering::Relaxed) % 12;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Posts a case to `address`; `None` if no answer begins.
pub fn post(address: &str, case: &Case) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(SILENCE)).ok()?;
    try_send(&mut stream, "POST", case.path, "", &case.body.to_string()).ok()?;
    reply(stream)
}

/// A case with a place to meet at a prefill worker, in a room of its own.
pub fn placed(prefill: &Server, case: &Case) -> Case {
    static ROOMS: AtomicU64 = AtomicU64::new(1 << 50);
    let (host, port) = prefill.address.rsplit_once(':').expect("host and port");
    let place = json!({
        "bootstrap_host": host,
        "bootstrap_port": port.parse::<u16>().expect("a port"),
        "bootstrap_room": ROOMS.fetch_add(100, Ordering::Relaxed),
    });
    Case { path: case.path, body: with(case.body.clone(), place) }
}

/// Sends a case to a prefill and to a decode worker as the routers of SGLang do; returns what both answer.
pub fn meet(prefill: &Server, decode: &Server, case: &Case) -> [Option<Reply>; 2] {
    let case = placed(prefill, case);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| post(&prefill.address, &case));
        let second = post(&decode.address, &case);
        [first.join().expect("no panic"), second]
    })
}

/// What a worker has of each kind.
pub type Census = BTreeMap<String, usize>;

/// Threads and open files of a worker by kind, files that it made, and what it says of requests, once they stay the same.
/// Threads that come and go with requests (those of HTTP) are not counted.
pub fn census(worker: &Server) -> Census {
    let until = Instant::now() + SETTLE;
    let mut before = count(worker);
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = count(worker);
        if now == before || Instant::now() > until {
            return now;
        }
        before = now;
    }
}

fn count(worker: &Server) -> Census {
    let mut census = Census::new();
    let mut count = |kind: String| *census.entry(kind).or_default() += 1;
    let process = format!("/proc/{}", worker.pid());
    for task in std::fs::read_dir(format!("{process}/task")).expect("a process").flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if !name.starts_with("hotseam-http") {
            count(format!("thread {}", name.trim()));
        }
    }
    for file in std::fs::read_dir(format!("{process}/fd")).expect("a process").flatten() {
        let target = std::fs::read_link(file.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        // `socket:[1234]` and the like, or a path.
        let kind = target.split_once(":[").map_or("path", |(kind, _)| kind);
        count(format!("file {kind}"));
    }
    for map in std::fs::read_to_string(format!("{process}/maps")).expect("a process").lines() {
        if map.contains("/memfd:") {
            count("mapped memory".to_owned());
        }
    }
    for (kind, dir) in [("temporary files", worker.temporary()), ("files of its state", worker.state())] {
        census.insert(kind.to_owned(), files(&dir));
    }
    let state = worker.ask("GET", "/server_info", None).json()["internal_states"][0].clone();
    for key in ["num_running_reqs", "num_waiting_reqs", "num_rooms", "num_used_tokens"] {
        census.insert(key.to_owned(), state[key].as_u64().expect("a number") as usize);
    }
    census
}

/// Files below a directory.
fn files(dir: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

/// Waits until workers have no more of anything than each had before.
///
/// # Panics
/// If one still has, which is told.
pub fn assert_no_more(workers: &[(&Server, &Census)]) {
    let until = Instant::now() + SETTLE;
    loop {
        let left: Vec<String> = workers.iter().filter_map(|(worker, before)| left(worker, before)).collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "left behind: {}", left.join("\n"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What a worker has more of than before.
fn left(worker: &Server, before: &Census) -> Option<String> {
    let more: Vec<String> = count(worker)
        .iter()
        .map(|(kind, count)| (kind, count, before.get(kind).copied().unwrap_or(0)))
        .filter(|(_, count, before)| *count > before)
        .map(|(kind, count, before)| format!("{kind}: {count}, at most {before}"))
        .collect();
    (!more.is_empty()).then(|| format!("{}: {}", worker.address, more.join("; ")))
}
