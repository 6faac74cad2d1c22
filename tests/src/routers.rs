//! Real routers in front of servers, for tests over the wire: `smg`, `sglang-router` and `vllm-router` as PyPI has them.

use crate::http::{Answer, answer, send};
use crate::root;
use serde_json::Value;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a router to find its workers well; `smg` first asks each of them for gRPC.
const PATIENCE: Duration = Duration::from_secs(120);

/// A router of PyPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `smg`, the Shepherd Model Gateway.
    Smg,
    /// `sglang-router`, which came before it.
    Sglang,
    /// `vllm-router`.
    Vllm,
}

/// What stands behind a router, by `host:port`.
#[derive(Debug, Clone, Copy)]
pub enum Behind<'a> {
    /// Workers that do all of a request.
    Singles(&'a [&'a str]),
    /// Prefill workers, then decode workers.
    Pairs(&'a [&'a str], &'a [&'a str]),
}

/// A running router; it is ended when dropped.
pub struct Router {
    process: Child,
    /// `127.0.0.1:port`.
    pub address: String,
    /// Where it tells its counters.
    metrics: String,
    log: tempfile::TempDir,
}

/// The Python that has the routers: `HOTSEAM_ROUTERS`, or that of `.venv`.
fn python() -> PathBuf {
    std::env::var_os("HOTSEAM_ROUTERS").map_or_else(|| root().join(".venv/bin/python"), PathBuf::from)
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Smg, Self::Sglang, Self::Vllm];

    /// Its package.
    pub fn package(self) -> &'static str {
        match self {
            Self::Smg => "smg",
            Self::Sglang => "sglang_router",
            Self::Vllm => "vllm_router",
        }
    }

    /// Whether it is installed; says what is skipped if it is not.
    pub fn installed(self) -> bool {
        let find = format!(
            "import importlib.util, sys; sys.exit(importlib.util.find_spec('{}') is None)",
            self.package()
        );
        let found = Command::new(python()).args(["-c", &find]).status().is_ok_and(|status| status.success());
        if !found {
            eprintln!("skipped: no {} in {}; scripts/test installs it", self.package(), python().display());
        }
        found
    }

    fn arguments(self, behind: Behind<'_>) -> Vec<String> {
        let url = |address: &&str| format!("http://{address}");
        let mut arguments: Vec<String> = match self {
            Self::Smg => vec!["smg.cli".into(), "launch".into(), "--disable-tokenizer-autoload".into()],
            Self::Sglang => vec!["sglang_router.launch_router".into()],
            Self::Vllm => vec!["vllm_router.launch_router".into()],
        };
        arguments.extend(["--policy", "round_robin"].map(str::to_owned));
        match behind {
            Behind::Singles(workers) => {
                arguments.push("--worker-urls".into());
                arguments.extend(workers.iter().map(url));
            }
            Behind::Pairs(prefill, decode) => {
                let contract = match self {
                    Self::Smg | Self::Sglang => "--pd-disaggregation",
                    Self::Vllm => "--vllm-pd-disaggregation",
                };
                arguments.push(contract.into());
                for worker in prefill {
                    arguments.extend(["--prefill".into(), url(worker)]);
                    if self != Self::Vllm {
                        // The registry is served where the requests are.
                        arguments.extend(worker.rsplit(':').next().map(str::to_owned));
                    }
                }
                arguments.extend(decode.iter().flat_map(|worker| ["--decode".into(), url(worker)]));
            }
        }
        arguments
    }
}

impl Router {
    /// Starts a router and waits until it finds all workers well.
    pub fn start(kind: Kind, behind: Behind<'_>) -> Self {
        Self::start_with(kind, behind, &[])
    }

    /// As [`Router::start`], with more arguments.
    pub fn start_with(kind: Kind, behind: Behind<'_>, more: &[&str]) -> Self {
        let (port, metrics) = (free_port(), free_port());
        let log = tempfile::tempdir().expect("a temporary directory");
        let file = || std::fs::File::options().create(true).append(true).open(log.path().join("log"));
        let process = Command::new(python())
            .arg("-m")
            .args(kind.arguments(behind))
            .args([
                "--host",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--prometheus-port",
                &metrics.to_string(),
            ])
            .args(more)
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::null())
            .stdout(file().expect("a log"))
            .stderr(file().expect("a log"))
            .spawn()
            .expect("a router");
        let mut router = Self {
            process,
            address: format!("127.0.0.1:{port}"),
            metrics: format!("127.0.0.1:{metrics}"),
            log,
        };
        let until = Instant::now() + PATIENCE;
        while !router.finds_all_well() {
            let ended = router.process.try_wait().expect("its state");
            assert!(
                ended.is_none() && Instant::now() < until,
                "{kind:?} is not ready, exit {ended:?}: {}",
                router.said()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        router
    }

    /// Whether it would use every worker now.
    pub fn finds_all_well(&self) -> bool {
        let Ok(stream) = TcpStream::connect(&self.address) else { return false };
        let found = exchange(stream, "GET", "/readiness", "");
        let well = |part: &Value, well: &str, all: &str| part[well] == part[all] && part[well] != 0;
        found.status == 200
            && match found.json() {
                state if state.get("prefill").is_some() => {
                    ["prefill", "decode"].iter().all(|part| well(&state[*part], "healthy", "total"))
                }
                state => well(&state, "healthy_workers", "total_workers"),
            }
    }

    /// Posts JSON.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &body.to_string())
    }

    /// Asks and waits for the whole answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let stream = TcpStream::connect(&self.address)
            .unwrap_or_else(|error| panic!("no connection ({error}): {}", self.said()));
        exchange(stream, method, path, body)
    }

    /// Sum of one of its counters over all labels.
    pub fn counter(&self, name: &str) -> u64 {
        let stream = TcpStream::connect(&self.metrics).expect("a connection");
        let text = exchange(stream, "GET", "/metrics", "").body;
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// The end of its log.
    pub fn said(&self) -> String {
        let log = std::fs::read(self.log.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(4000)..]).into_owned()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn exchange(mut stream: TcpStream, method: &str, path: &str, body: &str) -> Answer {
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
    send(&mut stream, method, path, "", body);
    answer(stream)
}

/// A port of the loopback that nobody listens on now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    listener.local_addr().expect("its address").port()
}
