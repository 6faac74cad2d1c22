//! The sending side: a thread for each peer that writes pieces of puts in order, and sends again what was not acknowledged when
//! a connection broke.

use crate::carrier::{Carrier, MOST_CARD, Outgoing};
use crate::frame::{ACK, Ack, Answer, Brings, Frame, Hello, Place, Range};
use crate::memory::send_files;
use crate::net::{Endpoint, Stream};
use crate::receive::BLOCK;
use crate::sum::Sum;
use hotseam_ops::checksum;
use hotseam_sdk::Ctx;
use hotseam_sdk::abi::transfer;
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
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

/// What became of the puts.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<HashMap<u64, Ticket>>);

#[derive(Debug, Default)]
struct Ticket {
    pieces: usize,
    bytes: u64,
    failed: Option<String>,
}

/// State of a ticket.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// Under way, with so many bytes moved.
    Pending(u64),
    /// In place, with all its bytes.
    Done(u64),
    /// Given up, and why.
    Failed(String),
}

impl Progress {
    /// As `poll` gives it to the host, which is told why a ticket failed.
    pub fn report(self, ctx: &Ctx) -> (u32, u64) {
        match self {
            Self::Pending(bytes) => (transfer::PENDING, bytes),
            Self::Done(bytes) => (transfer::DONE, bytes),
            Self::Failed(why) => {
                ctx.host().report(&why);
                (transfer::FAILED, 0)
            }
        }
    }
}

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Ticket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ticket of so many pieces.
    pub(crate) fn open(&self, ticket: u64, pieces: usize) {
        self.lock().insert(ticket, Ticket { pieces, ..Ticket::default() });
    }

    /// The state, which is forgotten if it is final; `None` if there is no such ticket.
    pub(crate) fn poll(&self, ticket: u64) -> Option<Progress> {
        let mut tickets = self.lock();
        let known = tickets.get_mut(&ticket)?;
        let state = match (known.failed.take(), known.pieces) {
            (Some(why), _) => Progress::Failed(why),
            (None, 0) => Progress::Done(known.bytes),
            (None, _) => return Some(Progress::Pending(known.bytes)),
        };
        tickets.remove(&ticket);
        Some(state)
    }

    pub(crate) fn forget(&self, ticket: u64) {
        self.lock().remove(&ticket);
    }

    fn done(&self, ticket: u64, bytes: u64) {
        if let Some(known) = self.lock().get_mut(&ticket) {
            known.pieces -= 1;
            known.bytes += bytes;
        }
    }

    pub(crate) fn fail(&self, ticket: u64, why: &str) {
        if let Some(known) = self.lock().get_mut(&ticket) {
            known.failed.get_or_insert_with(|| why.to_owned());
        }
    }
}

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

/// A receiving side elsewhere.
#[derive(Debug)]
pub(crate) struct Peer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
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

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Piece>,
    /// Sent and not acknowledged, in order.
    flying: VecDeque<Piece>,
    /// Ticket of the piece that is being read from memory.
    writing: Option<u64>,
    /// The connection in use, and its number.
    stream: Option<(Arc<Stream>, u64)>,
    connections: u64,
    next_seq: u64,
    stop: bool,
}

impl Peer {
    pub(crate) fn start(
        endpoint: Endpoint,
        files: Vec<RawFd>,
        carrier: Option<Arc<dyn Carrier>>,
        patience: Duration,
        tickets: Arc<Tickets>,
    ) -> io::Result<Self> {
        let (state, wake) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { endpoint, files, carrier, patience, tickets, state, wake });
        let thread = std::thread::Builder::new().name("kv-send".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Queues the pieces of one put. False if too many wait.
    pub(crate) fn push(&self, pieces: Vec<Piece>) -> bool {
        let mut lane = self.shared.lock();
        if lane.queue.len() + lane.flying.len() + pieces.len() > MOST_PIECES {
            return false;
        }
        for mut piece in pieces {
            lane.next_seq += 1;
            piece.frame.seq = lane.next_seq;
            lane.queue.push_back(piece);
        }
        self.shared.wake.notify_all();
        true
    }

    /// Whether its connection is lost and nothing waits for another.
    pub(crate) fn rests(&self) -> bool {
        let lane = self.shared.lock();
        lane.stream.is_none() && lane.connections > 0 && lane.queue.is_empty() && lane.flying.is_empty()
    }

    /// Reads the source of a ticket no more, from when this returns.
    pub(crate) fn cancel(&self, ticket: u64) {
        let mut lane = self.shared.lock();
        lane.queue.retain(|piece| piece.ticket != ticket);
        lane.flying.retain(|piece| piece.ticket != ticket);
        while lane.writing == Some(ticket) {
            if let Some((stream, _)) = &lane.stream {
                stream.shutdown();
            }
            lane = self.shared.wake.wait(lane).unwrap_or_else(PoisonError::into_inner);
            // A broken write puts its piece back.
            lane.queue.retain(|piece| piece.ticket != ticket);
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
        let mut lost: Option<Instant> = None;
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
            if lane.queue.is_empty() {
                drop(self.wake.wait(lane).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            let Some((stream, number)) = lane.stream.clone() else {
                drop(lane);
                readers.retain(|reader| !reader.is_finished());
                end = None;
                match self.open() {
                    Ok((stream, opened)) => {
                        (lost, end) = (None, opened);
                        readers.extend(self.attach(stream));
                    }
                    Err(error) => self.without(&error, lost.get_or_insert_with(Instant::now)),
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
    fn open(&self) -> io::Result<(Stream, Option<Box<dyn Outgoing>>)> {
        let stream = Stream::connect(&self.endpoint.address, self.patience.min(LIMIT))?;
        stream.limit(LIMIT, LIMIT)?;
        let token = self.endpoint.token;
        let mut end = None;
        if let Some(carrier) = &self.carrier {
            let (card, opened) = carrier.outgoing()?;
            if card.len() > MOST_CARD {
                let n = card.len();
                return Err(io::Error::other(format!("memory takes {n} bytes to tell, {MOST_CARD} at most")));
            }
            let hello = Hello { token, brings: Brings::Card(card.len() as u32) }.encode();
            let sum = checksum(&card).to_le_bytes();
            stream.send(&mut [IoSlice::new(&hello), IoSlice::new(&card), IoSlice::new(&sum)])?;
            end = Some(opened);
        } else {
            let hello = Hello { token, brings: Brings::Segments(self.files.len() as u32) };
            stream.send_bytes(&hello.encode())?;
            send_files(stream.fd(), &self.files)?;
        }
        let mut answer = [0; ACK];
        if stream.fill(&mut answer, || false)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match Ack::decode(&answer).map(|ack| ack.answer) {
            Some(Answer::Done) => {
                if let Some(end) = &mut end {
                    end.begin()?;
                }
                Ok((stream, end))
            }
            Some(Answer::Refused(why)) => Err(io::Error::other(why.to_string())),
            _ => Err(io::Error::other("it answers something else than this transport does")),
        }
    }

    /// Uses a new connection; returns the thread that reads its acknowledgements.
    fn attach(self: &Arc<Self>, stream: Stream) -> Option<JoinHandle<()>> {
        let stream = Arc::new(stream);
        let mut lane = self.lock();
        lane.connections += 1;
        let number = lane.connections;
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
            return unsafe { end.serve(&mut frame.ranges.iter().map(part)) };
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
