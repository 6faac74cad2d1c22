//! The decode worker's side of rooms: pages are opened and named to the prefill worker, and decoding begins when all is there.

use super::Scheduler;
use super::pair::{Failure, Pair, Registered, call_failure, prompt_sum, publish_map, remote};
use crate::disagg::fingerprint::Fingerprints;
use crate::sequence::{Next, Picked, Sequence, Stage, Ticket};
use crate::transfer::{Lost, context};
use crate::watch::StepFault;
use crossbeam_channel::Receiver;
use hotseam_abi::{AcceptArgs, ERR_INTERNAL, Region, phase};
use hotseam_kv::{Code, LayerCode, LayerLayout, PhaseCode, SeqKv};
use hotseam_pd::{DecodeEvent, DecodeSide, Done, Reserve, Writer, WriterLayer};
use hotseam_slots::{CallError, Digest, Snapshot};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Writers that are remembered.
const WRITERS: usize = 32;

/// A room whose request waits for its KV.
struct Room {
    table: Arc<Snapshot>,
    host: String,
    port: u16,
    items: u64,
    bytes: u64,
    since: Instant,
}

/// All rooms.
pub(crate) struct DecodeEnd {
    side: DecodeSide,
    pub(super) events: Receiver<DecodeEvent>,
    /// An event that was taken while waiting.
    pub(super) early: Option<DecodeEvent>,
    rooms: HashMap<u64, Room>,
    pub(super) registered: Registered,
    fingerprints: Fingerprints,
    /// Writers elsewhere, so that equal ones are one.
    writers: Vec<(Writer, Arc<PhaseCode>)>,
    lost: Lost,
    /// When a prefill worker last wanted a room to be asked for once more.
    again: Option<Instant>,
}

/// How long no room is asked for after that.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a room was not asked for.
enum Unasked {
    /// A call of the transport.
    Call(CallError),
    /// Something else.
    Given(Failure),
}

impl From<Failure> for Unasked {
    fn from(failure: Failure) -> Self {
        Self::Given(failure)
    }
}

impl DecodeEnd {
    pub(super) fn new(side: DecodeSide, events: Receiver<DecodeEvent>) -> Self {
        Self {
            side,
            events,
            early: None,
            rooms: HashMap::new(),
            registered: Registered::default(),
            fingerprints: Fingerprints::default(),
            writers: Vec::new(),
            lost: Lost::default(),
            again: None,
        }
    }

    /// Whether no room is to be asked for at the moment.
    pub(super) fn pauses(&self) -> bool {
        self.again.is_some_and(|again| again.elapsed() < PAUSE)
    }

    pub(super) fn rooms(&self) -> usize {
        self.rooms.len()
    }

    /// The code of a writer elsewhere; `None` if what is said of it makes no sense.
    fn writer(&mut self, writer: &Writer, assignment: &str, layers: usize) -> Option<Arc<PhaseCode>> {
        let same = |known: &Writer| {
            (&known.digest, &known.codes, &known.layers) == (&writer.digest, &writer.codes, &writer.layers)
        };
        if let Some((_, code)) =
            self.writers.iter().find(|(known, code)| same(known) && code.assignment == assignment)
        {
            return Some(Arc::clone(code));
        }
        if writer.layers.len() != layers {
            return None;
        }
        let digest = *writer.digest.parse::<Digest>().ok()?.bytes();
        let code = |(variant, hash): &(String, String)| {
            Arc::new(Code { variant: variant.clone(), hash: hash.clone() })
        };
        let codes: Vec<Arc<Code>> = writer.codes.iter().map(code).collect();
        let layer = |of: &WriterLayer| {
            let maybe = |index: &Option<usize>| match index {
                None => Some(None),
                Some(index) => codes.get(*index).cloned().map(Some),
            };
            Some(LayerCode {
                store: codes.get(of.store)?.clone(),
                compress: maybe(&of.compress)?,
                core: codes.get(of.core)?.clone(),
                index_compress: maybe(&of.index_compress)?,
                select: maybe(&of.select)?,
            })
        };
        let layers = writer.layers.iter().map(layer).collect::<Option<Vec<_>>>()?;
        let code =
            Arc::new(PhaseCode { assignment: assignment.to_owned(), digest, phase: phase::PREFILL, layers });
        if self.writers.len() == WRITERS {
            self.writers.remove(0);
        }
        self.writers.push((writer.clone(), Arc::clone(&code)));
        Some(code)
    }
}

