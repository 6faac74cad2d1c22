//! The receiving side: a listener, and a thread for each connection that writes what it is sent.

use crate::carrier::{Carrier, Incoming, Part};
use crate::frame::{Ack, Answer, Brings, FRAME, Frame, HELLO, Hello, Place, Refusal, Token};
use crate::memory::{Mapping, receive_files};
use crate::net::{Endpoint, Listener, Medium, Stream, random};
use crate::rooms::Rooms;
use crate::sum::Sum;
use hotseam_ops::checksum;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections at once.
const MOST_CONNECTIONS: usize = 64;
/// How long a connection may take for its hello, and for the rest of a frame that has begun.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the listener looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that are written, or read, and summed at one time: the sum finds them in the cache, and neither side waits long for the
/// other.
pub(crate) const BLOCK: usize = 64 << 10;

/// Listens until it is dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) endpoint: Endpoint,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    rooms: Arc<Rooms>,
    carrier: Option<Arc<dyn Carrier>>,
    token: Token,
    stop: AtomicBool,
    count: AtomicUsize,
    streams: Mutex<Vec<(Arc<Stream>, JoinHandle<()>)>>,
    /// The connection of each sender, and its number.
    senders: Mutex<HashMap<Token, (u64, Arc<Stream>)>>,
    /// Notified when one of them is over.
    over: Condvar,
}

/// A sender's connection has begun. Until this is dropped no later one of the same sender begins.
struct Turn<'a> {
    shared: &'a Shared,
    sender: Token,
}

impl Shared {
    fn senders(&self) -> MutexGuard<'_, HashMap<Token, (u64, Arc<Stream>)>> {
        // Every change is complete before the lock is released.
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection of this sender before, and waits until it is over: what waits in it is sent again on the new one, and
    /// once that was answered its source may change. `None` if a later one was here already.
    fn begin(&self, hello: &Hello, stream: &Arc<Stream>) -> Option<Turn<'_>> {
        let mut senders = self.senders();
        while let Some((number, before)) = senders.get(&hello.sender) {
            if *number >= hello.connection {
                return None;
            }
            before.shutdown();
            senders = self.over.wait(senders).unwrap_or_else(PoisonError::into_inner);
        }
        senders.insert(hello.sender, (hello.connection, Arc::clone(stream)));
        Some(Turn { shared: self, sender: hello.sender })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shared.senders().remove(&self.sender);
        self.shared.over.notify_all();
    }
}

