//! The functions of a transport between processes, over either medium.

use crate::carrier::{Carrier, Span};
use crate::frame::{Frame, Place, RANGES, Range, SEGMENTS};
use crate::net::{Address, Endpoint, Medium};
use crate::receive::Receiver;
use crate::regions::Regions;
use crate::rooms::Rooms;
use crate::send::{Name, Peer, Piece};
use crate::tickets::{Progress, Tickets};
use hotseam_sdk::abi::Region;
use hotseam_sdk::views::{Accept, Put};
use hotseam_sdk::{Error, Result};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Peers that an instance may know.
const MOST_PEERS: usize = 256;
/// Marks rooms of puts between two sides of one instance, which the router's numbers never have.
const OWN: u64 = 1 << 63;

/// How an instance is reached, and how patient it is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What connections are made of.
    pub medium: Medium,
    /// Where TCP listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Address that others are told, where it is not the one listened on; its port 0 stands for the one in use.
    pub advertise: Option<SocketAddr>,
    /// How long a peer may be out of reach before puts to it fail.
    pub patience: Duration,
}

/// One instance.
#[derive(Debug)]
pub struct Wire {
    settings: Settings,
    rooms: Arc<Rooms>,
    tickets: Arc<Tickets>,
    state: Mutex<Inner>,
    /// Ends after all threads that use it, which end with the state.
    carrier: Option<Arc<dyn Carrier>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The sending side.
    regions: Regions,
    /// Files of shared memory in the regions, in the order of their segments.
    files: Vec<RawFd>,
    receiver: Option<Receiver>,
    /// By number; 0 is this instance's own receiving side.
    peers: HashMap<u64, Known>,
    last_ticket: u64,
    /// Peer of each ticket that was not reported.
    owners: HashMap<u64, u64>,
}

/// A peer: a thread sends to it while something is to be sent or its connection lasts.
#[derive(Debug)]
struct Known {
    text: String,
    name: Arc<Name>,
    endpoint: Endpoint,
    peer: Option<Peer>,
}

impl Known {
    fn new(text: String, endpoint: Endpoint) -> Result<Self> {
        let name = Name::new().map_err(|error| Error::internal(format!("random number: {error}")))?;
        Ok(Self { text, name, endpoint, peer: None })
    }
}

impl Wire {
    /// An instance that neither listens nor connects yet.
    pub fn new(settings: Settings) -> Self {
        let (rooms, tickets, state) = (Arc::default(), Arc::default(), Mutex::default());
        Self { settings, rooms, tickets, state, carrier: None }
    }

    /// As [`Self::new`], with a carrier that moves the bytes; the medium of the settings is that of its connections.
    pub fn carried(settings: Settings, carrier: Arc<dyn Carrier>) -> Self {
        let settings = Settings { medium: Medium::Carried(carrier.word()), ..settings };
        Self { carrier: Some(carrier), ..Self::new(settings) }
    }

