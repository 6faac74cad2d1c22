//! A decode worker's connections to prefill workers.

use crate::Fingerprint;
use crate::group::{Group, GroupMessage, MOST_UNSAID, Membership};
use crate::http;
use crate::message::{Done, Reserve, ToDecode, ToPrefill, VERSION, WireError, read, write};
use crate::prefill::{LOOK, SILENCE, Sink, next};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::collections::{HashMap, HashSet, VecDeque};
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
/// Between two looks for members of a swap group that are not connected.
const AGAIN: Duration = Duration::from_secs(1);
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
    /// A room is to be asked for once more, on what this worker then serves with.
    Again {
        /// The room.
        room: u64,
    },
}

enum Command {
    Reserve { fingerprint: Arc<Fingerprint>, reserve: Box<Reserve> },
    Abort { room: u64, reason: String },
    Group(GroupMessage),
}

/// Connections to prefill workers, made when they are first named. They end when this is dropped.
pub struct DecodeSide {
    own: Own,
    links: HashMap<Place, Link>,
    /// When members of the group that are not connected were last looked for.
    looked: Option<Instant>,
}

/// Host and port of a prefill worker's API.
type Place = (String, u16);

/// What every connection has of this worker.
#[derive(Clone)]
struct Own {
    worker: String,
    patience: Patience,
    sink: Sink<DecodeEvent>,
    stop: Arc<AtomicBool>,
    group: Option<Arc<Group>>,
    /// Members of the group that are to be connected as long as they live.
    members: Arc<Mutex<HashSet<Place>>>,
}

/// The way to a link's thread. It is taken away before the thread looks for the last time, so that no command is lost.
type Door = Arc<Mutex<Option<Sender<Command>>>>;

struct Link {
    door: Door,
    thread: JoinHandle<()>,
}

/// Hands a command in, or gives it back where nobody takes it any more.
fn enter(door: &Door, command: Command) -> Result<(), Command> {
    match &*lock(door) {
        Some(commands) => commands.send(command).map_err(crossbeam_channel::SendError::into_inner),
        None => Err(command),
    }
}

fn shut(door: &Door) {
    drop(lock(door).take());
}

impl DecodeSide {
    /// `worker` names this worker in messages; `sink` takes what is heard.
    pub fn new(
        worker: &str,
        patience: Patience,
        sink: impl Fn(DecodeEvent) -> bool + Send + Sync + 'static,
    ) -> Self {
        let own = Own {
            worker: worker.to_owned(),
            patience,
            sink: Arc::new(sink),
            stop: Arc::default(),
            group: None,
            members: Arc::default(),
        };
        Self { own, links: HashMap::new(), looked: None }
    }

    /// In a swap group: prefill workers that are in it too become members of it. Those in `expected` are connected from the
    /// start, others once a request has named them; who of them goes is looked for until it is back.
    pub fn in_group(mut self, group: Arc<Group>, expected: &[(String, u16)]) -> Self {
        expected.iter().for_each(|(host, port)| group.expect(&format!("{host}:{port}")));
        lock(&self.own.members).extend(expected.iter().cloned());
        self.own.group = Some(group);
        self
    }

    /// Looks for members of the group that are not connected, now and then. To be called often.
    pub fn look_for_members(&mut self) {
        if self.own.group.is_none() || self.looked.is_some_and(|looked| looked.elapsed() < AGAIN) {
            return;
        }
        self.looked = Some(Instant::now());
        let gone = |place: &&Place| self.links.get(*place).is_none_or(|link| link.thread.is_finished());
        let gone: Vec<Place> = lock(&self.own.members).iter().filter(gone).cloned().collect();
        for place in gone {
            if let Err(error) = self.link(place, None) {
                tracing::warn!(%error, "no connection for a member of the swap group");
            }
        }
    }