impl Receiver {
    /// Begins to listen.
    pub(crate) fn start(
        medium: Medium,
        listen: SocketAddr,
        carrier: Option<Arc<dyn Carrier>>,
        rooms: Arc<Rooms>,
    ) -> io::Result<Self> {
        let token = random()?;
        let (listener, address) = Listener::bind(medium, listen)?;
        let shared = Arc::new(Shared {
            rooms,
            carrier,
            token,
            stop: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            streams: Mutex::default(),
            senders: Mutex::default(),
            over: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("kv-listen".into()).spawn({
            let shared = Arc::clone(&shared);
            move || listen_on(&listener, &shared)
        })?;
        Ok(Self { endpoint: Endpoint { address, token }, shared, thread: Some(thread) })
    }

    /// Ends the connections that there are now.
    pub(crate) fn cut(&self) {
        let streams =
            std::mem::take(&mut *self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner));
        for (stream, thread) in streams {
            stream.shutdown();
            // A panic of it was printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It ends at its next look; a panic of it was printed.
            let _ = thread.join();
        }
        self.cut();
    }
}

fn listen_on(listener: &Listener, shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::Acquire) {
        let Ok(Some(stream)) = listener.accept(LOOK) else { continue };
        let stream = Arc::new(stream);
        if shared.count.load(Ordering::Acquire) >= MOST_CONNECTIONS {
            answer(&stream, 0, Answer::Refused(Refusal::Busy));
            continue;
        }
        shared.count.fetch_add(1, Ordering::AcqRel);
        let spawned = std::thread::Builder::new().name("kv-receive".into()).spawn({
            let (shared, stream) = (Arc::clone(shared), Arc::clone(&stream));
            move || {
                serve(&shared, &stream);
                stream.shutdown();
                shared.count.fetch_sub(1, Ordering::AcqRel);
            }
        });
        let mut streams = shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|(_, thread)| !thread.is_finished());
        match spawned {
            Ok(thread) => streams.push((stream, thread)),
            Err(_) => {
                shared.count.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// Whether the answer went out.
fn answer(stream: &Stream, seq: u64, answer: Answer) -> bool {
    stream.send_bytes(&Ack { seq, answer }.encode()).is_ok()
}

/// Takes frames until the connection ends, or sends something that is none.
fn serve(shared: &Shared, stream: &Arc<Stream>) {
    if stream.limit(PATIENCE, PATIENCE).is_err() {
        return;
    }
    let mut hello = [0; HELLO];
    if !matches!(stream.fill(&mut hello, || false), Ok(false)) {
        return;
    }
    let Some(hello) = Hello::decode(&hello) else { return };
    if hello.token != shared.token {
        answer(stream, 0, Answer::Refused(Refusal::Token));
        return;
    }
    let Some(_turn) = shared.begin(&hello, stream) else { return };
    let Some(mut beside) = Beside::of(shared, stream, hello.brings) else {
        answer(stream, 0, Answer::Refused(Refusal::Segment));
        return;
    };
    if !answer(stream, 0, Answer::Done) || beside.begin(stream).is_err() {
        return;
    }
    let mut spill = Vec::new();
    let mut header = [0; FRAME];
    loop {
        match stream.fill(&mut header, || !shared.stop.load(Ordering::Acquire)) {
            Ok(false) => {}
            Ok(true) | Err(_) => return,
        }
        let Ok(Some(frame)) = Frame::decode(&header, |table| whole(stream, table)) else { return };
        let Ok(outcome) = take(shared, stream, &frame, &mut beside, &mut spill) else { return };
        // What a carrier did not bring is sent again, over a new connection.
        let over = outcome == Answer::Damaged && frame.place == Place::Carried;
        if !answer(stream, frame.seq, outcome) || over {
            return;
        }
    }
}

/// Where bytes come from that are not on the connection.
enum Beside {
    Segments(Vec<Mapping>),
    Carrier(Box<dyn Incoming>),
}

impl Beside {
    /// What a hello brings; `None` if it is of no use here.
    fn of(shared: &Shared, stream: &Stream, brings: Brings) -> Option<Self> {
        match (brings, stream.brings_files(), &shared.carrier) {
            (Brings::Segments(0), _, None) => Some(Self::Segments(Vec::new())),
            (Brings::Segments(n), true, None) => {
                let files = receive_files(stream.fd(), n as usize).ok()?;
                Some(Self::Segments(files.iter().map(Mapping::new).collect::<io::Result<_>>().ok()?))
            }
            (Brings::Card(n), _, Some(carrier)) => {
                let (mut card, mut sum) = (vec![0; n as usize], [0; 8]);
                whole(stream, &mut card).and_then(|()| whole(stream, &mut sum)).ok()?;
                let intact = checksum(&card).to_le_bytes() == sum;
                intact.then(|| carrier.incoming(&card).ok()).flatten().map(Self::Carrier)
            }
            _ => None,
        }
    }

    fn begin(&mut self, stream: &Stream) -> io::Result<()> {
        match self {
            Self::Segments(_) => Ok(()),
            Self::Carrier(end) => end.begin(&|| !stream.is_shut()),
        }
    }

    fn segment(&self, number: u32) -> Option<&Mapping> {
        match self {
            Self::Segments(segments) => segments.get(number as usize),
            Self::Carrier(_) => None,
        }
    }
}

/// Writes one frame. An error means that the connection is of no more use.
fn take(
    shared: &Shared,
    stream: &Arc<Stream>,
    frame: &Frame,
    beside: &mut Beside,
    spill: &mut Vec<u8>,
) -> io::Result<Answer> {
    let len = frame.bytes() as usize;
    let pin = match (shared.rooms.pin(frame, stream), frame.place) {
        (Ok(pin), _) => pin,
        (Err(why), Place::Shared(_)) => return Ok(Answer::Refused(why)),
        (Err(why), Place::Carried) => {
            if let Beside::Carrier(end) = beside {
                let lens = frame.ranges.iter().map(|range| frame.bytes_of(range) as usize);
                end.pass(&lens.collect::<Vec<_>>(), &|| !stream.is_shut())?;
            }
            return Ok(Answer::Refused(why));
        }
        // What follows the header is read all the same, so that the next frame is found.
        (Err(why), Place::Inline) => {
            spill.resize(BLOCK, 0);
            let mut left = len + 8;
            while left > 0 {
                let n = left.min(BLOCK);
                whole(stream, &mut spill[..n])?;
                left -= n;
            }
            return Ok(Answer::Refused(why));
        }
    };
    let arrived = match frame.place {
        Place::Inline => {
            let mut sum = Sum::default();
            for (to, len) in &pin.to {
                // SAFETY: the pin allows writing these bytes, and only this thread does until it is dropped.
                let to = unsafe { std::slice::from_raw_parts_mut(*to, *len) };
                for block in to.chunks_mut(BLOCK) {
                    whole(stream, block)?;
                    sum.update(block);
                }
            }
            let mut sent = [0; 8];
            whole(stream, &mut sent)?;
            u64::from_le_bytes(sent) == sum.finish()
        }
        Place::Shared(segment) => {
            let memory = beside.segment(segment);
            for (range, (to, len)) in frame.ranges.iter().zip(&pin.to) {
                let Some(from) = memory.and_then(|memory| memory.at(range.offset, *len)) else {
                    return Ok(Answer::Refused(Refusal::Segment));
                };
                // SAFETY: `from` is inside the mapping; `to` as above. The mapping is another process's memory or another
                // part of this one's, so that the two do not overlap.
                unsafe { to.copy_from_nonoverlapping(from, *len) };
            }
            true
        }
        Place::Carried => {
            let Beside::Carrier(end) = beside else { return Ok(Answer::Refused(Refusal::Segment)) };
            let parts = frame.ranges.iter().zip(&pin.to);
            let parts: Vec<Part> =
                parts.map(|(range, (to, len))| Part { from: range.offset, to: *to, len: *len }).collect();
            // SAFETY: the pin allows writing these bytes until it is dropped.
            unsafe { end.fetch(&parts, &|| pin.wanted()) }.is_ok()
        }
    };
    if !arrived {
        return Ok(Answer::Damaged);
    }
    drop(pin);
    shared.rooms.written(frame);
    Ok(Answer::Done)
}

fn whole(stream: &Stream, bytes: &mut [u8]) -> io::Result<()> {
    match stream.fill(bytes, || false)? {
        false => Ok(()),
        true => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Duration = Duration::from_secs(5);

    fn open(receiver: &Receiver, sender: u8, connection: u64) -> Stream {
        let stream = Stream::connect(&receiver.endpoint.address, ANY).unwrap();
        stream.limit(ANY, ANY).unwrap();
        let (token, brings) = (receiver.endpoint.token, Brings::Segments(0));
        stream.send_bytes(&Hello { token, sender: [sender; 16], connection, brings }.encode()).unwrap();
        stream
    }

    fn is_let_in(stream: &Stream) -> bool {
        let mut bytes = [0; crate::frame::ACK];
        let ended = stream.fill(&mut bytes, || false).unwrap();
        assert!(ended || Ack::decode(&bytes) == Some(Ack { seq: 0, answer: Answer::Done }));
        !ended
    }

    /// What waits in a connection that its sender has given up must not be taken for what is true now.
    #[test]
    fn a_sender_has_one_connection_the_last_that_it_began() {
        let any = "127.0.0.1:0".parse().unwrap();
        let receiver = Receiver::start(Medium::Tcp, any, None, Arc::new(Rooms::default())).unwrap();
        let first = open(&receiver, 1, 1);
        assert!(is_let_in(&first));
        let other = open(&receiver, 2, 1);
        assert!(is_let_in(&other));
        let third = open(&receiver, 1, 3);
        assert!(is_let_in(&third));
        // It ended before the third was let in.
        assert!(!is_let_in(&first));
        for stale in [1, 2, 3] {
            assert!(!is_let_in(&open(&receiver, 1, stale)), "connection {stale}");
        }
        drop(third);
        // Numbers count as long as a connection lasts, and others are left alone.
        let fourth = open(&receiver, 1, 4);
        assert!(is_let_in(&fourth));
        let quiet = other.limit(Duration::from_millis(50), ANY).and_then(|()| other.fill(&mut [0], || false));
        assert_eq!(quiet.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(receiver.shared.senders().len(), 2);
    }
}