impl Scheduler {
    fn receiving(&mut self) -> &mut DecodeEnd {
        match &mut self.pair {
            Pair::Decode(end) => end,
            _ => unreachable!("asked for by the role decode only"),
        }
    }

    /// Opens pages for a request and asks the prefill worker for their bytes.
    pub(super) fn receive(&mut self, ticket: Ticket, table: &Arc<Snapshot>, layouts: &Arc<[LayerLayout]>) {
        let mut table = Arc::clone(table);
        let (code, message) = loop {
            let error = match self.reserve(&ticket, &table, layouts) {
                Ok(kv) => {
                    let mut sequence = Sequence::new(ticket, kv, Arc::clone(layouts));
                    sequence.stage = Stage::Receiving;
                    return self.running.push(sequence);
                }
                Err(Unasked::Given(failure)) => break failure,
                Err(Unasked::Call(error)) => error,
            };
            let failure = call_failure(&error);
            // The last swap may be the cause: the request is served by what was before it.
            let next = self.watch.leave(&self.slots, &table, &StepFault::Call(error), self.step);
            let same =
                |next: &Arc<Snapshot>| super::layouts(&self.model.config, next).eq(layouts.iter().copied());
            match next.filter(same) {
                Some(next) => table = next,
                None => break failure,
            }
        };
        ticket.fail(code, message);
    }

    fn reserve(
        &mut self,
        ticket: &Ticket,
        table: &Arc<Snapshot>,
        layouts: &[LayerLayout],
    ) -> Result<SeqKv, Unasked> {
        let Some(bootstrap) = &ticket.request.disaggregation else {
            unreachable!("the role decode takes no request without one")
        };
        let room = bootstrap.room;
        let Pair::Decode(end) = &mut self.pair else { unreachable!("asked for by the role decode only") };
        if end.rooms.contains_key(&room) {
            return Err(("E-PD-ROOM", format!("room {room} is in use; a room serves one request")).into());
        }
        let Some(cell) = table.transport() else {
            unreachable!("a paired registry fills the transport cell")
        };
        let remote = remote(cell)?;
        if !end.registered.has(cell, layouts.iter().copied()) {
            let regions = self.prefill.incoming(layouts);
            end.registered.register(cell, layouts, &regions).map_err(Unasked::Call)?;
        }
        let endpoint = remote.endpoint.call(&context()).map_err(Unasked::Call)?;
        let prompt = &ticket.request.prompt;
        let kv = self.prefill.expect(prompt.len(), ticket.tokens());
        let kv = kv.map_err(|error| ("E-KV-EXHAUSTED", error.to_string()))?;
        let items = self.prefill.items(&kv);
        let regions = self.prefill.incoming(layouts);
        if let Some(audit) = &mut self.audit {
            audit.begin(&mut self.prefill, &regions, &items);
        }
        let (mut count, mut bytes) = (0, 0);
        let mut accept = |region: &Region| {
            let list = &items[region.component as usize];
            if list.is_empty() {
                return Ok(());
            }
            let args = AcceptArgs {
                size: size_of::<AcceptArgs>() as u32,
                component: region.component,
                layer: region.layer,
                n_items: list.len() as u32,
                room,
                items: list.as_ptr(),
            };
            count += list.len() as u64;
            bytes += list.len() as u64 * region.item_bytes;
            remote.accept.call(&context(), &args, list.len())
        };
        if let Err(error) = regions.iter().try_for_each(&mut accept) {
            match remote.close.call(&context(), room) {
                Ok(_) => self.prefill.close(kv),
                Err(_) => end.lost.keep(cell, kv),
            }
            return Err(Unasked::Call(error));
        }
        let fingerprint = end.fingerprints.of(&self.model.config, self.config.index_topk, table, layouts);
        let reserve = Reserve {
            room,
            assignment: ticket.request.assignment.clone(),
            prompt_tokens: prompt.len(),
            prompt_sum: prompt_sum(prompt),
            layout: fingerprint.digest(),
            transport: cell.put.generation.spec.name.clone(),
            endpoint,
            items,
            audit: self.audit.is_some(),
        };
        let (host, port) = (bootstrap.host.clone(), bootstrap.port);
        end.side.reserve(&host, port, fingerprint, Box::new(reserve));
        let (table, since) = (Arc::clone(table), Instant::now());
        end.rooms.insert(room, Room { table, host, port, items: count, bytes, since });
        Ok(kv)
    }

