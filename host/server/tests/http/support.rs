//! A server over a scripted engine, and a client that speaks HTTP byte by byte.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hotseam_encoding::Tokenizer;
use hotseam_engine::{Event, FinishReason, Request, Role, StopToken, SubmitError};
use hotseam_server::{Backend, Load, ModelInfo, Running, Served, Server, ServerOptions, Waited};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// What the scripted engine says and sees.
#[derive(Default)]
pub(crate) struct Script {
    /// Text of every answer; an end-of-sentence token follows.
    pub(crate) text: &'static str,
    /// Time between tokens.
    pub(crate) pause: Duration,
    /// Refuse requests as a full engine does.
    pub(crate) full: AtomicBool,
    /// Fail after this many tokens.
    pub(crate) fail_after: Option<usize>,
    /// What it does of a request.
    pub(crate) role: Role,
    /// How often it was told to forget.
    pub(crate) flushed: AtomicUsize,
    /// Requests that came.
    pub(crate) seen: Mutex<Vec<Request>>,
    /// Requests whose handle was dropped before the end.
    pub(crate) cancelled: AtomicUsize,
}

pub(crate) struct Fake(pub(crate) Arc<Script>, Tokenizer);

impl Backend for Fake {
    fn submit(&self, request: Request) -> Result<Box<dyn Running>, SubmitError> {
        if self.0.full.load(Ordering::SeqCst) {
            return Err(SubmitError::Full(32));
        }
        let ids = self.1.encode(self.0.text).expect("encodes");
        let stop = request.stop_tokens.contains(&1) && ids.len() < request.max_tokens;
        let shown = ids.len().min(request.max_tokens);
        let top =
            |id: u32| (0..request.logprobs as u32).map(|rank| (id + rank, -0.5 - rank as f32)).collect();
        let told =
            request.prompt_logprobs.map_or(&[][..], |start| request.prompt.get(start..).unwrap_or(&[]));
        let prompt = told.iter().map(|id| Event::Prompt { id: *id, logprob: -0.25, top: top(*id) });
        let answer = ids[..shown].iter().map(|id| Event::Token { id: *id, logprob: -0.5, top: top(*id) });
        let mut events: Vec<Event> = prompt.chain(answer).collect();
        let reason = if stop { FinishReason::Stop } else { FinishReason::Length };
        events.push(Event::Done {
            reason,
            stop: stop.then(|| StopToken { id: 1, logprob: -0.125, top: top(1) }),
            prompt_tokens: request.prompt.len(),
            completion_tokens: shown + usize::from(stop),
        });
        if let Some(after) = self.0.fail_after {
            events.truncate(after);
            let message = "secret of /internal/path".to_owned();
            events.push(Event::Failed { code: "E-PLUG-501".to_owned(), message });
        }
        self.0.seen.lock().expect("unpoisoned").push(request);
        events.reverse();
        Ok(Box::new(Scripted { script: self.0.clone(), events: Mutex::new(events) }))
    }

    fn fingerprint(&self, name: &str) -> Option<String> {
        self.assignments().iter().any(|known| known == name).then(|| format!("fp_{name}"))
    }

    fn assignments(&self) -> Vec<String> {
        vec!["live".to_owned(), "suspects".to_owned()]
    }

    fn role(&self) -> Role {
        self.0.role
    }

    fn load(&self) -> Load {
        Load {
            steps: 5,
            running: 2,
            waiting: 1,
            max_running: 8,
            rooms: 3,
            used_tokens: 512,
            total_tokens: 4096,
            page_tokens: 256,
            chunk: 512,
            prompt_tokens: 100,
            generated_tokens: 10,
        }
    }

    fn flush(&self) -> bool {
        self.0.flushed.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn alive(&self) -> bool {
        true
    }
}

struct Scripted {
    script: Arc<Script>,
    /// Events to come, last first.
    events: Mutex<Vec<Event>>,
}

impl Running for Scripted {
    fn wait(&self, patience: Duration) -> Waited {
        if self.script.pause > patience {
            std::thread::sleep(patience);
            return Waited::Quiet;
        }
        std::thread::sleep(self.script.pause);
        self.events.lock().expect("unpoisoned").pop().map_or(Waited::Gone, Waited::Event)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if !self.events.lock().expect("unpoisoned").is_empty() {
            self.script.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A running server.
pub(crate) struct Site {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) script: Arc<Script>,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) task: tokio::task::JoinHandle<()>,
}

/// Starts a server; `ready: false` leaves the model loading.
pub(crate) async fn start(script: Script, ready: bool) -> Site {
    let tokenizer =
        Tokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/nano-v4")).expect("loads");
    let script = Arc::new(script);
    let mut options = ServerOptions::new("127.0.0.1:0".parse().expect("an address"));
    options.max_choices = 8;
    options.body_limit = 1 << 16;
    options.grace = Duration::from_millis(300);
    let server = Server::bind(options).await.expect("binds");
    let address = server.address();
    if ready {
        let model = ModelInfo { id: "nano-v4".to_owned(), created: 7, max_context: 8192, vocab_size: 4096 };
        let backend = Arc::new(Fake(script.clone(), tokenizer.clone()));
        server.handle().serve(Served { backend, tokenizer, model });
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(server.run(async move {
        let _ = stopped.await;
    }));
    Site { address, script, stop: Some(stop), task }
}

/// A response taken apart.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn parse(raw: &[u8]) -> Self {
        let raw = String::from_utf8(raw.to_vec()).expect("UTF-8");
        let (head, mut rest) = raw.split_once("\r\n\r\n").expect("a head");
        let mut body = rest.to_owned();
        if head.to_lowercase().contains("transfer-encoding: chunked") {
            body.clear();
            while let Some((size, tail)) = rest.split_once("\r\n") {
                let size = usize::from_str_radix(size, 16).expect("a chunk size");
                body += &tail[..size];
                rest = &tail[size + 2..];
            }
        }
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        Self { status, head: head.to_lowercase(), body }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The error's code; all four keys must be there.
    pub(crate) fn code(&self) -> String {
        let error = &self.json()["error"];
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "{key} is missing in {error}");
        }
        error["code"].as_str().expect("a code").to_owned()
    }

    /// The events of a stream; it must end with `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events: Vec<&str> = self.body.split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{}", self.body);
        let parse = |event: &str| {
            serde_json::from_str(event.strip_prefix("data: ").expect("a data line")).expect("JSON")
        };
        events.into_iter().map(parse).collect()
    }
}

impl Site {
    pub(crate) async fn connect(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("connects");
        stream.write_all(request.as_bytes()).await.expect("writes");
        stream
    }

    /// Sends `request` as it is and reads until the server closes.
    pub(crate) async fn raw(&self, request: &str) -> Answer {
        let mut stream = self.connect(request).await;
        let mut raw = Vec::new();
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut raw))
            .await
            .expect("an answer in time")
            .expect("reads");
        Answer::parse(&raw)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.raw(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.raw(&post(path, body)).await
    }

    /// Waits until `count` requests were cancelled.
    pub(crate) async fn cancelled(&self, count: usize) {
        for _ in 0..200 {
            if self.script.cancelled.load(Ordering::SeqCst) == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("cancelled {} of {count}", self.script.cancelled.load(Ordering::SeqCst));
    }
}

/// A POST request as bytes.
pub(crate) fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\
         \r\n\r\n{body}",
        body.len()
    )
}
