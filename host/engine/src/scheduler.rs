//! The engine thread: who runs in the next step.
//!
//! Each turn takes new requests, admits those that fit, runs one prefill step for the oldest prompt's assignment and one
//! decode step for each assignment that decodes. A failed step fails its own requests only.

use crate::engine::Published;
use crate::forward::{Forward, Step};
use crate::guard::Guard;
use crate::handoff::Handoff;
use crate::observe::{Handed, Probe};
use crate::prefix::{self, PrefixCache};
use crate::provenance::Provenance;
use crate::request::FinishReason;
use crate::sequence::{Group, Next, Sequence, Stage, Ticket, Writers};
use crate::{EngineConfig, Topology};
use crossbeam_channel::{Receiver, TryRecvError};
use hotseam_kv::{KvConfig, KvStore, LayerLayout, Layout, PAGE_TOKENS, Plan};
use hotseam_model::{LayerClass, Model, ModelConfig};
use hotseam_slots::{Phase, Slots, Snapshot};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The engine thread's state.
pub(crate) struct Scheduler {
    model: Arc<Model>,
    slots: Arc<Slots>,
    config: EngineConfig,
    published: Arc<Published>,
    forward: Forward,
    plan: Plan,
    /// KV of prompts, and under `single` of everything.
    prefill: KvStore,
    /// KV of answers under `paired`.
    decode: Option<KvStore>,
    handoff: Handoff,
    prefixes: PrefixCache,
    waiting: VecDeque<Ticket>,
    running: Vec<Sequence>,
    step: u64,
    rooms: u64,
    /// Members of the step that is being built: (index into `running`, rows).
    members: Vec<(usize, usize)>,
    /// `[rows]` tokens of the step.
    tokens: Vec<i32>,
    /// Rows of the step whose logits are wanted.
    wanted: Vec<usize>,
    /// `[wanted, vocab]` logits of the step.
    logits: Vec<f32>,
    /// Number of the running turn.
    turn: u64,
    provenance: Provenance,
    /// Set where calls are guarded.
    guard: Option<Guard>,
}

/// The layouts that a snapshot's variants declare.
fn layouts(model: &ModelConfig, snapshot: &Snapshot) -> impl Iterator<Item = LayerLayout> {
    let layout = |l: hotseam_slots::Layout| Layout { id: l.id, entry_bytes: l.entry_bytes };
    (0..model.num_hidden_layers).map(move |layer| LayerLayout {
        kv: layout(snapshot.kv_layout(layer)),
        keys: snapshot.key_layout(layer).filter(|_| model.class(layer) == LayerClass::Csa).map(layout),
    })
}

fn is_prefill(sequence: &Sequence) -> bool {
    matches!(sequence.stage, Stage::Prefill { .. })
}

/// Says that the engine has stopped, however its thread ends.
struct Stopped(Arc<Published>);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }
}

impl Scheduler {
    pub(crate) fn new(
        model: Arc<Model>,
        slots: Arc<Slots>,
        config: EngineConfig,
        published: Arc<Published>,
    ) -> Self {
        let kv =
            KvConfig { pages: config.total_pages(), max_seqs: config.max_seqs, max_rows: config.max_rows() };
        let store = || KvStore::new(&model.config, kv);
        Self {
            forward: Forward::new(Arc::clone(&model), config.max_rows(), config.index_topk),
            plan: Plan::default(),
            prefill: store(),
            decode: (config.topology == Topology::Paired).then(store),
            handoff: Handoff::default(),
            prefixes: PrefixCache::new(config.prefix_cache_bytes),
            waiting: VecDeque::new(),
            running: Vec::with_capacity(config.max_seqs),
            step: 0,
            rooms: 0,
            members: Vec::with_capacity(config.max_seqs),
            tokens: Vec::with_capacity(config.max_rows()),
            wanted: Vec::with_capacity(config.max_rows()),
            logits: Vec::new(),
            turn: 0,
            provenance: Provenance::new(Arc::clone(&published.ledger)),
            guard: config.guard.then(|| Guard::new(Arc::clone(&published.guard))),
            model,
            slots,
            config,
            published,
        }
    }

