//! A decode worker's connections to prefill workers.

use crate::Fingerprint;
use crate::http;
use crate::message::{Done, Reserve, ToDecode, ToPrefill, VERSION, WireError, read, write};
use crate::prefill::{LOOK, SILENCE, Sink, next};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Prefill workers that may be known at once.
const MOST_LINKS: usize = 256;
/// How often a connection says that it lives.
const PING: Duration = Duration::from_secs(2);
/// Between two attempts to reach a worker.
const PAUSE: Duration = Duration::from_millis(50);
/// The registry's answer when all ranks are meant, and the rank of a worker that has one.
const TOPOLOGY: &str = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";
const RANK: &str = "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0";

/// How long to try.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For a prefill worker's registry and control connection.
    pub bootstrap: Duration,
}

/// What an engine hears.
#[derive(Debug)]
pub enum DecodeEvent {
    /// The KV of a room is in place.
    Done(Box<Done>),
    /// There will be no KV for a room.
    Failed {
        /// The room.
        room: u64,
        /// Stable code.
        code: String,
        /// What happened and what to do.
        message: String,
    },
}

enum Command {
    Reserve { fingerprint: Arc<Fingerprint>, reserve: Box<Reserve> },
    Abort { room: u64, reason: String },
}

/// Connections to prefill workers, made when they are first named. They end when this is dropped.
pub struct DecodeSide {
    worker: String,
    patience: Patience,
    sink: Sink<DecodeEvent>,
    stop: Arc<AtomicBool>,
    links: HashMap<(String, u16), Link>,
}

/// The way to a link's thread. It is taken away before the thread looks for the last time, so that no command is lost.
type Door = Arc<Mutex<Option<Sender<Command>>>>;

struct Link {
    door: Door,
    thread: JoinHandle<()>,
}

/// Hands a command in, or gives it back where nobody takes it any more.
fn enter(door: &Door, command: Command) -> Result<(), Command> {
    match &*door.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(commands) => commands.send(command).map_err(crossbeam_channel::SendError::into_inner),
        None => Err(command),
    }
}

fn shut(door: &Door) {
    drop(door.lock().unwrap_or_else(PoisonError::into_inner).take());
}

impl DecodeSide {
    /// `worker` names this worker in messages; `sink` takes what is heard.
    pub fn new(
        worker: &str,
        patience: Patience,
        sink: impl Fn(DecodeEvent) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (sink, stop) = (Arc::new(sink), Arc::default());
        Self { worker: worker.to_owned(), patience, sink, stop, links: HashMap::new() }
    }

    /// Asks the prefill worker whose registry is at `host:port` for the KV of a room. What comes of it is an event.
    pub fn reserve(&mut self, host: &str, port: u16, fingerprint: Arc<Fingerprint>, reserve: Box<Reserve>) {
        let room = reserve.room;
        if let Err(error) = self.tell(host, port, Command::Reserve { fingerprint, reserve }) {
            let (code, message) =
                ("E-PD-BOOTSTRAP".to_owned(), format!("no connection to {host}:{port}: {error}"));
            (self.sink)(DecodeEvent::Failed { room, code, message });
        }
    }

    /// Tells the prefill worker that a room is given up. No event of the room need follow.
    pub fn abort(&mut self, host: &str, port: u16, room: u64, reason: &str) {
        if let Some(link) = self.links.get(&(host.to_owned(), port)) {
            // A link that has ended has told the worker by ending.
            let _ = enter(&link.door, Command::Abort { room, reason: reason.to_owned() });
        }
    }

    fn tell(&mut self, host: &str, port: u16, command: Command) -> io::Result<()> {
        let key = (host.to_owned(), port);
        let command = match self.links.get(&key) {
            Some(link) => match enter(&link.door, command) {
                Ok(()) => return Ok(()),
                Err(command) => command,
            },
            None => command,
        };
        self.links.retain(|_, link| !link.thread.is_finished());
        if self.links.len() >= MOST_LINKS {
            return Err(io::Error::other(format!("{MOST_LINKS} prefill workers are connected")));
        }
        let (commands, received) = unbounded();
        // The receiver is here.
        let _ = commands.send(command);
        let door = Arc::new(Mutex::new(Some(commands)));
        let thread = std::thread::Builder::new().name("pd-prefill".into()).spawn({
            let (worker, patience, key) = (self.worker.clone(), self.patience, key.clone());
            let (sink, stop, door) = (Arc::clone(&self.sink), Arc::clone(&self.stop), Arc::clone(&door));
            move || run(&worker, patience, &key, (&door, &received), &sink, &stop)
        })?;
        self.links.insert(key, Link { door, thread });
        Ok(())
    }
}

