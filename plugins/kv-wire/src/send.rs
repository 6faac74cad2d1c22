//! The sending side: a thread for each peer that writes pieces of puts in order, and sends again what was not acknowledged when
//! a connection broke. It ends with its connection once nothing waits, so that a peer which is gone leaves nothing behind.

use crate::carrier::{Carrier, MOST_CARD, Outgoing};
use crate::frame::{ACK, Ack, Answer, Brings, Frame, Hello, Place, Range, Token};
use crate::memory::send_files;
use crate::net::{Endpoint, Stream, random};
use crate::receive::BLOCK;
use crate::sum::Sum;
use crate::tickets::Tickets;
use hotseam_ops::checksum;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest that one write or a hello may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a damaged piece is sent again.
const ATTEMPTS: u8 = 3;
/// Pieces that may wait for one peer.
const MOST_PIECES: usize = 1 << 16;

/// A part of a put that one frame moves.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) ticket: u64,
    pub(crate) frame: Frame,
    /// What the offsets of an inline frame count from.
    base: *const u8,
    attempts: u8,
}

// SAFETY: the bytes behind `base` are the host's, and stay as they are until the ticket is done or cancelled (contract).
unsafe impl Send for Piece {}

impl Piece {
    pub(crate) fn new(ticket: u64, frame: Frame, base: *const u8) -> Self {
        Self { ticket, frame, base, attempts: 0 }
    }
}

/// What a receiving side knows this one by. It outlives threads and regions, so that no connection is taken for one of another
/// sender's.
#[derive(Debug)]
pub(crate) struct Name {
    id: Token,
    /// Connections that were begun.
    connections: AtomicU64,
}

impl Name {
    /// A new one.
    ///
    /// # Errors
    /// If the system has no random number.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { id: random()?, connections: AtomicU64::new(0) }))
    }
}

/// A receiving side elsewhere.
#[derive(Debug)]
pub(crate) struct Peer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    name: Arc<Name>,
    endpoint: Endpoint,
    /// Shared memory that a connection names when it opens.
    files: Vec<RawFd>,
    carrier: Option<Arc<dyn Carrier>>,
    /// How long no connection may be had before puts fail.
    patience: Duration,
    tickets: Arc<Tickets>,
    state: Mutex<Lane>,
    wake: Condvar,
}

/// A connection, its number, and the carrier's end of it.
type Opened = (Stream, u64, Option<Box<dyn Outgoing>>);

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Piece>,
    /// Sent and not acknowledged, in order.
    flying: VecDeque<Piece>,
    /// Ticket of the piece that is being read from memory.
    writing: Option<u64>,
    /// The connection in use, and its number.
    stream: Option<(Arc<Stream>, u64)>,
    /// Whether something was acknowledged since this was last looked at, or this side has ended the connection itself.
    heard: bool,
    next_seq: u64,
    /// Whether the thread looks at the queue.
    runs: bool,
    stop: bool,
}

impl Peer {
    /// Of nobody yet that listens: the first put connects.
    pub(crate) fn new(
        name: Arc<Name>,
        endpoint: Endpoint,
        files: Vec<RawFd>,
        carrier: Option<Arc<dyn Carrier>>,
        patience: Duration,
        tickets: Arc<Tickets>,
    ) -> Self {
        let (state, wake) = (Mutex::default(), Condvar::new());
        let shared = Shared { name, endpoint, files, carrier, patience, tickets, state, wake };
        Self { shared: Arc::new(shared), thread: None }
    }

    /// Queues the pieces of one put, and starts the thread where it is not running. False if too many wait.
    ///
    /// # Errors
    /// If the system has no thread.
    pub(crate) fn push(&mut self, pieces: Vec<Piece>) -> io::Result<bool> {
        let mut lane = self.shared.lock();
        if lane.queue.len() + lane.flying.len() + pieces.len() > MOST_PIECES {
            return Ok(false);
        }
        for mut piece in pieces {
            lane.next_seq += 1;
            piece.frame.seq = lane.next_seq;
            lane.queue.push_back(piece);
        }
        let ended = !std::mem::replace(&mut lane.runs, true);
        drop(lane);
        if ended {
            if let Some(thread) = self.thread.take() {
                // A panic of it was printed.
                let _ = thread.join();
            }
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("kv-send".into()).spawn(move || shared.run());
            self.thread = Some(thread.inspect_err(|_| {
                let mut lane = self.shared.lock();
                lane.queue.clear();
                lane.runs = false;
            })?);
        }
        self.shared.wake.notify_all();
        Ok(true)
    }