    /// Runs until the handle is gone and nothing is left to do.
    pub(crate) fn run(mut self, incoming: Receiver<Ticket>) {
        let _stopped = Stopped(Arc::clone(&self.published));
        let mut open = true;
        while open || !self.running.is_empty() || !self.waiting.is_empty() {
            open = self.listen(&incoming, open);
            self.drop_cancelled();
            self.admit();
            self.turn += 1;
            self.prefill_step();
            self.decode_steps();
            self.publish();
        }
    }

    /// Takes what has come in; waits if there is nothing else to do. Returns whether more can come.
    fn listen(&mut self, incoming: &Receiver<Ticket>, open: bool) -> bool {
        if open && self.running.is_empty() && self.waiting.is_empty() {
            match incoming.recv() {
                Ok(ticket) => self.waiting.push_back(ticket),
                Err(_) => return false,
            }
        }
        loop {
            match incoming.try_recv() {
                Ok(ticket) => self.waiting.push_back(ticket),
                Err(TryRecvError::Empty) => return open,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn publish(&self) {
        let p = &self.published;
        p.running.store(self.running.len(), Ordering::Relaxed);
        p.free_pages.store(self.prefill.free_pages(), Ordering::Relaxed);
    }

    fn drop_cancelled(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|ticket| !ticket.is_cancelled());
        self.published.waiting.fetch_sub(before - self.waiting.len(), Ordering::Relaxed);
        for i in (0..self.running.len()).rev() {
            if self.running[i].ticket.is_cancelled() {
                self.running[i].finish(FinishReason::Cancelled);
                self.remove(i);
            }
        }
    }

    /// Ends a running request whose client knows.
    fn remove(&mut self, index: usize) {
        let sequence = self.running.remove(index);
        match (sequence.stage, &mut self.decode) {
            (Stage::Decode { .. }, Some(store)) => store.close(sequence.kv),
            _ => self.prefill.close(sequence.kv),
        }
    }

    /// Starts waiting requests, in order, while there is room.
    fn admit(&mut self) {
        while self.running.len() < self.config.max_seqs {
            let Some(tokens) = self.waiting.front().map(Ticket::tokens) else { return };
            // Prompts that run now take their pages of the decode store only at the hand-off.
            let promised = self.running.iter().filter(|s| is_prefill(s)).map(|s| s.ticket.tokens());
            let promised: usize = promised.map(|t| t.next_multiple_of(PAGE_TOKENS)).sum();
            let fits = self.prefill.can_open(tokens)
                && self.decode.as_ref().is_none_or(|d| d.can_open(promised + tokens));
            if !fits {
                return;
            }
            let Some(ticket) = self.waiting.pop_front() else { return };
            self.published.waiting.fetch_sub(1, Ordering::Relaxed);
            self.start(ticket);
        }
    }

    fn start(&mut self, ticket: Ticket) {
        let Some(snapshot) = self.slots.snapshot(&ticket.request.assignment) else {
            ticket.fail("E-ASSIGNMENT", format!("assignment `{}` was removed", ticket.request.assignment));
            return;
        };
        let layouts: Arc<[LayerLayout]> = layouts(&self.model.config, &snapshot).collect();
        self.prefill.ensure(&layouts);
        if let Some(decode) = &mut self.decode {
            decode.ensure(&layouts);
        }
        let tokens = ticket.tokens();
        let reuse = ticket.request.reuse_prefill && !ticket.request.tap_logits && ticket.observer.is_none();
        let saved = match reuse {
            true => self.prefixes.get(&prefix::key(&ticket.request, snapshot.prefill_digest())),
            false => None,
        };
        let Some(saved) = saved else {
            match self.prefill.open(tokens) {
                Ok(kv) => self.running.push(Sequence::new(ticket, kv, layouts)),
                Err(error) => ticket.fail("E-KV-EXHAUSTED", error.to_string()),
            }
            return;
        };
        match self.prefill.restore(&saved.kv, &layouts, tokens) {
            Ok(kv) => {
                let (logits, chunks) = (saved.logits.clone(), saved.chunks);
                self.running.push(Sequence::new(ticket, kv, layouts));
                self.finish_prefill(self.running.len() - 1, &snapshot, &logits, chunks);
            }
            Err(error) => ticket.fail("E-KV-RESTORE", error.to_string()),
        }
    }

    /// Fails the members of a step that did not run, or did not run to its end.
    fn fail_members(&mut self, code: &str, message: &str) {
        self.members.sort_unstable();
        while let Some((index, _)) = self.members.pop() {
            self.running[index].ticket.fail(code, message);
            self.remove(index);
        }
    }

    /// Snapshot for the members of a step, or `None` after failing them.
    fn bind(&mut self) -> Option<Arc<Snapshot>> {
        let sequence = &self.running[self.members[0].0];
        let Some(snapshot) = self.slots.snapshot(&sequence.assignment) else {
            let message = format!("assignment `{}` was removed", sequence.assignment);
            self.fail_members("E-ASSIGNMENT", &message);
            return None;
        };
        let moved = |(index, _): &(usize, usize)| {
            !layouts(&self.model.config, &snapshot).eq(self.running[*index].layouts.iter().copied())
        };
        if self.members.iter().any(moved) {
            let name = &sequence.assignment;
            let message =
                format!("assignment `{name}` was redefined with another KV layout while the request ran");
            self.fail_members("E-PLUG-402", &message);
            return None;
        }
        Some(snapshot)
    }

    /// Runs the step of `members`, whose tokens and wanted rows are set. Returns whether it succeeded: its positions are
    /// then committed and its logits are in `logits`; otherwise its members have failed.
    fn run_step(&mut self, snapshot: &Snapshot, phase: Phase) -> bool {
        let on_decode = phase == Phase::Decode && self.decode.is_some();
        let store = if on_decode { self.decode.as_mut().expect("checked") } else { &mut self.prefill };
        self.plan.begin(self.config.max_context);
        for (index, rows) in &self.members {
            let sequence = &mut self.running[*index];
            let (Stage::Prefill { chunk, .. } | Stage::Decode { chunk, .. }) = sequence.stage;
            if let Err(error) = self.plan.add(store, &mut sequence.kv, *rows, chunk) {
                let message = error.to_string();
                self.fail_members("E-KV-EXHAUSTED", &message);
                return false;
            }
        }
        self.step += 1;
        self.published.step.store(self.step, Ordering::Relaxed);
        // An observed request is the only member of its steps.
        let first = self.members[0].0;
        let observer = self.running[first].ticket.observer.take().map(RefCell::new);
        let step = Step {
            snapshot,
            phase,
            store,
            plan: &self.plan,
            layouts: &self.running[first].layouts,
            tokens: &self.tokens,
            wanted: &self.wanted,
            number: self.step,
            probe: Probe { observer: observer.as_ref(), guard: self.guard.as_ref() },
        };
        let ran = self.forward.run(&step);
        self.running[first].ticket.observer = observer.map(RefCell::into_inner);
        match ran {
            Ok(logits) => {
                self.logits.clear();
                self.logits.extend_from_slice(logits);
                let code = self.provenance.code(snapshot, phase);
                for (index, rows) in &self.members {
                    let kv = &mut self.running[*index].kv;
                    let start = kv.len();
                    store.commit(kv, *rows);
                    kv.written_by(&code);
                    let window = self.model.config.sliding_window;
                    self.provenance.read(&code, kv.history(), start..kv.len(), window);
                }
                true
            }
            Err(error) => {
                tracing::error!(%error, step = self.step, "step failed");
                match self.guard.as_ref().and_then(Guard::take) {
                    Some(violation) => self.fail_members(&violation.code(), &violation.to_string()),
                    None => {
                        let text = error.to_string();
                        self.fail_members("E-PLUG-501", text.trim_start_matches("E-PLUG-501 "));
                    }
                }
                false
            }
        }
    }

    fn prefill_step(&mut self) {
        let Some(oldest) = self.running.iter().find(|s| is_prefill(s)) else { return };
        let group = oldest.group();
        self.members.clear();
        self.tokens.clear();
        self.wanted.clear();
        for (index, sequence) in self.running.iter().enumerate().filter(|(_, s)| is_prefill(s)) {
            let rows = sequence.prefill_rows(self.config.chunk - self.tokens.len(), self.config.chunk);
            let Stage::Prefill { done, .. } = sequence.stage else { continue };
            if rows == 0 || !sequence.belongs(&group) {
                continue;
            }
            let request = &sequence.ticket.request;
            let first = self.tokens.len();
            self.tokens.extend(request.prompt[done..done + rows].iter().map(|t| *t as i32));
            match request.tap_logits {
                true => self.wanted.extend(first..first + rows),
                false if done + rows == request.prompt.len() => self.wanted.push(first + rows - 1),
                false => {}
            }
            self.members.push((index, rows));
        }
        if self.members.is_empty() {
            return;
        }
        let Some(snapshot) = self.bind() else { return };
        if self.run_step(&snapshot, Phase::Prefill) {
            self.published.prompt_tokens.fetch_add(self.tokens.len() as u64, Ordering::Relaxed);
            self.after_prefill(&snapshot);
        }
    }

    /// Hands out the logits of a prefill step and moves finished prompts on.
    fn after_prefill(&mut self, snapshot: &Snapshot) {
        let vocab = self.model.config.vocab_size;
        let (members, logits) = (std::mem::take(&mut self.members), std::mem::take(&mut self.logits));
        let mut end = self.tokens.len();
        // From the last member down, since an ended request is removed from `running`.
        for (index, rows) in members.iter().rev() {
            let sequence = &mut self.running[*index];
            let Stage::Prefill { done, chunk } = sequence.stage else { continue };
            sequence.written_by(snapshot.prefill_digest());
            sequence.stage = Stage::Prefill { done: done + rows, chunk: chunk + 1 };
            let begin = end - rows;
            let first = self.wanted.partition_point(|row| *row < begin);
            let last = self.wanted.partition_point(|row| *row < end);
            for i in first..last {
                sequence.tap(self.plan.positions[self.wanted[i]], &logits[i * vocab..(i + 1) * vocab]);
            }
            if done + rows == sequence.ticket.request.prompt.len() {
                let logits = &logits[(last - 1) * vocab..last * vocab];
                self.save_prefix(*index, logits, chunk + 1);
                self.finish_prefill(*index, snapshot, logits, chunk + 1);
            }
            end = begin;
        }
        (self.members, self.logits) = (members, logits);
    }

    fn save_prefix(&mut self, index: usize, logits: &[f32], chunks: u32) {
        let sequence = &self.running[index];
        if let (true, Writers::One(digest)) = (sequence.ticket.request.reuse_prefill, &sequence.writers) {
            let key = prefix::key(&sequence.ticket.request, *digest);
            self.prefixes.put(key, self.prefill.save(&sequence.kv, &sequence.layouts), logits, chunks);
        }
    }

    /// A prompt is complete: hand its KV over if there are two stores, and choose its first token.
    fn finish_prefill(&mut self, index: usize, snapshot: &Snapshot, logits: &[f32], chunk: u32) {
        if let Some(decode) = &mut self.decode {
            self.rooms += 1;
            let sequence = &mut self.running[index];
            let tokens = sequence.ticket.tokens();
            let moved = match snapshot.transport() {
                Some(cell) => {
                    let stores = (&self.prefill, &mut *decode);
                    let observer = sequence.ticket.observer.take().map(RefCell::new);
                    let probe = Probe { observer: observer.as_ref(), guard: self.guard.as_ref() };
                    let (kv, layouts) = (&sequence.kv, &sequence.layouts);
                    let moved = self.handoff.run(cell, stores, kv, layouts, tokens, self.rooms, probe);
                    sequence.ticket.observer = observer.map(RefCell::into_inner);
                    moved
                }
                None => unreachable!("a paired registry fills the transport cell"),
            };
            match moved {
                Ok(mut kv) => {
                    if let Some(cell) = snapshot.transport() {
                        kv.carried_by(&self.provenance.carrier(cell));
                    }
                    self.prefill.close(std::mem::replace(&mut sequence.kv, kv));
                }
                Err(error) => {
                    tracing::error!(%error, room = self.rooms, "KV hand-off failed");
                    sequence.ticket.fail(&error.code(), error.to_string());
                    self.remove(index);
                    return;
                }
            }
        }
        if self.decode.is_none() {
            self.show_prefilled(index);
        }
        // From here on the KV is in the decode store.
        self.running[index].stage = Stage::Decode { next: 0, chunk };
        self.choose(index, logits, chunk);
    }

    /// Shows an observer the KV of a prompt that decode goes on from where it is.
    fn show_prefilled(&mut self, index: usize) {
        let sequence = &mut self.running[index];
        let Some(observer) = sequence.ticket.observer.take().map(RefCell::new) else { return };
        let regions = self.prefill.regions(&self.prefill, &sequence.layouts);
        let held = self.prefill.held(&sequence.kv, &sequence.layouts);
        Probe { observer: Some(&observer), guard: None }.handed(&mut Handed::all(&regions, &held));
        sequence.ticket.observer = Some(observer.into_inner());
    }

    /// Chooses the next token of a decoding request.
    fn choose(&mut self, index: usize, logits: &[f32], chunk: u32) {
        self.published.generated_tokens.fetch_add(1, Ordering::Relaxed);
        match self.running[index].accept(logits) {
            Next::Feed(next) => self.running[index].stage = Stage::Decode { next, chunk },
            Next::Ended => self.remove(index),
        }
    }

    /// One step for each assignment that has decoding requests.
    fn decode_steps(&mut self) {
        let due = |s: &Sequence, turn| matches!(s.stage, Stage::Decode { .. }) && s.turn != turn;
        while let Some(sequence) = self.running.iter().find(|s| due(s, self.turn)) {
            let group = sequence.group();
            self.decode_step(&group);
        }
    }

    fn decode_step(&mut self, group: &Group) {
        self.members.clear();
        self.tokens.clear();
        self.wanted.clear();
        for (index, sequence) in self.running.iter_mut().enumerate() {
            if let (Stage::Decode { next, .. }, true) = (sequence.stage, sequence.belongs(group)) {
                sequence.turn = self.turn;
                self.wanted.push(self.tokens.len());
                self.tokens.push(next as i32);
                self.members.push((index, 1));
            }
        }
        let Some(snapshot) = self.bind() else { return };
        if !self.run_step(&snapshot, Phase::Decode) {
            return;
        }
        let vocab = self.model.config.vocab_size;
        let (members, logits) = (std::mem::take(&mut self.members), std::mem::take(&mut self.logits));
        for (row, (index, _)) in members.iter().enumerate().rev() {
            let Stage::Decode { chunk, .. } = self.running[*index].stage else { continue };
            let logits = &logits[row * vocab..(row + 1) * vocab];
            self.running[*index].tap(self.plan.positions[row], logits);
            self.choose(*index, logits, chunk);
        }
        (self.members, self.logits) = (members, logits);
    }
}
