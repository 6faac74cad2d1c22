//! The prefill worker's side of rooms: decode workers ask, prompts are computed, and their KV is sent while they are.

use super::Scheduler;
use super::pair::{Failure, Lost, Pair, Registered, call_failure, prompt_sum, put_args, remote};
use crate::disagg::audit;
use crate::disagg::fingerprint::Fingerprints;
use crate::handoff::{context, reason};
use crate::request::FinishReason;
use crate::sequence::{NOT_FINITE, Next, Picked, Sequence, Stage, Ticket};
use crate::watch::StepFault;
use crossbeam_channel::{Receiver, Sender};
use hotseam_abi::{PollArgs, component, transfer};
use hotseam_kv::{Items, KvStore, LayerLayout};
use hotseam_pd::{Done, Fingerprint, PrefillEvent, Reserve, Sums, ToDecode, Writer, WriterLayer};
use hotseam_slots::{CallError, Snapshot, TransportCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rooms that decode workers may ask for before their requests are here.
const MOST_ASKED: usize = 1024;
/// How long a request that is computed anew waits for transfers of what it had.
const SETTLE: Duration = Duration::from_secs(2);
/// Components that are sent page by page while the prompt is computed.
const BY_PAGE: [u32; 3] = [component::C4, component::C128, component::INDEX_KEYS];

/// A decode worker that asks for a room.
struct Target {
    peer: u64,
    fingerprint: Arc<Fingerprint>,
    reserve: Box<Reserve>,
    reply: Sender<ToDecode>,
    since: Instant,
}

impl Target {
    /// Tells the worker that there will be no KV.
    fn refuse(&self, code: &str, message: &str) {
        let (room, code, message) = (self.reserve.room, code.to_owned(), message.to_owned());
        // A worker that is gone needs no answer.
        let _ = self.reply.send(ToDecode::Failed { room, code, message });
    }
}

/// What a request asks for, as far as the decode worker must ask for the same.
struct Asked {
    assignment: String,
    tokens: usize,
    sum: u64,
}

impl Asked {
    fn of(ticket: &Ticket) -> Self {
        let request = &ticket.request;
        let (tokens, sum) = (request.prompt.len(), prompt_sum(&request.prompt));
        Self { assignment: request.assignment.clone(), tokens, sum }
    }
}

/// A room whose request runs here.
struct Room {
    /// `None` while a held prompt waits for somebody to ask.
    target: Option<Target>,
    table: Arc<Snapshot>,
    /// The transport's number of the target.
    peer: u64,
    open: Vec<Open>,
    /// Full pages that were put.
    pages: usize,
    /// Whether everything was put.
    complete: bool,
    /// The first token, once the prompt is computed, and the chunks that took.
    first: Option<(Picked, u32)>,
    /// Whether the client has its answer.
    answered: bool,
    items: u64,
    bytes: u64,
    sums: Vec<Sums>,
    /// When something last went on.
    since: Instant,
}

/// A put that is not known to be done.
struct Open {
    ticket: u64,
    component: u32,
    layer: u32,
    bytes: u64,
}

/// All rooms.
pub(crate) struct PrefillEnd {
    pub(super) events: Receiver<PrefillEvent>,
    /// An event that was taken while waiting.
    pub(super) early: Option<PrefillEvent>,
    asked: HashMap<u64, Target>,
    rooms: HashMap<u64, Room>,
    pub(super) registered: Registered,
    fingerprints: Fingerprints,
    lost: Lost,
}

impl PrefillEnd {
    pub(super) fn new(events: Receiver<PrefillEvent>) -> Self {
        Self {
            events,
            early: None,
            asked: HashMap::new(),
            rooms: HashMap::new(),
            registered: Registered::default(),
            fingerprints: Fingerprints::default(),
            lost: Lost::default(),
        }
    }

    pub(super) fn rooms(&self) -> usize {
        self.asked.len() + self.rooms.len()
    }

    /// Whether any room has somebody to send to.
    pub(super) fn is_sending(&self) -> bool {
        self.rooms.values().any(|room| room.target.is_some())
    }

    /// Whether both workers of a room are here.
    pub(super) fn is_met(&self, room: u64) -> bool {
        self.asked.contains_key(&room) || self.rooms.contains_key(&room)
    }

    /// Tells whoever asks for a room that there will be no KV.
    pub(super) fn turn_away(&mut self, room: u64, code: &str, message: &str) {
        let target = self.asked.remove(&room);
        let target = target.or_else(|| self.rooms.get_mut(&room).and_then(|room| room.target.take()));
        if let Some(target) = target {
            target.refuse(code, message);
        }
    }

    /// As [`Self::turn_away`], of a room whose request does not run.
    pub(super) fn forget(&mut self, room: u64, code: &str, message: &str) {
        self.turn_away(room, code, message);
        self.rooms.remove(&room);
    }

    /// The client of a waiting request has left.
    pub(super) fn left(&mut self, ticket: &Ticket) {
        // Where the room is open, it is that of another request, unless this one is to be computed anew.
        let own = |room: &u64| ticket.resume.is_some() || !self.rooms.contains_key(room);
        if let Some(room) = ticket.room().filter(own) {
            self.forget(room, "E-PD-PEER", "the client of the prefill worker left");
        }
    }

    /// A room is asked for.
    fn ask(&mut self, target: Target) {
        let number = target.reserve.room;
        match self.rooms.get_mut(&number) {
            Some(room) if room.target.is_none() => room.target = Some(target),
            Some(_) => {
                target.refuse("E-PD-ROOM", &format!("room {number} is in use; a room serves one request"))
            }
            None if self.asked.contains_key(&number) => {
                target.refuse(
                    "E-PD-ROOM",
                    &format!("room {number} is asked for already; a room serves one request"),
                );
            }
            None if self.asked.len() >= MOST_ASKED => {
                target.refuse("E-PD-BUSY", &format!("{MOST_ASKED} rooms wait for their requests here"));
            }
            None => {
                self.asked.insert(number, target);
            }
        }
    }
}

impl Scheduler {
    fn sending(&mut self) -> &mut PrefillEnd {
        match &mut self.pair {
            Pair::Prefill(end) => end,
            _ => unreachable!("asked for by the role prefill only"),
        }
    }

    /// Takes what decode workers have said.
    pub(super) fn hear_decode_workers(&mut self) {
        loop {
            let end = self.sending();
            let Some(event) = end.early.take().or_else(|| end.events.try_recv().ok()) else { return };
            match event {
                PrefillEvent::Reserve { peer, fingerprint, reserve, reply } => {
                    end.ask(Target { peer, fingerprint, reserve, reply, since: Instant::now() });
                }
                PrefillEvent::Abort { peer, room, reason } => {
                    let reason: String = reason.chars().take(200).collect();
                    self.forsaken(
                        peer,
                        Some(room),
                        &format!("the decode worker gave the request up: {reason}"),
                    );
                }
                PrefillEvent::Gone { peer } => self.forsaken(peer, None, "the decode worker is gone"),
            }
        }
    }

    /// A decode worker wants no more of a room, or of all that it asked for.
    fn forsaken(&mut self, peer: u64, only: Option<u64>, why: &str) {
        let end = self.sending();
        let its =
            |number: u64, target: &Target| target.peer == peer && only.is_none_or(|room| room == number);
        end.asked.retain(|number, target| !its(*number, target));
        let rooms =
            end.rooms.iter().filter(|(number, room)| room.target.as_ref().is_some_and(|t| its(**number, t)));
        let rooms: Vec<u64> = rooms.map(|(number, _)| *number).collect();
        for room in rooms {
            if let Some(index) = self.member(room) {
                self.fail_running(index, "E-PD-PEER", &format!("room {room}: {why}"));
            }
        }
    }

    /// Fails what has waited too long for its other half.
    pub(super) fn expire_waiting(&mut self) {
        let patience = self.config.pd.bootstrap_timeout;
        let Pair::Prefill(end) = &mut self.pair else { return };
        let seconds = patience.as_secs_f32();
        end.lost.reclaim(&mut self.prefill);
        end.asked.retain(|room, target| {
            let fresh = target.since.elapsed() < patience;
            if !fresh {
                let text =
                    format!("room {room}: no request for it reached the prefill worker in {seconds} s");
                target.refuse("E-PD-BOOTSTRAP", &text);
            }
            fresh
        });
        let before = self.waiting.len();
        self.waiting.retain(|ticket| {
            let Some(bootstrap) = &ticket.request.disaggregation else { return true };
            let room = bootstrap.room;
            let fresh = bootstrap.hold || end.is_met(room) || ticket.since.elapsed() < patience;
            if !fresh {
                ticket.fail(
                    "E-PD-BOOTSTRAP",
                    format!("room {room}: no decode worker asked for it in {seconds} s; is one in the pair, and does it reach this worker's API port?"),
                );
            }
            fresh
        });
        self.published.waiting.fetch_sub(before - self.waiting.len(), std::sync::atomic::Ordering::Relaxed);
    }

    /// Opens the room of a request that is about to start, or refuses the request.
    pub(super) fn open_room(
        &mut self,
        ticket: Ticket,
        table: &Arc<Snapshot>,
        layouts: &Arc<[LayerLayout]>,
    ) -> Option<Ticket> {
        let Some(number) = ticket.room() else { return Some(ticket) };
        let end = self.sending();
        let target = match (&ticket.resume, end.rooms.remove(&number)) {
            (Some(_), Some(room)) => room.target,
            (_, Some(room)) => {
                end.rooms.insert(number, room);
                ticket.fail("E-PD-ROOM", format!("room {number} is in use; a room serves one request"));
                return None;
            }
            (_, None) => end.asked.remove(&number),
        };
        let room = Room {
            target: None,
            table: Arc::clone(table),
            peer: 0,
            open: Vec::new(),
            pages: 0,
            complete: false,
            first: None,
            answered: false,
            items: 0,
            bytes: 0,
            sums: Vec::new(),
            since: Instant::now(),
        };
        let Some(target) = target else {
            self.sending().rooms.insert(number, room);
            return Some(ticket);
        };
        match self.meet(&Asked::of(&ticket), &target, table, layouts) {
            Ok(peer) => {
                let room = Room { target: Some(target), peer, ..room };
                self.sending().rooms.insert(number, room);
                Some(ticket)
            }
            Err((code, message)) => {
                target.refuse(code, &message);
                ticket.fail(code, message);
                None
            }
        }
    }

    /// Checks that a request and the decode worker that asks for it belong together, and names the worker to the transport.
    fn meet(
        &mut self,
        asked: &Asked,
        target: &Target,
        table: &Arc<Snapshot>,
        layouts: &[LayerLayout],
    ) -> Result<u64, Failure> {
        let reserve = &target.reserve;
        let room = reserve.room;
        if reserve.assignment != asked.assignment {
            let message = "prefill and decode were asked for different assignments".to_owned();
            return Err(("E-PD-REQUEST", format!("room {room}: {message}")));
        }
        if (reserve.prompt_tokens, reserve.prompt_sum) != (asked.tokens, asked.sum) {
            let message = format!(
                "room {room}: prefill has a prompt of {} tokens, decode one of {}, and they are not the same",
                asked.tokens, reserve.prompt_tokens
            );
            return Err(("E-PD-REQUEST", message));
        }
        let (model, index_topk) = (&self.model.config, self.config.index_topk);
        let Pair::Prefill(end) = &mut self.pair else { unreachable!("asked for by the role prefill only") };
        let own = end.fingerprints.of(model, index_topk, table, layouts);
        if let Some(text) = own.differences(&target.fingerprint) {
            return Err(("E-PD-FINGERPRINT", format!("the workers do not fit together: {text}")));
        }
        let Some(cell) = table.transport() else {
            unreachable!("a paired registry fills the transport cell")
        };
        let name = &cell.put.generation.spec.name;
        if *name != reserve.transport {
            let message = format!(
                "the workers do not fit together: transport: prefill has `{name}`, decode has `{:.80}`",
                reserve.transport
            );
            return Err(("E-PD-FINGERPRINT", message));
        }
        let remote = remote(cell)?;
        if !end.registered.has(cell, layouts.iter().copied()) {
            let regions = self.prefill.outgoing(layouts);
            end.registered.register(cell, layouts, &regions).map_err(|error| call_failure(&error))?;
        }
        remote.connect.call(&context(), &reserve.endpoint).map_err(|error| call_failure(&error))
    }

    /// Whether a running request is kept for a decode worker although its client has left.
    pub(super) fn is_held(&self, index: usize) -> bool {
        let Pair::Prefill(end) = &self.pair else { return false };
        let room = self.running[index].ticket.room().and_then(|room| end.rooms.get(&room));
        room.is_some_and(|room| room.answered)
    }

    /// A prompt is computed: chooses the first token, which goes beside the KV.
    pub(super) fn prompt_done(&mut self, index: usize, logits: &[f32], chunks: u32) {
        self.running[index].stage = Stage::Sending;
        let Some(picked) = self.running[index].pick(logits) else {
            return self.fail_running(index, NOT_FINITE.0, NOT_FINITE.1);
        };
        let number = self.running[index].ticket.room();
        let Some(room) = number.and_then(|number| self.sending().rooms.get_mut(&number)) else {
            return self.fail_running(index, "E-PD-ROOM", "the request has no room any more");
        };
        room.first = Some((picked.clone(), chunks));
        room.since = Instant::now();
        if self.running[index].ticket.request.disaggregation.as_ref().is_some_and(|b| b.hold) {
            self.answer(index, picked);
        }
    }

    /// Gives the client the first token, which is all that a prefill worker says.
    fn answer(&mut self, index: usize, picked: Picked) {
        let number = self.running[index].ticket.room();
        let room = number.and_then(|number| self.sending().rooms.get_mut(&number));
        if room.is_some_and(|room| std::mem::replace(&mut room.answered, true)) {
            return;
        }
        if let Next::Feed(_) = self.running[index].take(picked) {
            self.running[index].finish(FinishReason::Length);
        }
    }

    /// Sends what is ready, and looks at what was sent.
    pub(super) fn send_turn(&mut self, open: bool) {
        for index in (0..self.running.len()).rev() {
            let Some(number) = self.running[index].ticket.room() else { continue };
            if let Err((code, message)) = self.send_room(index, number, open) {
                self.fail_running(index, code, &message);
            }
        }
    }

    fn send_room(&mut self, index: usize, number: u64, open: bool) -> Result<(), Failure> {
        let (bootstrap, waiting) = (self.config.pd.bootstrap_timeout, self.config.pd.waiting_timeout);
        let Some(mut room) = self.sending().rooms.remove(&number) else { return Ok(()) };
        let computed = self.running[index].stage == Stage::Sending;
        let result = (|| {
            let Some(target) = room.target.take() else {
                return match computed && (!open || room.since.elapsed() > bootstrap) {
                    true => {
                        Err(("E-PD-BOOTSTRAP", format!("room {number}: no decode worker asked for its KV")))
                    }
                    false => Ok(false),
                };
            };
            if room.peer == 0 {
                // Somebody has asked for a prompt that was held.
                let table = Arc::clone(&room.table);
                let layouts = Arc::clone(&self.running[index].layouts);
                let asked = Asked::of(&self.running[index].ticket);
                let met = self.meet(&asked, &target, &table, &layouts);
                let peer = met.inspect_err(|(code, message)| target.refuse(code, message))?;
                room.peer = peer;
            }
            room.target = Some(target);
            let Some(cell) = room.table.transport() else {
                unreachable!("a paired registry fills the transport cell")
            };
            let (store, sequence) = (&self.prefill, &self.running[index]);
            let sent = push(
                store,
                sequence,
                &room.table,
                &mut Puts {
                    open: &mut room.open,
                    pages: &mut room.pages,
                    complete: &mut room.complete,
                    items: &mut room.items,
                    bytes: &mut room.bytes,
                    sums: &mut room.sums,
                    peer: room.peer,
                    reserve: &room.target.as_ref().expect("just set").reserve,
                },
            );
            let moved = sent.and_then(|()| poll(cell, &mut room.open));
            match moved {
                Ok(true) => room.since = Instant::now(),
                Ok(false) if !room.open.is_empty() && room.since.elapsed() > waiting => {
                    let Open { component, layer, .. } = room.open[0];
                    let name = component::NAMES[component as usize];
                    let message = format!(
                        "the transport did not finish {name} of layer {layer} in {} s",
                        waiting.as_secs_f32()
                    );
                    return Err(("E-KV-TIMEOUT", message));
                }
                Ok(false) => {}
                Err(PutError::Given(failure)) => return Err(failure),
                Err(PutError::Call(error)) => {
                    let failure = call_failure(&error);
                    // The last swap may be the cause: the next request is served by what was before it.
                    self.watch.leave(&self.slots, &room.table, &StepFault::Call(error), self.step);
                    return Err(failure);
                }
            }
            Ok(room.complete && room.open.is_empty())
        })();
        match result {
            Ok(true) => {
                self.hand_over(index, room);
                Ok(())
            }
            Ok(false) => {
                self.sending().rooms.insert(number, room);
                Ok(())
            }
            Err(failure) => {
                self.sending().rooms.insert(number, room);
                Err(failure)
            }
        }
    }

    /// Everything has arrived: tells the decode worker, and ends the request here.
    fn hand_over(&mut self, index: usize, room: Room) {
        let number = self.running[index].ticket.room().unwrap_or_default();
        let (Some(target), Some((first, chunks))) = (room.target, room.first) else {
            unreachable!("a complete room has both")
        };
        let done = Done {
            room: number,
            token: first.id,
            logprob: first.logprob.to_bits(),
            top: first.top.iter().map(|(id, logprob)| (*id, logprob.to_bits())).collect(),
            chunks,
            items: room.items,
            bytes: room.bytes,
            sums: room.sums,
            writers: writers(&self.running[index]),
        };
        self.watch.handed_over(&room.table);
        // A worker that is gone by now needs nothing.
        let _ = target.reply.send(ToDecode::Done(Box::new(done)));
        if !room.answered
            && let Next::Feed(_) = self.running[index].take(first)
        {
            self.running[index].finish(FinishReason::Length);
        }
        self.remove(index);
    }

    /// Ends the room of a removed request; whoever waits for it is told.
    pub(super) fn end_sending(&mut self, sequence: Sequence) -> Option<Sequence> {
        let Pair::Prefill(end) = &mut self.pair else { return Some(sequence) };
        let Some(room) = sequence.ticket.room().and_then(|number| end.rooms.remove(&number)) else {
            return Some(sequence);
        };
        if let Some(target) = &room.target {
            target.refuse("E-PD-PEER", "the request ended on the prefill worker before its KV was sent");
        }
        match room.table.transport() {
            Some(cell) if !cancel(cell, &room.open) => {
                end.lost.keep(cell, sequence.kv);
                None
            }
            _ => Some(sequence),
        }
    }

    /// A request is to be computed anew: lets what was sent of it arrive first, since its pages are about to be given back.
    /// False if the request had to be failed.
    pub(super) fn begin_room_again(&mut self, index: usize) -> bool {
        let Pair::Prefill(end) = &mut self.pair else { return true };
        let Some(room) = self.running[index].ticket.room().and_then(|number| end.rooms.get_mut(&number))
        else {
            return true;
        };
        let since = Instant::now();
        let settled = loop {
            let Some(cell) = room.table.transport() else { break true };
            match poll(cell, &mut room.open) {
                Ok(_) if room.open.is_empty() => break true,
                Ok(_) if since.elapsed() < SETTLE => std::thread::yield_now(),
                Ok(_) | Err(_) => break false,
            }
        };
        if !settled {
            let message = "a swap made the prompt be computed anew, and its transfer did not come to rest; send it again";
            self.fail_running(index, "E-PD-RESTART", message);
        }
        settled
    }
}

/// Why a put did not go on.
enum PutError {
    /// A call of the transport.
    Call(CallError),
    /// Something else.
    Given(Failure),
}

impl From<CallError> for PutError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// What putting changes of a room.
struct Puts<'a> {
    open: &'a mut Vec<Open>,
    pages: &'a mut usize,
    complete: &'a mut bool,
    items: &'a mut u64,
    bytes: &'a mut u64,
    sums: &'a mut Vec<Sums>,
    peer: u64,
    reserve: &'a Reserve,
}