    /// Asks the prefill worker whose registry is at `host:port` for the KV of a room. What comes of it is an event.
    pub fn reserve(&mut self, host: &str, port: u16, fingerprint: Arc<Fingerprint>, reserve: Box<Reserve>) {
        let room = reserve.room;
        if let Err(error) = self.tell(host, port, Command::Reserve { fingerprint, reserve }) {
            let (code, message) =
                ("E-PD-BOOTSTRAP".to_owned(), format!("no connection to {host}:{port}: {error}"));
            (self.own.sink)(DecodeEvent::Failed { room, code, message });
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
        self.link(key, Some(command))
    }

    /// Starts a connection, with the first that it is to say.
    fn link(&mut self, place: Place, first: Option<Command>) -> io::Result<()> {
        self.links.retain(|_, link| !link.thread.is_finished());
        if self.links.len() >= MOST_LINKS {
            return Err(io::Error::other(format!("{MOST_LINKS} prefill workers are connected")));
        }
        let (commands, received) = unbounded();
        if let Some(command) = first {
            // The receiver is here.
            let _ = commands.send(command);
        }
        let door = Arc::new(Mutex::new(Some(commands)));
        let thread = std::thread::Builder::new().name("pd-prefill".into()).spawn({
            let (own, place, door) = (self.own.clone(), place.clone(), Arc::clone(&door));
            move || run(&own, &place, &door, &received)
        })?;
        self.links.insert(place, Link { door, thread });
        Ok(())
    }
}

impl Drop for DecodeSide {
    fn drop(&mut self) {
        self.own.stop.store(true, Ordering::Release);
        for (_, link) in self.links.drain() {
            shut(&link.door);
            // A panic of it was printed.
            let _ = link.thread.join();
        }
    }
}

/// Rooms whose end was not reported.
type Rooms = Arc<Mutex<HashSet<u64>>>;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one prefill worker until the way to it breaks and nothing waits for another; the next reservation starts another
/// thread. The door leads to `commands`.
fn run(own: &Own, place: &Place, door: &Door, commands: &Receiver<Command>) {
    let (host, port) = place;
    let name = format!("prefill worker {host}:{port}");
    let rooms = Rooms::default();
    let fail = |room, code: &str, message: &str| {
        (own.sink)(DecodeEvent::Failed { room, code: code.to_owned(), message: message.to_owned() });
    };
    // What came when a connection had broken: the process that comes after the one that is gone hears it first.
    let mut late = VecDeque::new();
    let (code, message) = loop {
        let waits = || !late.is_empty() || !commands.is_empty();
        let (stream, in_group) = match open(own, host, *port, &waits) {
            Ok(open) => open,
            Err(message) => break ("E-PD-BOOTSTRAP", format!("{name}: {message}")),
        };
        let group = own.group.as_ref().filter(|_| in_group);
        let member = group.map(|group| {
            lock(&own.members).insert(place.clone());
            let (door, own) = (Arc::clone(door), stream.try_clone().ok());
            group.join(format!("{host}:{port}"), move |m| {
                let room = lock(&door).as_ref().is_some_and(|commands| commands.len() < MOST_UNSAID);
                if !room {
                    // What cannot be said must not be missed: the connection ends, and that is heard at both ends.
                    own.as_ref().map(|stream| stream.shutdown(std::net::Shutdown::Both));
                }
                room && enter(&door, Command::Group(m)).is_ok()
            })
        });
        let left = member.as_ref().map(Membership::left);
        let ended = talk(own, &stream, (&mut late, commands), &rooms, member);
        if left.is_some_and(|left| left.load(Ordering::Acquire)) {
            lock(&own.members).remove(place);
        }
        let why =
            ended.err().map_or_else(|| "it closed the connection".to_owned(), |error| error.to_string());
        let message = format!("{name} is gone: {why}");
        let open: Vec<u64> = lock(&rooms).drain().collect();
        open.into_iter().for_each(|room| fail(room, "E-PD-PEER", &message));
        // What else was said was about the connection that is gone.
        late.extend(commands.try_iter());
        late.retain(|command| matches!(command, Command::Reserve { .. }));
        if late.is_empty() {
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

/// Shortest time that is left for an attempt: the last one would otherwise fail for want of time, and its reason be told.
const ATTEMPT: Duration = Duration::from_millis(500);

/// A control connection: asks the registry where, and says hello there; beside it stands whether both are in one group. Tries
/// again until the patience is over, or for nobody who waits once.
fn open(own: &Own, host: &str, port: u16, waits: &dyn Fn() -> bool) -> Result<(TcpStream, bool), String> {
    let end = Instant::now() + own.patience.bootstrap;
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(ATTEMPT);
        let (why, again) = match attempt(own, host, port, left) {
            Ok(open) => return Ok(open),
            Err(failed) => failed,
        };
        let over = Instant::now() + PAUSE >= end || !waits() || own.stop.load(Ordering::Acquire);
        if !again || over {
            return Err(why);
        }
        std::thread::sleep(PAUSE);
    }
}

/// One attempt. Beside the reason of a failure stands whether another may do better.
fn attempt(own: &Own, host: &str, port: u16, left: Duration) -> Result<(TcpStream, bool), (String, bool)> {
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
    let group = own.group.as_ref().map(|group| group.name().to_owned());
    let hello = ToPrefill::Hello { version: VERSION, worker: own.worker.clone(), group: group.clone() };
    write(&mut &stream, &hello).map_err(wire)?;
    let in_group = match read(&mut &stream).map_err(wire)? {
        ToDecode::Welcome { group: theirs, .. } => group.is_some() && theirs == group,
        ToDecode::Refused { message } => return Err((message, false)),
        _ => return Err(("its control port answers something else than a welcome".to_owned(), false)),
    };
    stream.set_read_timeout(Some(LOOK)).map_err(io)?;
    Ok((stream, in_group))
}

/// Uses a connection until it breaks: how it ended, and the command that came too late for it.
fn talk(
    own: &Own,
    stream: &TcpStream,
    (late, commands): (&mut VecDeque<Command>, &Receiver<Command>),
    rooms: &Rooms,
    member: Option<Membership>,
) -> Result<(), WireError> {
    let (ended, in_group) = (Arc::new(AtomicBool::new(false)), member.is_some());
    let reader = stream.try_clone().and_then(|stream| {
        let (own, rooms, ended) = (own.clone(), Arc::clone(rooms), Arc::clone(&ended));
        std::thread::Builder::new().name("pd-done".into()).spawn(move || {
            let result = hear(&own, &stream, &rooms, member.as_ref());
            ended.store(true, Ordering::Release);
            result
        })
    });
    let reader = reader?;
    let said = say(stream, (late, commands), rooms, &ended);
    if in_group && own.stop.load(Ordering::Acquire) {
        // Without it the others take this worker for one that died.
        let _ = write(&mut &*stream, &ToPrefill::Group(GroupMessage::Leave));
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
    let heard = reader.join().unwrap_or(Err(WireError::Closed));
    match said {
        // The writer ends well when it is told to, or when the reader knows why.
        Ok(()) => heard,
        Err(error) => Err(error),
    }
}

/// Writes commands until there can be no more or the reader has ended; `late` come first, and what comes after the end is put
/// there.
fn say(
    stream: &TcpStream,
    (late, commands): (&mut VecDeque<Command>, &Receiver<Command>),
    rooms: &Rooms,
    ended: &AtomicBool,
) -> Result<(), WireError> {
    let mut shown = HashSet::new();
    let mut pinged = Instant::now();
    // Something is said on every connection, even on one that breaks at once, so that nothing goes round for ever.
    let mut first = true;
    while std::mem::take(&mut first) || !ended.load(Ordering::Acquire) {
        let command = match late.pop_front() {
            Some(command) => Some(command),
            None => match commands.recv_timeout(LOOK) {
                Ok(command) if ended.load(Ordering::Acquire) => {
                    late.push_back(command);
                    return Ok(());
                }
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
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
            Some(Command::Abort { room, reason }) if lock(rooms).remove(&room) => {
                write(&mut &*stream, &ToPrefill::Abort { room, reason })?;
            }
            Some(Command::Group(message)) => write(&mut &*stream, &ToPrefill::Group(message))?,
            Some(Command::Abort { .. }) | None => {}
        }
        if pinged.elapsed() >= PING {
            pinged = Instant::now();
            write(&mut &*stream, &ToPrefill::Ping)?;
        }
    }
    Ok(())
}

/// Reads what the prefill worker says.
fn hear(own: &Own, stream: &TcpStream, rooms: &Rooms, member: Option<&Membership>) -> Result<(), WireError> {
    let mut from = BufReader::new(stream);
    loop {
        let event = match next(&mut from, || own.stop.load(Ordering::Acquire))? {
            ToDecode::Pong => continue,
            ToDecode::Group(message) => match member {
                Some(member) => {
                    member.heard(message)?;
                    continue;
                }
                None => return Err(WireError::Malformed("it is in no swap group of this worker".to_owned())),
            },
            ToDecode::Done(done) => DecodeEvent::Done(done),
            ToDecode::Failed { room, code, message } => DecodeEvent::Failed { room, code, message },
            ToDecode::Again { room } => DecodeEvent::Again { room },
            ToDecode::Welcome { .. } | ToDecode::Refused { .. } => {
                return Err(WireError::Malformed("a second welcome".to_owned()));
            }
        };
        let room = match &event {
            DecodeEvent::Done(done) => done.room,
            DecodeEvent::Failed { room, .. } | DecodeEvent::Again { room } => *room,
        };
        // A room that was given up is not heard of any more.
        if lock(rooms).remove(&room) && !(own.sink)(event) {
            return Ok(());
        }
    }
}