    fn state(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before the lock is released, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `register`: ends every put and room, and takes other regions.
    ///
    /// # Errors
    /// Those of [`Regions::new`], an item that is larger than a frame may be, or memory that a carrier does not take.
    ///
    /// # Safety
    /// Both sides of every region are valid for their items until the next call or the end of the instance.
    pub unsafe fn register(&self, regions: &[Region]) -> Result<()> {
        let most = self.place().most();
        if let Some(region) = regions.iter().find(|region| region.item_bytes > most) {
            let what = crate::regions::name(region.component, region.layer);
            return Err(Error::unsupported(format!(
                "{what}: an item has {} bytes, a frame moves at most {most}",
                region.item_bytes
            )));
        }
        // SAFETY: the caller's contract, for both.
        let (sending, receiving) = unsafe { (Regions::new(regions)?, Regions::new(regions)?) };
        let mut state = self.state();
        // Threads of peers read the old regions until they have ended.
        state.peers.values_mut().for_each(|known| known.peer = None);
        self.rooms.replace(receiving);
        if let Some(carrier) = &self.carrier {
            state.regions = Regions::default();
            // Ends of connections hold on to the memory that they were opened for.
            if let Some(receiver) = &state.receiver {
                receiver.cut();
            }
            let side = |of: fn(&Region) -> (usize, u64)| {
                spans(regions.iter().map(|region| (of(region), region.item_bytes)))
            };
            let from = side(|region| (region.src.addr(), region.src_items));
            let to = side(|region| (region.dst.addr(), region.dst_items));
            // SAFETY: the caller's contract; no thread uses what was registered before, since peers and rooms have ended.
            unsafe { carrier.register(&from, &to)? };
        }
        let mut files: Vec<RawFd> =
            regions.iter().map(|region| region.src_fd).filter(|fd| *fd >= 0).collect();
        files.sort_unstable();
        files.dedup();
        let shared = self.settings.medium == Medium::Shared && files.len() <= SEGMENTS;
        state.files = if shared { files } else { Vec::new() };
        state.regions = sending;
        for ticket in state.owners.keys() {
            self.tickets.fail(*ticket, "other regions were registered");
        }
        Ok(())
    }

    /// Where bytes are that are neither on the connection nor in a segment of shared memory.
    fn place(&self) -> Place {
        if self.carrier.is_some() { Place::Carried } else { Place::Inline }
    }

    /// `put`.
    ///
    /// # Errors
    /// If the region, an item of this side or the peer is not known.
    pub fn put(&self, put: &Put<'_>) -> Result<u64> {
        let state = &mut *self.state();
        let own = put.peer == 0;
        let region = *state.regions.check(put, own)?;
        if !own && !state.peers.contains_key(&put.peer) {
            return Err(Error::argument(format!(
                "peer {} is not known; connect gives the numbers",
                put.peer
            )));
        }
        state.last_ticket += 1;
        let ticket = state.last_ticket;
        let room = if own { OWN | ticket } else { put.room };
        let pieces = pieces(put, &region, self.place(), &state.files, room, ticket);
        self.tickets.open(ticket, pieces.len());
        if own {
            let (component, layer) = (put.component, put.layer);
            self.rooms.accept(&Accept { room, component, layer, items: put.dst_items })?;
        }
        state.owners.insert(ticket, put.peer);
        match self.peer(state, put.peer)?.push(pieces) {
            Ok(true) => {}
            Ok(false) => self.tickets.fail(ticket, "too many puts wait for this peer"),
            Err(error) => self.tickets.fail(ticket, &format!("thread: {error}")),
        }
        Ok(ticket)
    }

    /// What sends to a peer.
    fn peer<'a>(&self, state: &'a mut Inner, number: u64) -> Result<&'a mut Peer> {
        if number == 0 && !state.peers.contains_key(&0) {
            let endpoint = self.listen(state)?.clone();
            state.peers.insert(0, Known::new(endpoint.to_string(), endpoint)?);
        }
        let files = state.files.clone();
        let known = state.peers.get_mut(&number);
        let known = known.ok_or_else(|| Error::argument(format!("peer {number} is not known")))?;
        Ok(known.peer.get_or_insert_with(|| {
            let (endpoint, tickets) = (known.endpoint.clone(), Arc::clone(&self.tickets));
            let (name, patience) = (Arc::clone(&known.name), self.settings.patience);
            Peer::new(name, endpoint, files, self.carrier.clone(), patience, tickets)
        }))
    }

    fn listen<'a>(&self, state: &'a mut Inner) -> Result<&'a Endpoint> {
        if state.receiver.is_none() {
            let Settings { medium, listen, .. } = self.settings;
            let started = Receiver::start(medium, listen, self.carrier.clone(), Arc::clone(&self.rooms));
            let why = |error| Error::internal(format!("cannot listen on {listen}: {error}"));
            state.receiver = Some(started.map_err(why)?);
        }
        Ok(&state.receiver.as_ref().expect("just started").endpoint)
    }

    /// `poll`.
    ///
    /// # Errors
    /// If the ticket is not known.
    pub fn poll(&self, ticket: u64) -> Result<Progress> {
        let progress = self.tickets.poll(ticket).ok_or_else(|| {
            Error::argument(format!(
                "ticket {ticket} is not known: it was never given, was cancelled, or was reported already"
            ))
        })?;
        if matches!(progress, Progress::Pending(_)) {
            return Ok(progress);
        }
        let mut state = self.state();
        let owner = state.owners.remove(&ticket);
        if let Some(number) = owner.filter(|_| matches!(progress, Progress::Failed(_)))
            && let Some(peer) = state.peers.get(&number).and_then(|known| known.peer.as_ref())
        {
            // Other pieces of it may be under way: once this is told its source may change.
            peer.cancel(ticket);
        }
        if owner == Some(0) {
            self.rooms.close(OWN | ticket);
        }
        Ok(progress)
    }

    /// `cancel`.
    pub fn cancel(&self, ticket: u64) {
        let mut state = self.state();
        let Some(number) = state.owners.remove(&ticket) else { return };
        if let Some(peer) = state.peers.get(&number).and_then(|known| known.peer.as_ref()) {
            peer.cancel(ticket);
        }
        if number == 0 {
            self.rooms.close(OWN | ticket);
        }
        self.tickets.forget(ticket);
    }

    /// `endpoint`.
    ///
    /// # Errors
    /// If the system does not let it listen.
    pub fn endpoint(&self) -> Result<String> {
        let mut endpoint = self.listen(&mut self.state())?.clone();
        if let (Address::Tcp(used) | Address::Carried(_, used), Some(mut told)) =
            (&mut endpoint.address, self.settings.advertise)
        {
            if told.port() == 0 {
                told.set_port(used.port());
            }
            *used = told;
        }
        Ok(endpoint.to_string())
    }

    /// `connect`.
    ///
    /// # Errors
    /// If the text is no endpoint of this medium, or too many peers are known.
    pub fn connect(&self, text: &str) -> Result<u64> {
        let endpoint = Endpoint::parse(text, self.settings.medium)?;
        let mut state = self.state();
        let known = state.peers.iter().find(|(number, known)| **number != 0 && known.text == text);
        if let Some((number, _)) = known {
            return Ok(*number);
        }
        if state.peers.len() >= MOST_PEERS {
            // Those that nothing is sent to were perhaps started anew under another address.
            let busy: Vec<u64> = state.owners.values().copied().collect();
            state.peers.retain(|number, _| busy.contains(number));
        }
        if state.peers.len() >= MOST_PEERS {
            return Err(Error::internal(format!("{MOST_PEERS} peers are known")));
        }
        // Never a number that was given before: somebody may hold it.
        state.last_ticket += 1;
        let number = state.last_ticket;
        state.peers.insert(number, Known::new(text.to_owned(), endpoint)?);
        Ok(number)
    }

    /// `accept`.
    ///
    /// # Errors
    /// If an item is outside the receiving side or accepted already.
    pub fn accept(&self, a: &Accept<'_>) -> Result<()> {
        if a.room & OWN != 0 {
            return Err(Error::argument(format!("room {} is 2^63 or more", a.room)));
        }
        self.rooms.accept(a)
    }

    /// `close`: the items written.
    pub fn close(&self, room: u64) -> u64 {
        self.rooms.close(room)
    }
}