    /// Takes what prefill workers have said.
    pub(super) fn hear_prefill_workers(&mut self) {
        loop {
            let end = self.receiving();
            let Some(event) = end.early.take().or_else(|| end.events.try_recv().ok()) else { return };
            match event {
                DecodeEvent::Failed { room, code, message } => {
                    if let Some(index) = self.receiver(room) {
                        let (code, message) = (code.chars().take(32).collect::<String>(), message);
                        self.fail_running(index, &code, &message);
                    }
                }
                DecodeEvent::Again { room } => {
                    if let Some(index) = self.receiver(room) {
                        self.ask_again(index, room);
                    }
                }
                DecodeEvent::Done(done) => {
                    if let Some(index) = self.receiver(done.room)
                        && let Err((code, message)) = self.arrived(index, &done)
                    {
                        self.blame_swap(done.room, code, &message);
                        self.fail_running(index, code, &message);
                    }
                }
            }
        }
    }

    /// What did not arrive as it was to may be due to a swap that is being tried.
    fn blame_swap(&mut self, room: u64, code: &str, message: &str) {
        let Pair::Decode(end) = &self.pair else { return };
        let Some(table) = end.rooms.get(&room).map(|room| Arc::clone(&room.table)) else { return };
        let Some(cell) = table.transport().filter(|_| code.starts_with("E-KV-")) else { return };
        if self.watch.of_group(table.name()).is_some() {
            let (variant, message) = (cell.put.generation.spec.to_string(), message.to_owned());
            let error = CallError { cell: cell.put.cell(), variant, code: ERR_INTERNAL, message };
            self.watch.leave(&self.slots, &table, &StepFault::Call(error), self.step);
        }
    }

    /// Puts a request back into the line whose room is to be asked for once more.
    fn ask_again(&mut self, index: usize, number: u64) {
        let first = *self.running[index].ticket.again.get_or_insert_with(Instant::now);
        if self.config.pd.swap_group.is_none() || first.elapsed() > self.config.pd.waiting_timeout {
            let message = format!("room {number}: the prefill worker wants to be asked again and again");
            return self.fail_running(index, "E-PD-PEER", &message);
        }
        let Sequence { ticket, kv, .. } = self.running.remove(index);
        let Pair::Decode(end) = &mut self.pair else { unreachable!("asked for by the role decode only") };
        end.again = Some(Instant::now());
        let cell = end.rooms.remove(&number).and_then(|room| {
            Some((remote(room.table.transport()?).ok()?.close.call(&context(), number), room))
        });
        match cell {
            Some((Err(error), room)) => {
                tracing::error!(%error, "transport did not close a room; its pages wait for the end of the instance");
                if let Some(cell) = room.table.transport() {
                    end.lost.keep(cell, kv);
                }
            }
            _ => self.prefill.close(kv),
        }
        self.published.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting.push_front(ticket);
    }

    /// The running request that waits for a room's KV.
    fn receiver(&self, room: u64) -> Option<usize> {
        self.member(room).filter(|index| self.running[*index].stage == Stage::Receiving)
    }

