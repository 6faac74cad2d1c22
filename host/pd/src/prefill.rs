//! The control listener of a prefill worker.

use crate::group::{Group, GroupMessage, MOST_UNSAID, Membership, shown};
use crate::message::{Reserve, ToDecode, ToPrefill, VERSION, WireError, read, write};
use crate::{COMPONENTS, Fingerprint};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::HashMap;
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Decode workers that may be connected.
const MOST_PEERS: usize = 64;
/// Fingerprints that one of them may show.
const MOST_LAYOUTS: usize = 64;
/// Silence after which the other side counts as gone; it says every two seconds that it lives.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);
/// Time limit of one read, after which a thread looks around.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// What an engine hears.
#[derive(Debug)]
pub enum PrefillEvent {
    /// A decode worker asks for the KV of a room.
    Reserve {
        /// Number of the worker's connection.
        peer: u64,
        /// The layouts that the worker has for it.
        fingerprint: Arc<Fingerprint>,
        /// What it asks for.
        reserve: Box<Reserve>,
        /// The way back to it. It leads nowhere once the worker is gone.
        reply: Sender<ToDecode>,
    },
    /// A decode worker wants no more of a room.
    Abort {
        /// Number of its connection.
        peer: u64,
        /// The room.
        room: u64,
        /// Why.
        reason: String,
    },
    /// A decode worker is gone, with all its rooms.
    Gone {
        /// Number of its connection.
        peer: u64,
    },
}

/// Takes an event; false if nobody listens any more.
pub(crate) type Sink<E> = Arc<dyn Fn(E) -> bool + Send + Sync>;

/// A control listener. It ends when it is dropped.
pub struct PrefillSide {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    worker: String,
    group: Option<Arc<Group>>,
    sink: Sink<PrefillEvent>,
    stop: AtomicBool,
    peers: AtomicU64,
    open: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl PrefillSide {
    /// Listens for decode workers, and hands what they say to `sink`. `worker` names this worker in messages; those that are
    /// in `group` too become members of it.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub fn start(
        listen: SocketAddr,
        worker: &str,
        group: Option<Arc<Group>>,
        sink: impl Fn(PrefillEvent) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            worker: worker.to_owned(),
            group,
            sink: Arc::new(sink),
            stop: AtomicBool::new(false),
            peers: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            threads: Mutex::default(),
        });
        let thread = std::thread::Builder::new().name("pd-listen".into()).spawn({
            let shared = Arc::clone(&shared);
            move || listen_on(&listener, &shared)
        })?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// The address in use.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Decode workers that are connected.
    pub fn connected(&self) -> usize {
        self.shared.open.load(Ordering::Acquire)
    }
}

impl Drop for PrefillSide {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Threads look around within a second; a panic of one was printed.
        let listener = self.thread.take();
        let threads =
            std::mem::take(&mut *self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in listener.into_iter().chain(threads) {
            let _ = thread.join();
        }
    }
}

