//! The prefill worker's side of rooms: decode workers ask, prompts are computed, and their KV is sent while they are.

mod puts;
mod rooms;

pub(crate) use rooms::PrefillEnd;

use super::Scheduler;
use super::layouts;
use super::pair::{Failure, Pair, remote};
use crate::request::FinishReason;
use crate::sequence::{Last, NOT_FINITE, Next, Picked, Sequence, Stage, Ticket};
use crate::transfer::{cancel, context};
use crate::watch::StepFault;
use hotseam_kv::LayerLayout;
use hotseam_pd::{Done, Fingerprint, PrefillEvent, Reserve, ToDecode};
use hotseam_slots::Snapshot;
use puts::{PutError, Sent, poll, push, writers};
use rooms::{Asked, Room, Target};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a request that is computed anew waits for transfers of what it had.
const SETTLE: Duration = Duration::from_secs(2);

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
                    let table = self.table_of_group(&reserve, &fingerprint);
                    let since = Instant::now();
                    self.sending().ask(Target { peer, fingerprint, reserve, reply, table, since });
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

    /// While a swap of the group lasts, which of its tables serves a reservation that was made under either: the one in force
    /// where only variants that write KV differ, and with the transport that the reservation names.
    fn table_of_group(&mut self, reserve: &Reserve, theirs: &Fingerprint) -> Option<Arc<Snapshot>> {
        let now = self.watch.table(&self.slots, &reserve.assignment)?;
        let [from, to] = self.watch.of_group(&reserve.assignment)?.map(Arc::clone);
        let (model, index_topk) = (&self.model.config, self.config.index_topk);
        let Pair::Prefill(end) = &mut self.pair else { unreachable!("asked for by the role prefill only") };
        let mut of = |table: Arc<Snapshot>| {
            let layouts: Vec<LayerLayout> = layouts(model, &table).collect();
            let print = end.fingerprints.of(model, index_topk, &table, &layouts);
            (table, print, layouts)
        };
        let tables = [now, from, to].map(&mut of);
        let (_, _, shown) = tables[1..].iter().find(|(_, print, _)| **print == *theirs)?;
        let fits = |table: &Snapshot| {
            table.transport().is_some_and(|cell| cell.put.generation.spec.name == reserve.transport)
        };
        let found = tables.iter().find(|(table, _, layouts)| layouts == shown && fits(table));
        found.map(|(table, _, _)| Arc::clone(table))
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

    /// Fails what has waited too long for its other half. While a swap of the group holds its assignment the other worker does not
    /// ask, and nothing of that time counts.
    pub(super) fn expire_waiting(&mut self) {
        let patience = self.config.pd.bootstrap_timeout;
        let Pair::Prefill(end) = &mut self.pair else { return };
        let seconds = patience.as_secs_f32();
        end.lost.reclaim(&mut self.prefill);
        end.asked.retain(|room, target| {
            if self.watch.group_holds(&target.reserve.assignment) {
                target.since = Instant::now();
            }
            let fresh = target.since.elapsed() < patience;
            if !fresh {
                let text =
                    format!("room {room}: no request for it reached the prefill worker in {seconds} s");
                target.refuse("E-PD-BOOTSTRAP", &text);
            }
            fresh
        });
        let before = self.waiting.len();
        self.waiting.retain_mut(|ticket| {
            if self.watch.group_holds(&ticket.request.assignment) {
                ticket.since = Instant::now();
            }
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
        self.published.waiting.fetch_sub(before - self.waiting.len(), Ordering::Relaxed);
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
        let known = target.as_ref().and_then(|target| target.table.clone());
        if let (Some(known), Some(target)) = (&known, &target)
            && self.watch.of_group(table.name()).is_some()
            && !self::layouts(&self.model.config, known).eq(layouts.iter().copied())
        {
            // A swap is being taken back, and what was named has the layout of the other table.
            target.again();
            self.wait_again(ticket);
            return None;
        }
        let table = known.as_ref().unwrap_or(table);
        let room = Room {
            target: None,
            table: Arc::clone(table),
            peer: 0,
            sent: Sent::default(),
            first: None,
            answered: false,
            since: Instant::now(),
        };
        let Some(mut target) = target else {
            self.sending().rooms.insert(number, room);
            return Some(ticket);
        };
        match self.meet(&Asked::of(&ticket), &target, table, layouts) {
            Ok(peer) => {
                target.table = Some(Arc::clone(table));
                let room = Room { target: Some(target), peer, ..room };
                self.sending().rooms.insert(number, room);
                Some(ticket)
            }
            Err(error) => {
                let (code, message) = error.failure();
                if self.blames_swap(table, error) {
                    target.again();
                    self.wait_again(ticket);
                    return None;
                }
                target.refuse(code, &message);
                ticket.fail(code, message);
                None
            }
        }
    }

    /// What is wrong with a hand-off may be due to the last swap: its table is left. True if a swap of the group is being tried, or
    /// the table has been left meanwhile, so that the request can be served on the other table once the decode worker has asked
    /// on that.
    fn blames_swap(&mut self, table: &Arc<Snapshot>, error: PutError) -> bool {
        let called = matches!(error, PutError::Call(_));
        let of_group = self.watch.of_group(table.name()).is_some();
        let Some(error) = table.transport().and_then(|cell| error.fault(cell)) else { return false };
        if called || of_group {
            self.watch.leave(&self.slots, table, &StepFault::Call(error), self.step);
        }
        let now = self.watch.table(&self.slots, table.name()).filter(|_| self.config.pd.swap_group.is_some());
        of_group || now.is_some_and(|now| !Arc::ptr_eq(&now, table))
    }

    /// Puts a request that has no room any more back into the line, until it is asked for once more.
    fn wait_again(&mut self, mut ticket: Ticket) {
        ticket.since = Instant::now();
        self.published.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting.push_back(ticket);
    }

    /// Checks that a request and the decode worker that asks for it belong together, and names the worker to the transport.
    fn meet(
        &mut self,
        asked: &Asked,
        target: &Target,
        table: &Arc<Snapshot>,
        layouts: &[LayerLayout],
    ) -> Result<u64, PutError> {
        let reserve = &target.reserve;
        let room = reserve.room;
        if reserve.assignment != asked.assignment {
            let message = "prefill and decode were asked for different assignments".to_owned();
            return Err(("E-PD-REQUEST", format!("room {room}: {message}")).into());
        }
        if (reserve.prompt_tokens, reserve.prompt_sum) != (asked.tokens, asked.sum) {
            let message = format!(
                "room {room}: prefill has a prompt of {} tokens, decode one of {}, and they are not the same",
                asked.tokens, reserve.prompt_tokens
            );
            return Err(("E-PD-REQUEST", message).into());
        }
        let (model, index_topk) = (&self.model.config, self.config.index_topk);
        let Pair::Prefill(end) = &mut self.pair else { unreachable!("asked for by the role prefill only") };
        let own = end.fingerprints.of(model, index_topk, table, layouts);
        // What is known to fit may have another writer: that of the table on the other side of a swap of the group.
        let fits = target.table.is_some() && self::layouts(model, table).eq(layouts.iter().copied());
        if let Some(text) = own.differences(&target.fingerprint).filter(|_| !fits) {
            return Err(("E-PD-FINGERPRINT", format!("the workers do not fit together: {text}")).into());
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
            return Err(("E-PD-FINGERPRINT", message).into());
        }
        let remote = remote(cell)?;
        if !end.registered.has(cell, layouts.iter().copied()) {
            let regions = self.prefill.outgoing(layouts);
            end.registered.register(cell, layouts, &regions).map_err(PutError::Call)?;
        }
        remote.connect.call(&context(), &reserve.endpoint).map_err(PutError::Call)
    }

    /// Whether a running request is kept for a decode worker although its client has left.
    pub(super) fn is_held(&self, index: usize) -> bool {
        let Pair::Prefill(end) = &self.pair else { return false };
        let room = self.running[index].ticket.room().and_then(|room| end.rooms.get(&room));
        room.is_some_and(|room| room.answered)
    }

    /// A prompt is computed: chooses the first token, which goes beside the KV.
    pub(super) fn prompt_done(&mut self, index: usize, last: Last<'_>, chunks: u32) {
        self.running[index].stage = Stage::Sending;
        let Some(picked) = self.running[index].pick(last) else {
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

    /// The table that a kept prompt is sent with: that of its reservation, or in a swap group the one in force now. Its KV must
    /// be of the same layout.
    fn table_of_kept(&mut self, room: &Room, target: &Target, kept: &[LayerLayout]) -> Arc<Snapshot> {
        let now = self.watch.table(&self.slots, room.table.name());
        let now = now.filter(|_| self.config.pd.swap_group.is_some());
        let mut tables = target.table.clone().into_iter().chain(now);
        let same = tables.find(|table| layouts(&self.model.config, table).eq(kept.iter().copied()));
        same.unwrap_or_else(|| Arc::clone(&room.table))
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
                let layouts = Arc::clone(&self.running[index].layouts);
                let table = self.table_of_kept(&room, &target, &layouts);
                let asked = Asked::of(&self.running[index].ticket);
                match self.meet(&asked, &target, &table, &layouts) {
                    Ok(peer) => (room.peer, room.table) = (peer, table),
                    Err(error) => {
                        let failure = error.failure();
                        if self.blames_swap(&table, error) {
                            target.again();
                            return Ok(false);
                        }
                        target.refuse(failure.0, &failure.1);
                        return Err(failure);
                    }
                }
            }
            room.target = Some(target);
            let Some(cell) = room.table.transport() else {
                unreachable!("a paired registry fills the transport cell")
            };
            let (store, sequence) = (&self.prefill, &self.running[index]);
            let reserve = &room.target.as_ref().expect("just set").reserve;
            let put = push(store, sequence, &room.table, &mut room.sent, (room.peer, reserve));
            let moved = put.and_then(|()| poll(cell, &mut room.sent.open));
            match moved {
                Ok(true) => room.since = Instant::now(),
                Ok(false) if !room.sent.open.is_empty() && room.since.elapsed() > waiting => {
                    let (name, layer) = (room.sent.open[0].component(), room.sent.open[0].layer);
                    let message = format!(
                        "the transport did not finish {name} of layer {layer} in {} s",
                        waiting.as_secs_f32()
                    );
                    return Err(("E-KV-TIMEOUT", message));
                }
                Ok(false) => {}
                Err(error) => {
                    let failure = error.failure();
                    if !self.blames_swap(&room.table, error) || !cancel(cell, &room.sent.open) {
                        return Err(failure);
                    }
                    if let Some(target) = room.target.take() {
                        target.again();
                    }
                    (room.sent, room.peer, room.since) = (Sent::default(), 0, Instant::now());
                    return Ok(false);
                }
            }
            Ok(room.sent.complete && room.sent.open.is_empty())
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
            items: room.sent.items,
            bytes: room.sent.bytes,
            sums: room.sent.sums,
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
            Some(cell) if !cancel(cell, &room.sent.open) => {
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
            match poll(cell, &mut room.sent.open) {
                Ok(_) if room.sent.open.is_empty() => break true,
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