/// Puts the pages that no later row changes, and after the last row all that is left.
fn push(store: &KvStore, sequence: &Sequence, table: &Snapshot, puts: &mut Puts<'_>) -> Result<(), PutError> {
    let computed = sequence.stage == Stage::Sending;
    if *puts.complete || (!computed && sequence.kv.complete_pages() <= *puts.pages) {
        return Ok(());
    }
    let own = store.items(&sequence.kv);
    if computed {
        fits(&own, &puts.reserve.items).map_err(PutError::Given)?;
    }
    let pages = own[component::C4 as usize].len();
    let end = if computed { pages } else { sequence.kv.complete_pages() };
    if puts.reserve.items[component::C4 as usize].len() < end {
        let message = "the decode worker named fewer pages than the prompt has".to_owned();
        return Err(PutError::Given(("E-PD-REQUEST", message)));
    }
    let first = *puts.pages;
    let Some(cell) = table.transport() else { unreachable!("a paired registry fills the transport cell") };
    let regions = store.outgoing(&sequence.layouts);
    for region in &regions {
        let of = region.component as usize;
        let range = match (BY_PAGE.contains(&region.component), computed) {
            (true, _) => first..end,
            (false, true) => 0..own[of].len(),
            (false, false) => continue,
        };
        if range.is_empty() {
            continue;
        }
        let (src, dst) = (&own[of][range.clone()], &puts.reserve.items[of][range]);
        if puts.reserve.audit {
            let sums = audit::sums(region, src);
            let place = (region.component, region.layer);
            match puts.sums.iter_mut().find(|known| (known.component, known.layer) == place) {
                Some(known) => known.sums.extend(sums),
                None => puts.sums.push(Sums { component: place.0, layer: place.1, sums }),
            }
        }
        let mut ticket = 0;
        let place = (region.component, region.layer);
        let args = put_args((puts.reserve.room, puts.peer), place, (src, dst), &mut ticket);
        cell.put.call(&context(), &args, src.len())?;
        let bytes = region.item_bytes * src.len() as u64;
        puts.open.push(Open { ticket, component: place.0, layer: place.1, bytes });
        *puts.items += src.len() as u64;
        *puts.bytes += bytes;
    }
    (*puts.pages, *puts.complete) = (end, computed);
    Ok(())
}