fn listen_on(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::Acquire) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        if shared.open.fetch_add(1, Ordering::AcqRel) >= MOST_PEERS {
            shared.open.fetch_sub(1, Ordering::AcqRel);
            let message = format!("{MOST_PEERS} decode workers are connected");
            let _ = write(&mut &stream, &ToDecode::Refused { message });
            continue;
        }
        let spawned = std::thread::Builder::new().name("pd-decode".into()).spawn({
            let shared = Arc::clone(shared);
            move || {
                if let Err(error) = serve(&shared, &stream) {
                    tracing::warn!(%error, "a decode worker's connection ended");
                }
                shared.open.fetch_sub(1, Ordering::AcqRel);
            }
        });
        let mut threads = shared.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(_) => {
                shared.open.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// Waits for a message until the other side was silent for too long or `stop` is set.
pub(crate) fn next<T: serde::de::DeserializeOwned>(
    from: &mut BufReader<&TcpStream>,
    stop: impl Fn() -> bool,
) -> Result<T, WireError> {
    let since = Instant::now();
    loop {
        match read(from) {
            Err(error) if error.is_quiet() && since.elapsed() < SILENCE && !stop() => {}
            read => return read,
        }
    }
}

/// Reads what one decode worker says until it is gone.
fn serve(shared: &Shared, stream: &TcpStream) -> Result<(), WireError> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let stop = || shared.stop.load(Ordering::Acquire);
    let mut from = BufReader::new(stream);
    let (worker, group) = match next(&mut from, stop)? {
        ToPrefill::Hello { version: VERSION, worker, group } => (worker, group),
        ToPrefill::Hello { version, .. } => {
            let message =
                format!("this worker speaks version {VERSION} of the control protocol, found {version}");
            return write(&mut &*stream, &ToDecode::Refused { message });
        }
        _ => return Err(WireError::Malformed("the first message is no hello".to_owned())),
    };
    // Whoever is not in this worker's group does not learn of it.
    let group = shared.group.as_ref().filter(|own| group.as_deref() == Some(own.name()));
    let (own, name) = (shared.worker.clone(), group.map(|group| group.name().to_owned()));
    write(&mut &*stream, &ToDecode::Welcome { worker: own, group: name })?;
    let peer = shared.peers.fetch_add(1, Ordering::AcqRel) + 1;
    let worker = shown(&worker, 80);
    tracing::info!(peer, worker, "decode worker connected");
    let (reply, replies) = unbounded();
    let writer = std::thread::Builder::new().name("pd-reply".into()).spawn({
        let stream = stream.try_clone()?;
        move || forward(&replies, &stream)
    })?;
    let member = group.map(|group| {
        let from =
            stream.peer_addr().map_or_else(|_| "nowhere".to_owned(), |address| address.ip().to_string());
        let (reply, own) = (reply.clone(), stream.try_clone().ok());
        group.join(format!("{worker} from {from}"), move |m| {
            if reply.len() >= MOST_UNSAID {
                // What cannot be said must not be missed: the connection ends, and that is heard at both ends.
                own.as_ref().map(|stream| stream.shutdown(std::net::Shutdown::Both));
                return false;
            }
            reply.send(ToDecode::Group(m)).is_ok()
        })
    });
    let ended = listen(shared, &mut from, (peer, member.as_ref()), &reply);
    (shared.sink)(PrefillEvent::Gone { peer });
    match member.is_some() && stop() {
        // The last that it writes.
        true => drop(reply.send(ToDecode::Group(GroupMessage::Leave))),
        // It ends with the connection, whoever still holds a way back.
        false => {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = reply.send(ToDecode::Pong);
        }
    }
    drop((reply, member));
    let _ = writer.join();
    let _ = stream.shutdown(std::net::Shutdown::Both);
    ended
}

/// Writes what the engine answers until the connection breaks.
fn forward(replies: &Receiver<ToDecode>, stream: &TcpStream) {
    for message in replies {
        let last = message == ToDecode::Group(GroupMessage::Leave);
        let sent = match write(&mut &*stream, &message) {
            // The message itself is at fault: the room must hear of it.
            Err(WireError::Malformed(why)) => match message {
                ToDecode::Done(done) => {
                    let (room, code) = (done.room, "E-PD-MESSAGE".to_owned());
                    write(&mut &*stream, &ToDecode::Failed { room, code, message: why })
                }
                _ => Ok(()),
            },
            sent => sent,
        };
        if sent.is_err() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if sent.is_err() || last {
            return;
        }
    }
}

fn listen(
    shared: &Shared,
    from: &mut BufReader<&TcpStream>,
    (peer, member): (u64, Option<&Membership>),
    reply: &Sender<ToDecode>,
) -> Result<(), WireError> {
    let mut layouts: HashMap<u64, Arc<Fingerprint>> = HashMap::new();
    loop {
        if reply.len() >= MOST_UNSAID {
            return Err(WireError::Malformed("it asks and does not listen".to_owned()));
        }
        let event = match next(from, || shared.stop.load(Ordering::Acquire)) {
            Ok(ToPrefill::Ping) => {
                let _ = reply.send(ToDecode::Pong);
                continue;
            }
            Ok(ToPrefill::Layout(fingerprint)) => {
                if layouts.len() >= MOST_LAYOUTS {
                    layouts.clear();
                }
                layouts.insert(fingerprint.digest(), Arc::new(fingerprint));
                continue;
            }
            Ok(ToPrefill::Reserve(reserve)) => {
                debug_assert_eq!(reserve.items.len(), COMPONENTS);
                let Some(fingerprint) = layouts.get(&reserve.layout).cloned() else {
                    let (room, code) = (reserve.room, "E-PD-FINGERPRINT".to_owned());
                    let message = "the reservation names a fingerprint that was not shown".to_owned();
                    let _ = reply.send(ToDecode::Failed { room, code, message });
                    continue;
                };
                PrefillEvent::Reserve { peer, fingerprint, reserve, reply: reply.clone() }
            }
            Ok(ToPrefill::Abort { room, reason }) => PrefillEvent::Abort { peer, room, reason },
            Ok(ToPrefill::Group(message)) => match member {
                Some(member) => {
                    member.heard(message)?;
                    continue;
                }
                None => return Err(WireError::Malformed("it is in no swap group of this worker".to_owned())),
            },
            Ok(ToPrefill::Hello { .. }) => return Err(WireError::Malformed("a second hello".to_owned())),
            Err(WireError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !(shared.sink)(event) {
            return Ok(());
        }
    }
}
