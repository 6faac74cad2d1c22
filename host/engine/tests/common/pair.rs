//! A prefill and a decode engine in this process that meet over the loopback, as two processes would.
#![allow(dead_code, reason = "no test uses all of it")]

use crate::common::{engine_of, model, plugins, rule, sizes, stock};
use hotseam_engine::{Bootstrap, Engine, EngineConfig, Event, Handle, PdSettings, Request, Role, Topology};
use hotseam_loader::Loader;
use hotseam_model::Model;
use hotseam_pd::Registry;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Serves a registry as the server does, one request a connection.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Api {
    pub(crate) fn of(registry: Arc<Registry>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (address, stop) = (listener.local_addr().expect("an address"), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let _ = stream.map(|stream| answer(&registry, &stream));
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().expect("once").join();
    }
}

fn answer(registry: &Registry, stream: &TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (status, value) = match Registry::serves(path) {
        true => registry.answer(method, path, query, &body),
        false => (404, serde_json::Value::Null),
    };
    let text = value.to_string();
    write!(&mut &*stream, "HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{text}", text.len())
}

/// Two engines.
pub(crate) struct PairOf {
    pub(crate) prefill: Engine,
    pub(crate) decode: Engine,
    pub(crate) api: Api,
}

/// A room that no other request of this process has.
pub(crate) fn room() -> u64 {
    static ROOMS: AtomicU64 = AtomicU64::new(1 << 40);
    ROOMS.fetch_add(1, Ordering::Relaxed)
}

/// Stock with another transport.
pub(crate) fn over(transport: &str) -> Vec<hotseam_slots::Rule> {
    let mut rules = stock();
    *rules.last_mut().expect("the transport") = rule("kv_transport", transport);
    rules
}

/// An engine of a role, of the sizes that tests have.
pub(crate) fn worker(role: Role, transport: &str, change: impl Fn(&mut EngineConfig)) -> Engine {
    worker_with(role, over(transport), change)
}

/// As [`worker`], with these rules.
pub(crate) fn worker_with(
    role: Role,
    rules: Vec<hotseam_slots::Rule>,
    change: impl Fn(&mut EngineConfig),
) -> Engine {
    worker_of(model(), role, rules, change)
}

/// As [`worker_with`], of this model.
pub(crate) fn worker_of(
    model: Arc<Model>,
    role: Role,
    rules: Vec<hotseam_slots::Rule>,
    change: impl Fn(&mut EngineConfig),
) -> Engine {
    let pd = PdSettings {
        bootstrap_timeout: Duration::from_secs(20),
        waiting_timeout: Duration::from_secs(60),
        ..PdSettings::default()
    };
    let mut config = EngineConfig { role, pd, topology: Topology::Paired, ..sizes() };
    change(&mut config);
    let loader = Loader::new(vec![plugins()]).expect("a plugin directory; build the plugins first");
    engine_of(model, config, loader, rules)
}

impl PairOf {
    pub(crate) fn new(transport: &str, change: impl Fn(&mut EngineConfig)) -> Self {
        let prefill = worker(Role::Prefill, transport, &change);
        let decode = worker(Role::Decode, transport, &change);
        Self::of(prefill, decode)
    }

    pub(crate) fn of(prefill: Engine, decode: Engine) -> Self {
        let api = Api::of(Arc::clone(prefill.registry().expect("a prefill worker has one")));
        Self { prefill, decode, api }
    }

    /// The request with a place to meet.
    pub(crate) fn placed(&self, request: &Request, room: u64) -> Request {
        let host = self.api.address.ip().to_string();
        let bootstrap = Bootstrap { host, port: self.api.address.port(), room, hold: false };
        Request { disaggregation: Some(bootstrap), ..request.clone() }
    }

    /// Hands the request to both, as a router does.
    pub(crate) fn submit(&self, request: &Request) -> (Handle, Handle) {
        let placed = self.placed(request, room());
        let prefill = self.prefill.submit(placed.clone()).expect("prefill takes it");
        (prefill, self.decode.submit(placed).expect("decode takes it"))
    }

    /// Waits until nothing is open on either side, and asserts that all pages are free.
    pub(crate) fn assert_quiet(&self) {
        let start = Instant::now();
        let busy = |engine: &Engine| {
            let stats = engine.stats();
            stats.running + stats.waiting + stats.rooms > 0 || stats.free_pages != stats.total_pages
        };
        while busy(&self.prefill) || busy(&self.decode) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "prefill {:?}, decode {:?}",
                self.prefill.stats(),
                self.decode.stats()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Tokens with their log-probabilities' bits, and the logits of every row.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Heard {
    pub(crate) tokens: Vec<(u32, u32)>,
    pub(crate) logits: Vec<(u32, Vec<f32>)>,
}

/// All that a request hears; `Err` is its failure.
pub(crate) fn hear(handle: &Handle) -> Result<Heard, (String, String)> {
    let mut heard = Heard::default();
    loop {
        match handle.recv() {
            Some(Event::Token { id, logprob, .. }) => heard.tokens.push((id, logprob.to_bits())),
            Some(Event::Prompt { .. }) => {}
            Some(Event::Logits { position, logits }) => heard.logits.push((position, logits)),
            Some(Event::Done { .. }) => return Ok(heard),
            Some(Event::Failed { code, message }) => return Err((code, message)),
            None => return Err(("E-ENGINE-STOPPED".into(), "the engine stopped".into())),
        }
    }
}