    /// The prefill worker says that all is in place: checks it, and begins to decode.
    fn arrived(&mut self, index: usize, done: &Done) -> Result<(), Failure> {
        let Pair::Decode(end) = &mut self.pair else { unreachable!("asked for by the role decode only") };
        let Some(room) = end.rooms.get(&done.room) else { return Ok(()) };
        let Some(cell) = room.table.transport() else {
            unreachable!("a paired registry fills the transport cell")
        };
        let written =
            remote(cell)?.close.call(&context(), done.room).map_err(|error| call_failure(&error))?;
        if (written, done.items, done.bytes) != (room.items, room.items, room.bytes) {
            let message = format!(
                "{written} items were written, of {} that prefill says it sent in {} bytes; expected {} in {} bytes",
                done.items, done.bytes, room.items, room.bytes
            );
            return Err(("E-KV-TRANSFER", message));
        }
        if done.token as usize >= self.model.config.vocab_size {
            return Err(("E-PD-MESSAGE", "prefill's first token is outside the vocabulary".to_owned()));
        }
        let sequence = &mut self.running[index];
        if let Some(audit) = &mut self.audit {
            let regions = self.prefill.incoming(&sequence.layouts);
            let (items, transport) = (self.prefill.items(&sequence.kv), cell.put.generation.spec.to_string());
            let of = (done.room, sequence.ticket.request.assignment.as_str(), transport.as_str());
            let map = audit.check(&self.prefill, &regions, &items, &done.sums, of);
            let verdict = map.verdict();
            publish_map(&self.published, Some(map));
            if let Some(text) = verdict {
                return Err(("E-KV-AUDIT", text));
            }
        }
        let (assignment, layers) = (sequence.ticket.request.assignment.clone(), sequence.layouts.len());
        let (carrier, table) = (self.provenance.carrier(cell), Arc::clone(&room.table));
        for writer in &done.writers {
            let code = end.writer(writer, &assignment, layers);
            let code =
                code.ok_or_else(|| ("E-PD-MESSAGE", "prefill's list of writers makes no sense".to_owned()))?;
            sequence.kv.written_until(writer.end, &code);
        }
        sequence.kv.carried_by(&carrier);
        end.rooms.remove(&done.room);
        self.watch.handed_over(&table);
        self.published.generated_tokens.fetch_add(1, Ordering::Relaxed);
        let top = done.top.iter().map(|(id, bits)| (*id, f32::from_bits(*bits))).collect();
        let picked = Picked { id: done.token, logprob: f32::from_bits(done.logprob), top };
        sequence.skip_choice();
        match sequence.take(picked) {
            Next::Feed(next) => sequence.stage = Stage::Decode { next, chunk: done.chunks },
            Next::Ended => self.remove(index),
        }
        Ok(())
    }

    /// Fails what has waited too long.
    pub(super) fn receive_turn(&mut self) {
        let patience = self.config.pd.waiting_timeout;
        let Pair::Decode(end) = &mut self.pair else { return };
        end.side.look_for_members();
        end.lost.reclaim(&mut self.prefill);
        // What a swap of the group keeps from being asked for once more does not wait for the prefill worker.
        for ticket in
            self.waiting.iter_mut().filter(|ticket| self.watch.group_holds(&ticket.request.assignment))
        {
            ticket.again = ticket.again.map(|_| Instant::now());
        }
        let late: Vec<u64> = end
            .rooms
            .iter()
            .filter(|(_, room)| room.since.elapsed() > patience)
            .map(|(room, _)| *room)
            .collect();
        for room in late {
            if let Some(index) = self.receiver(room) {
                let seconds = patience.as_secs_f32();
                let message =
                    format!("room {room}: the prefill worker did not deliver its KV in {seconds} s");
                self.fail_running(index, "E-KV-TIMEOUT", &message);
            }
        }
    }

    /// Ends the room of a removed request, if its KV was still to come.
    pub(super) fn end_receiving(&mut self, sequence: Sequence) -> Option<Sequence> {
        let Pair::Decode(end) = &mut self.pair else { return Some(sequence) };
        if sequence.stage != Stage::Receiving {
            return Some(sequence);
        }
        let Some((number, room)) =
            sequence.ticket.room().and_then(|number| Some((number, end.rooms.remove(&number)?)))
        else {
            return Some(sequence);
        };
        end.side.abort(&room.host, room.port, number, "the request ended on the decode worker");
        let Some(cell) = room.table.transport() else { return Some(sequence) };
        match remote(cell).map(|remote| remote.close.call(&context(), number)) {
            Ok(Ok(_)) => Some(sequence),
            Ok(Err(error)) => {
                tracing::error!(%error, "transport did not close a room; its pages wait for the end of the instance");
                end.lost.keep(cell, sequence.kv);
                None
            }
            Err(_) => Some(sequence),
        }
    }
}