/// Refuses lists that do not have the lengths of this worker's.
fn fits(own: &Items, theirs: &Items) -> Result<(), Failure> {
    let differs = (0..own.len()).find(|of| own[*of].len() != theirs[*of].len());
    match differs {
        None => Ok(()),
        Some(of) => {
            let (name, here, there) = (component::NAMES[of], own[of].len(), theirs[of].len());
            let message = format!("{name}: prefill has {here} items to send, decode named {there}");
            Err(("E-PD-REQUEST", message))
        }
    }
}

/// Takes the puts that are done out of `open`; whether there were any.
fn poll(cell: &TransportCell, open: &mut Vec<Open>) -> Result<bool, PutError> {
    let mut moved = false;
    let mut at = 0;
    while at < open.len() {
        let put = &open[at];
        let size = size_of::<PollArgs>() as u32;
        let mut args = PollArgs { size, state: transfer::PENDING, ticket: put.ticket, bytes: 0 };
        cell.poll.call(&context(), &mut args)?;
        let (name, layer) = (component::NAMES[put.component as usize], put.layer);
        match args.state {
            transfer::DONE if args.bytes == put.bytes => {
                open.swap_remove(at);
                moved = true;
            }
            transfer::DONE => {
                let (found, expected) = (args.bytes, put.bytes);
                open.swap_remove(at);
                let message = format!(
                    "the transport says that {name} of layer {layer} is done with {found} bytes moved, expected {expected}"
                );
                return Err(PutError::Given(("E-KV-TRANSFER", message)));
            }
            transfer::FAILED => {
                open.swap_remove(at);
                let message = format!("the transport gave up {name} of layer {layer}: {}", reason());
                return Err(PutError::Given(("E-KV-TRANSFER", message)));
            }
            _ => at += 1,
        }
    }
    Ok(moved)
}