/// The frames of a put: one range for each contiguous run of items, or several where a run is longer than a frame may be.
fn pieces(
    put: &Put<'_>,
    region: &Region,
    place: Place,
    files: &[RawFd],
    room: u64,
    ticket: u64,
) -> Vec<Piece> {
    let item = region.item_bytes;
    if item == 0 {
        return Vec::new();
    }
    let segment = files.iter().position(|file| *file == region.src_fd);
    let (place, start) = match (segment, place) {
        (Some(segment), _) => (Place::Shared(segment as u32), region.src_offset),
        (None, Place::Carried) => (place, region.src.expose_provenance() as u64),
        (None, _) => (place, 0),
    };
    let most = (place.most() / item).max(1) as usize;
    let mut pieces = Vec::new();
    let mut ranges: Vec<Range> = Vec::new();
    let mut held = 0;
    let mut close = |ranges: &mut Vec<Range>| {
        if !ranges.is_empty() {
            let ranges = std::mem::take(ranges);
            let (component, layer, item_bytes) = (put.component, put.layer, item as u32);
            let frame = Frame { seq: 0, room, component, layer, item_bytes, place, ranges };
            pieces.push(Piece::new(ticket, frame, region.src));
        }
    };
    for run in put.runs() {
        let mut at = 0;
        while at < run.items {
            if held == most || ranges.len() == RANGES {
                close(&mut ranges);
                held = 0;
            }
            let items = (most - held).min(run.items - at);
            let offset = start + (run.src as usize + at) as u64 * item;
            ranges.push(Range { first: (run.dst as usize + at) as u32, items: items as u32, offset });
            (at, held) = (at + items, held + items);
        }
    }
    close(&mut ranges);
    pieces
}

/// The memory of one side of regions, neighbours as one span. Takes (first byte, items) and bytes of an item of each.
fn spans(sides: impl Iterator<Item = ((usize, u64), u64)>) -> Vec<Span> {
    // Regions are no larger than memory, as they were checked.
    let whole = sides.map(|((at, items), bytes)| Span { at, len: (items * bytes) as usize });
    let mut all: Vec<Span> = whole.filter(|span| span.len > 0).collect();
    all.sort_unstable_by_key(|span| span.at);
    let mut spans: Vec<Span> = Vec::new();
    for span in all {
        match spans.last_mut() {
            Some(last) if span.at <= last.at + last.len => {
                last.len = last.len.max(span.at + span.len - last.at);
            }
            _ => spans.push(span),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_span() {
        let sides = [((96, 2), 8), ((0, 0), 64), ((64, 4), 8), ((200, 1), 1), ((64, 1), 8), ((112, 3), 0)];
        let spans = spans(sides.into_iter());
        assert_eq!(spans, [Span { at: 64, len: 48 }, Span { at: 200, len: 1 }]);
    }
}