impl Drop for DecodeSide {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for (_, link) in self.links.drain() {
            shut(&link.door);
            // A panic of it was printed.
            let _ = link.thread.join();
        }
    }
}

/// Rooms whose end was not reported.
type Rooms = Arc<Mutex<HashSet<u64>>>;

fn lock(rooms: &Rooms) -> MutexGuard<'_, HashSet<u64>> {
    rooms.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one prefill worker until the way to it breaks and nothing waits for another; the next reservation starts another
/// thread.
fn run(
    worker: &str,
    patience: Patience,
    (host, port): &(String, u16),
    (door, commands): (&Door, &Receiver<Command>),
    sink: &Sink<DecodeEvent>,
    stop: &Arc<AtomicBool>,
) {
    let place = format!("prefill worker {host}:{port}");
    let rooms = Rooms::default();
    let fail = |room, code: &str, message: &str| {
        sink(DecodeEvent::Failed { room, code: code.to_owned(), message: message.to_owned() });
    };
    // What came when a connection had broken: the process that comes after the one that is gone hears it first.
    let mut late = None;
    let (code, message) = loop {
        let stream = match open(worker, patience, host, *port, stop) {
            Ok(stream) => stream,
            Err(message) => break ("E-PD-BOOTSTRAP", format!("{place}: {message}")),
        };
        let (ended, unsent) = talk(&stream, (late.take(), commands), &rooms, sink, stop);
        let why =
            ended.err().map_or_else(|| "it closed the connection".to_owned(), |error| error.to_string());
        let message = format!("{place} is gone: {why}");
        let open: Vec<u64> = lock(&rooms).drain().collect();
        open.into_iter().for_each(|room| fail(room, "E-PD-PEER", &message));
        late = unsent.or_else(|| commands.try_recv().ok());
        if late.is_none() {
            break ("E-PD-PEER", message);
        }
    };
    // What was sent here in the meantime fails with it; what comes later finds the door shut.
    shut(door);
    for command in late.into_iter().chain(commands.try_iter()) {
        if let Command::Reserve { reserve, .. } = command {
            fail(reserve.room, code, &message);
        }
    }
}

/// A control connection: asks the registry where, and says hello there. Tries again until the patience is over.
fn open(
    worker: &str,
    patience: Patience,
    host: &str,
    port: u16,
    stop: &AtomicBool,
) -> Result<TcpStream, String> {
    let end = Instant::now() + patience.bootstrap;
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(PAUSE);
        let (why, again) = match attempt(worker, host, port, left) {
            Ok(stream) => return Ok(stream),
            Err(failed) => failed,
        };
        if !again || Instant::now() + PAUSE >= end || stop.load(Ordering::Acquire) {
            return Err(why);
        }
        std::thread::sleep(PAUSE);
    }
}

/// One attempt. Beside the reason of a failure stands whether another may do better.
fn attempt(worker: &str, host: &str, port: u16, left: Duration) -> Result<TcpStream, (String, bool)> {
    let ask = |path: &str| {
        let limit = left.min(SILENCE);
        http::get(host, port, path, limit).map_err(|error| (format!("its bootstrap registry: {error}"), true))
    };
    let (status, topology) = ask(TOPOLOGY)?;
    match status {
        200 => {}
        503 => return Err((format!("its bootstrap registry: {topology}"), true)),
        _ => {
            return Err((format!("its bootstrap registry answers {status}; is it a prefill worker?"), false));
        }
    }
    let sizes = ["attn_tp_size", "attn_cp_size", "dp_size", "pp_size"].map(|name| topology[name].as_u64());
    if sizes != [Some(1); 4] {
        let message =
            format!("its bootstrap registry tells of more ranks than one ({topology}); this worker has one");
        return Err((message, false));
    }
    let (status, rank) = ask(RANK)?;
    let address =
        rank["rank_ip"].as_str().zip(rank["rank_port"].as_u64().and_then(|port| u16::try_from(port).ok()));
    let Some((ip, rank_port)) = address.filter(|_| status == 200) else {
        return Err((format!("its bootstrap registry answers {status} for its rank"), true));
    };
    let io = |error: io::Error| (format!("its control port {ip}:{rank_port}: {error}"), true);
    let stream = http::connect(ip, rank_port, left.min(SILENCE)).map_err(io)?;
    stream.set_nodelay(true).map_err(io)?;
    stream.set_read_timeout(Some(SILENCE)).map_err(io)?;
    stream.set_write_timeout(Some(SILENCE)).map_err(io)?;
    let wire = |error: WireError| (format!("its control port {ip}:{rank_port}: {error}"), true);
    write(&mut &stream, &ToPrefill::Hello { version: VERSION, worker: worker.to_owned() }).map_err(wire)?;
    match read(&mut &stream).map_err(wire)? {
        ToDecode::Welcome { .. } => {}
        ToDecode::Refused { message } => return Err((message, false)),
        _ => return Err(("its control port answers something else than a welcome".to_owned(), false)),
    }
    stream.set_read_timeout(Some(LOOK)).map_err(io)?;
    Ok(stream)
}