/// Gives puts up; whether the transport confirmed that it reads their source no more.
fn cancel(cell: &TransportCell, open: &[Open]) -> bool {
    open.iter().fold(true, |quiet, put| match cell.cancel.call(&context(), put.ticket) {
        Ok(()) => quiet,
        Err(error) => {
            tracing::error!(%error, "transport did not cancel a ticket; its pages wait for the end of the instance");
            false
        }
    })
}

/// Who wrote the KV of a sequence, to be told to another process.
fn writers(sequence: &Sequence) -> Vec<Writer> {
    let runs = sequence.kv.history().runs().iter();
    let of = |run: &hotseam_kv::Run| {
        let mut codes: Vec<(String, String)> = Vec::new();
        let mut index = |code: &hotseam_kv::Code| {
            let known =
                codes.iter().position(|(variant, hash)| (variant, hash) == (&code.variant, &code.hash));
            known.unwrap_or_else(|| {
                codes.push((code.variant.clone(), code.hash.clone()));
                codes.len() - 1
            })
        };
        let layers = run.writer.layers.iter().map(|layer| {
            let (store, core) = (index(&layer.store), index(&layer.core));
            let mut maybe = |code: &Option<Arc<hotseam_kv::Code>>| code.as_ref().map(|code| index(code));
            let (compress, index_compress) = (maybe(&layer.compress), maybe(&layer.index_compress));
            WriterLayer { store, core, compress, index_compress, select: maybe(&layer.select) }
        });
        let layers = layers.collect();
        let digest = run.writer.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Writer { end: run.end, digest, codes, layers }
    };
    runs.map(of).collect()
}