    /// Reads the source of a ticket no more, from when this returns. What flies beside the connection may still be read by the
    /// receiving side, for a room that is never told to be whole.
    pub(crate) fn cancel(&self, ticket: u64) {
        let mut lane = self.shared.lock();
        lane.queue.retain(|piece| piece.ticket != ticket);
        lane.flying.retain(|piece| piece.ticket != ticket);
        while lane.writing == Some(ticket) {
            if let Some((stream, _)) = lane.stream.take() {
                stream.shutdown();
                // It says nothing of the other side.
                lane.heard = true;
            }
            lane = self.shared.wake.wait(lane).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut lane = self.shared.lock();
        lane.stop = true;
        if let Some((stream, _)) = &lane.stream {
            stream.shutdown();
        }
        drop(lane);
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of it was printed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lane> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(self: Arc<Self>) {
        let mut readers: Vec<JoinHandle<()>> = Vec::new();
        // Since when nothing was acknowledged that should be, and whether a connection was had since then.
        let (mut lost, mut barren): (Option<Instant>, bool) = (None, false);
        // The carrier's end of the connection in use.
        let mut end: Option<Box<dyn Outgoing>> = None;
        loop {
            let mut lane = self.lock();
            // What flew when a connection broke goes again, in its order.
            if lane.stream.is_none() {
                while let Some(piece) = lane.flying.pop_back() {
                    lane.queue.push_front(piece);
                }
            }
            if lane.stop {
                break;
            }
            if lane.queue.is_empty() && lane.stream.is_none() {
                lane.runs = false;
                break;
            }
            if lane.queue.is_empty() {
                drop(self.wake.wait(lane).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            let Some((stream, number)) = lane.stream.clone() else {
                if std::mem::take(&mut lane.heard) {
                    (lost, barren) = (None, false);
                }
                drop(lane);
                readers.retain(|reader| !reader.is_finished());
                end = None;
                let since = lost.get_or_insert_with(Instant::now);
                let opened = match std::mem::take(&mut barren) {
                    true => Err(io::Error::other("connections end before anything is acknowledged")),
                    false => self.open(),
                };
                match opened {
                    Ok((stream, number, opened)) => {
                        (barren, end) = (true, opened);
                        readers.extend(self.attach(stream, number));
                    }
                    Err(error) => self.without(&error, since),
                }
                continue;
            };
            let Some(piece) = lane.queue.pop_front() else { continue };
            lane.writing = Some(piece.ticket);
            lane.flying.push_back(piece.clone());
            drop(lane);
            let sent = send(&stream, &piece, end.as_deref_mut());
            let mut lane = self.lock();
            lane.writing = None;
            if sent.is_err() {
                lane.lose(number);
            }
            self.wake.notify_all();
        }
        for reader in readers {
            let _ = reader.join();
        }
    }

    /// A connection that was let in.
    fn open(&self) -> io::Result<Opened> {
        let stream = Stream::connect(&self.endpoint.address, self.patience.min(LIMIT))?;
        stream.limit(LIMIT, LIMIT)?;
        let connection = self.name.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let (token, sender) = (self.endpoint.token, self.name.id);
        let hello = |brings| Hello { token, sender, connection, brings }.encode();
        let mut end = None;
        if let Some(carrier) = &self.carrier {
            let (card, opened) = carrier.outgoing()?;
            if card.len() > MOST_CARD {
                let n = card.len();
                return Err(io::Error::other(format!("memory takes {n} bytes to tell, {MOST_CARD} at most")));
            }
            let hello = hello(Brings::Card(card.len() as u32));
            let sum = checksum(&card).to_le_bytes();
            stream.send(&mut [IoSlice::new(&hello), IoSlice::new(&card), IoSlice::new(&sum)])?;
            end = Some(opened);
        } else {
            stream.send_bytes(&hello(Brings::Segments(self.files.len() as u32)))?;
            send_files(stream.fd(), &self.files)?;
        }
        let mut answer = [0; ACK];
        if stream.fill(&mut answer, || false)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match Ack::decode(&answer).map(|ack| ack.answer) {
            Some(Answer::Done) => {
                if let Some(end) = &mut end {
                    end.begin(&|| !self.lock().stop)?;
                }
                Ok((stream, connection, end))
            }
            Some(Answer::Refused(why)) => Err(io::Error::other(why.to_string())),
            _ => Err(io::Error::other("it answers something else than this transport does")),
        }
    }

    /// Uses a new connection; returns the thread that reads its acknowledgements.
    fn attach(self: &Arc<Self>, stream: Stream, number: u64) -> Option<JoinHandle<()>> {
        let stream = Arc::new(stream);
        let mut lane = self.lock();
        let reader = std::thread::Builder::new().name("kv-acks".into()).spawn({
            let (shared, stream) = (Arc::clone(self), Arc::clone(&stream));
            move || shared.read(&stream, number)
        });
        match reader {
            Ok(reader) if !lane.stop => {
                lane.stream = Some((stream, number));
                Some(reader)
            }
            Ok(reader) => {
                stream.shutdown();
                Some(reader)
            }
            Err(_) => None,
        }
    }

    /// No connection can be had now: waits a little, or gives up what waits.
    fn without(&self, error: &io::Error, since: &Instant) {
        let mut lane = self.lock();
        if since.elapsed() >= self.patience {
            let why =
                format!("{}: {error}, for {:.1} s", self.endpoint.address, since.elapsed().as_secs_f32());
            lane.queue.drain(..).for_each(|piece| self.tickets.fail(piece.ticket, &why));
            return;
        }
        if !lane.stop {
            drop(self.wake.wait_timeout(lane, PAUSE));
        }
    }

    fn read(&self, stream: &Stream, number: u64) {
        let mut bytes = [0; ACK];
        // A connection may be quiet as long as nothing flies on it.
        while let Ok(false) = stream.fill(&mut bytes, || self.lock().flying.is_empty()) {
            let Some(ack) = Ack::decode(&bytes) else { break };
            let mut lane = self.lock();
            if lane.stream.as_ref().is_none_or(|(_, used)| *used != number) {
                // It was given up: what flew on it goes again, and only the answers to that count.
                break;
            }
            lane.heard = true;
            let Some(at) = lane.flying.iter().position(|piece| piece.frame.seq == ack.seq) else { continue };
            let Some(mut piece) = lane.flying.remove(at) else { continue };
            match ack.answer {
                Answer::Done => self.tickets.done(piece.ticket, piece.frame.bytes()),
                Answer::Damaged if piece.attempts < ATTEMPTS => {
                    piece.attempts += 1;
                    lane.queue.push_front(piece);
                    self.wake.notify_all();
                }
                Answer::Damaged => {
                    let why =
                        format!("{}: bytes do not arrive intact, {ATTEMPTS} times", self.endpoint.address);
                    self.tickets.fail(piece.ticket, &why);
                }
                Answer::Refused(why) => {
                    self.tickets.fail(piece.ticket, &format!("{}: {why}", self.endpoint.address));
                }
            }
        }
        stream.shutdown();
        self.lock().lose(number);
        self.wake.notify_all();
    }
}

impl Lane {
    /// Uses a connection no more.
    fn lose(&mut self, number: u64) {
        if let Some((stream, _)) = self.stream.take_if(|(_, n)| *n == number) {
            stream.shutdown();
        }
    }
}

/// Slices that are written in one call.
const SLICES: usize = 64;

fn send(stream: &Stream, piece: &Piece, end: Option<&mut (dyn Outgoing + 'static)>) -> io::Result<()> {
    let frame = &piece.frame;
    let head = frame.encode();
    if frame.place != Place::Inline {
        stream.send_bytes(&head)?;
    }
    match (frame.place, end) {
        (Place::Inline, _) => {}
        (Place::Carried, Some(end)) => {
            let part = |range: &Range| {
                (std::ptr::with_exposed_provenance(range.offset as usize), frame.bytes_of(range) as usize)
            };
            // SAFETY: the source is valid and unchanged until the ticket is done or cancelled, and `cancel` waits for this call.
            return unsafe { end.serve(&mut frame.ranges.iter().map(part), &|| !stream.is_shut()) };
        }
        _ => return Ok(()),
    }
    let mut sum = Sum::default();
    let mut slices = vec![IoSlice::new(&head)];
    let mut bytes = 0;
    for range in &frame.ranges {
        // SAFETY: the source is valid and unchanged until the ticket is done or cancelled, and `cancel` waits for this call.
        let source = unsafe {
            std::slice::from_raw_parts(piece.base.add(range.offset as usize), frame.bytes_of(range) as usize)
        };
        for block in source.chunks(BLOCK) {
            sum.update(block);
            slices.push(IoSlice::new(block));
            bytes += block.len();
            if bytes >= BLOCK || slices.len() == SLICES {
                stream.send(&mut slices)?;
                slices.clear();
                bytes = 0;
            }
        }
    }
    let sum = sum.finish().to_le_bytes();
    slices.push(IoSlice::new(&sum));
    stream.send(&mut slices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Medium;
    use crate::receive::Receiver;
    use crate::rooms::Rooms;
    use crate::tickets::Progress;

    /// What there is once there is something.
    fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "nothing in time");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// One item, which nobody accepts.
    fn piece(ticket: u64) -> Piece {
        static SOURCE: [u8; 8] = [7; 8];
        let (place, ranges) = (Place::Inline, vec![Range { first: 0, items: 1, offset: 0 }]);
        let frame = Frame { seq: 0, room: 1, component: 0, layer: 0, item_bytes: 8, place, ranges };
        Piece::new(ticket, frame, SOURCE.as_ptr())
    }

    fn failure(tickets: &Tickets, ticket: u64) -> String {
        until(|| match tickets.poll(ticket) {
            Some(Progress::Failed(why)) => Some(why),
            _ => None,
        })
    }

    #[test]
    fn a_peer_that_is_gone_needs_no_thread() {
        let any = "127.0.0.1:0".parse().unwrap();
        let receiver = Receiver::start(Medium::Tcp, any, None, Arc::new(Rooms::default())).unwrap();
        let (tickets, patience) = (Arc::new(Tickets::default()), Duration::from_millis(100));
        let endpoint = receiver.endpoint.clone();
        let name = Name::new().unwrap();
        let mut peer = Peer::new(name, endpoint, Vec::new(), None, patience, Arc::clone(&tickets));
        let ask = |peer: &mut Peer, ticket| {
            tickets.open(ticket, 1);
            assert!(peer.push(vec![piece(ticket)]).unwrap());
            failure(&tickets, ticket)
        };
        let ended = |peer: &Peer| peer.thread.as_ref().is_none_or(JoinHandle::is_finished);
        // Whoever is there refuses; the thread stays for what may follow.
        for ticket in 1..3 {
            assert!(ask(&mut peer, ticket).contains("closed this room"));
            assert!(!ended(&peer));
        }
        drop(receiver);
        until(|| ended(&peer).then_some(()));
        for ticket in 3..5 {
            assert!(ask(&mut peer, ticket).contains("refused"));
            until(|| ended(&peer).then_some(()));
        }
    }

    /// Whoever lets connections in and then ends them is not tried for ever, nor at full speed.
    #[test]
    fn connections_that_bring_nothing_are_given_up_in_time() {
        let (listener, address) =
            crate::net::Listener::bind(Medium::Tcp, "127.0.0.1:0".parse().unwrap()).unwrap();
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let serve = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut connections = 0;
                while !stop.load(Ordering::Relaxed) {
                    let Ok(Some(stream)) = listener.accept(Duration::from_millis(20)) else { continue };
                    connections += 1;
                    stream.limit(LIMIT, LIMIT).unwrap();
                    let _ = stream.fill(&mut [0; crate::frame::HELLO], || false);
                    let _ = stream.send_bytes(&Ack { seq: 0, answer: Answer::Done }.encode());
                }
                connections
            }
        });
        let (tickets, patience) = (Arc::new(Tickets::default()), Duration::from_millis(400));
        let endpoint = Endpoint { address, token: Token::default() };
        let mut peer =
            Peer::new(Name::new().unwrap(), endpoint, Vec::new(), None, patience, Arc::clone(&tickets));
        tickets.open(1, 1);
        assert!(peer.push(vec![piece(1)]).unwrap());
        let why = failure(&tickets, 1);
        assert!(why.contains("before anything is acknowledged"), "{why}");
        stop.store(true, Ordering::Relaxed);
        let connections = serve.join().unwrap();
        assert!((1..=20).contains(&connections), "{connections} connections in {patience:?}");
    }
}