/// Uses a connection until it breaks: how it ended, and the command that came too late for it.
fn talk(
    stream: &TcpStream,
    (first, commands): (Option<Command>, &Receiver<Command>),
    rooms: &Rooms,
    sink: &Sink<DecodeEvent>,
    stop: &Arc<AtomicBool>,
) -> (Result<(), WireError>, Option<Command>) {
    let ended = Arc::new(AtomicBool::new(false));
    let reader = stream.try_clone().and_then(|stream| {
        let (rooms, sink, stop, ended) =
            (Arc::clone(rooms), Arc::clone(sink), Arc::clone(stop), Arc::clone(&ended));
        std::thread::Builder::new().name("pd-done".into()).spawn(move || {
            let result = hear(&stream, &rooms, &sink, &stop);
            ended.store(true, Ordering::Release);
            result
        })
    });
    let reader = match reader {
        Ok(reader) => reader,
        Err(error) => return (Err(error.into()), first),
    };
    let said = say(stream, (first, commands), rooms, &ended);
    let _ = stream.shutdown(std::net::Shutdown::Both);
    let heard = reader.join().unwrap_or(Err(WireError::Closed));
    match said {
        // The writer ends well when it is told to, or when the reader knows why.
        Ok(late) => (heard, late),
        Err(error) => (Err(error), None),
    }
}

/// Writes commands until there can be no more or the reader has ended; returns a command that came after that.
fn say(
    stream: &TcpStream,
    (mut first, commands): (Option<Command>, &Receiver<Command>),
    rooms: &Rooms,
    ended: &AtomicBool,
) -> Result<Option<Command>, WireError> {
    let mut shown = HashSet::new();
    let mut pinged = Instant::now();
    loop {
        let command = match first.take() {
            // On a connection that breaks at once it fails, so that nothing goes round for ever.
            Some(command) => Some(command),
            None if ended.load(Ordering::Acquire) => return Ok(None),
            None => match commands.recv_timeout(LOOK) {
                Ok(command) if ended.load(Ordering::Acquire) => return Ok(Some(command)),
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            },
        };
        match command {
            Some(Command::Reserve { fingerprint, reserve }) => {
                lock(rooms).insert(reserve.room);
                if shown.insert(reserve.layout) {
                    write(&mut &*stream, &ToPrefill::Layout((*fingerprint).clone()))?;
                }
                write(&mut &*stream, &ToPrefill::Reserve(reserve))?;
            }
            Some(Command::Abort { room, reason }) => {
                if lock(rooms).remove(&room) {
                    write(&mut &*stream, &ToPrefill::Abort { room, reason })?;
                }
            }
            None => {}
        }
        if pinged.elapsed() >= PING {
            pinged = Instant::now();
            write(&mut &*stream, &ToPrefill::Ping)?;
        }
    }
}

/// Reads what the prefill worker says.
fn hear(
    stream: &TcpStream,
    rooms: &Rooms,
    sink: &Sink<DecodeEvent>,
    stop: &AtomicBool,
) -> Result<(), WireError> {
    let mut from = BufReader::new(stream);
    loop {
        let event = match next(&mut from, || stop.load(Ordering::Acquire))? {
            ToDecode::Pong => continue,
            ToDecode::Done(done) => DecodeEvent::Done(done),
            ToDecode::Failed { room, code, message } => DecodeEvent::Failed { room, code, message },
            ToDecode::Welcome { .. } | ToDecode::Refused { .. } => {
                return Err(WireError::Malformed("a second welcome".to_owned()));
            }
        };
        let room = match &event {
            DecodeEvent::Done(done) => done.room,
            DecodeEvent::Failed { room, .. } => *room,
        };
        // A room that was given up is not heard of any more.
        if lock(rooms).remove(&room) && !sink(event) {
            return Ok(());
        }
    }
}
