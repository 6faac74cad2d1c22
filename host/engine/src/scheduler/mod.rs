//! The engine thread: who runs in the next step.
//!
//! Each turn takes new requests, admits those that fit, runs one prefill step for the oldest prompt's assignment and one
//! decode step for each assignment that decodes. A step that fails on variants that a swap brought in is given up and
//! repeated on those before them; any other failed step fails its own requests only.

mod admit;
mod decode;
mod pair;
mod prefill;
mod ranks;
mod receiving;
mod sending;
mod step;

use crate::disagg::audit::Audit;
use crate::engine::{Incoming, Published};
use crate::forward::Forward;
use crate::guard::Guard;
use crate::handoff::Handoff;
use crate::prefix::PrefixCache;
use crate::provenance::Provenance;
use crate::ranks::{Leader, make_current};
use crate::sampler::{Chosen, Draw, NotFinite};
use crate::sequence::{Sequence, Stage, Ticket};
use crate::swaps::trial::{Link, Trial};
use crate::watch::Watch;
use crate::{Device, EngineConfig, EngineError, Role, Topology};
use crossbeam_channel::{Receiver, TryRecvError};
use hotseam_kv::{KvConfig, KvStore, LayerLayout, Layout, Place, Plan};
use hotseam_model::{LayerClass, Model, ModelConfig};
use hotseam_slots::{KvPolicy, Slots, Snapshot};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use pair::Pair;
use ranks::Ranks;

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
    /// What the tokens of those rows are drawn by, if nothing else is wanted of their logits; else empty.
    draws: Vec<Draw>,
    /// `[wanted, vocab]` logits of the step; empty if its tokens were chosen.
    logits: Vec<f32>,
    /// `[wanted]` tokens of the step, if a device chose them.
    chosen: Vec<Result<Chosen, NotFinite>>,
    /// Number of the running turn.
    turn: u64,
    provenance: Provenance,
    /// Set where calls are guarded.
    guard: Option<Guard>,
    watch: Watch,
    /// Other workers that have a part in requests.
    pair: Pair,
    /// Set where hand-offs are audited.
    audit: Option<Audit>,
    /// The other ranks.
    ranks: Option<Ranks>,
}

/// The sizes of a KV store.
pub(crate) fn store(config: &EngineConfig) -> KvConfig {
    KvConfig {
        pages: config.total_pages(),
        max_seqs: config.max_seqs,
        max_rows: config.max_rows(),
        place: match config.device {
            Device::Cpu => Place::Host,
            Device::Cuda(ordinal) => Place::Device(ordinal),
        },
    }
}

fn taken() -> EngineError {
    EngineError::Ranks("the ranks of these slots serve another engine; start others".to_owned())
}

/// The layouts that a snapshot's variants declare.
pub(crate) fn layouts(model: &ModelConfig, snapshot: &Snapshot) -> impl Iterator<Item = LayerLayout> {
    let layout = |l: hotseam_slots::Layout| Layout {
        id: l.id,
        dim: l.shape.dim,
        rope_dim: l.shape.rope_dim,
        data_bytes: l.data_bytes,
        scale_bytes: l.scale_bytes,
    };
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
    /// On the thread that will run it.
    ///
    /// # Errors
    /// If the device cannot be had, or has not the memory.
    pub(crate) fn new(
        model: Arc<Model>,
        slots: Arc<Slots>,
        config: EngineConfig,
        published: Arc<Published>,
        link: Arc<Link>,
        pair: Pair,
        leader: Option<Arc<Leader>>,
    ) -> Result<Self, EngineError> {
        let paired = config.topology == Topology::Paired;
        let kv = store(&config);
        // A store that is sent from is one that a transport may map elsewhere.
        let sends = paired && config.role != Role::Decode;
        let place = if sends && kv.place == Place::Host { Place::Shared } else { kv.place };
        // It makes the device's context current, so it comes first.
        let (forward, ranks) = match leader {
            None => (Forward::new(&model, &config, None)?, None),
            Some(leader) => {
                let (steps, join) = leader.take().ok_or_else(taken)?;
                // Kept until the forward pass has its own hold of the context.
                let _device = make_current(config.device)?;
                let own = Model::clone(&model)
                    .of_rank(0, leader.world())
                    .map_err(|error| EngineError::Ranks(error.to_string()))?;
                let forward = Forward::new(&Arc::new(own), &config, Some(join.join()?))?;
                (forward, Some(Ranks::of(leader, steps)?))
            }
        };
        let prefill = KvStore::new(&model.config, KvConfig { place, ..kv })?;
        let both = paired && config.role == Role::Single;
        let decode = both.then(|| KvStore::new(&model.config, kv)).transpose()?;
        Ok(Self {
            forward,
            plan: Plan::default(),
            prefill,
            decode,
            handoff: Handoff::default(),
            prefixes: PrefixCache::new(config.prefix_cache_bytes),
            waiting: VecDeque::new(),
            running: Vec::with_capacity(config.max_seqs),
            step: 0,
            rooms: 0,
            members: Vec::with_capacity(config.max_seqs),
            tokens: Vec::with_capacity(config.max_rows()),
            wanted: Vec::with_capacity(config.max_rows()),
            draws: Vec::with_capacity(config.max_seqs),
            logits: Vec::new(),
            chosen: Vec::new(),
            turn: 0,
            provenance: Provenance::new(Arc::clone(&published.ledger)),
            guard: config.guard.then(|| Guard::new(Arc::clone(&published.guard))),
            watch: Watch::new(link, config.max_seqs),
            audit: config.pd.audit.then(Audit::default),
            pair,
            ranks,
            model,
            slots,
            config,
            published,
        })
    }

    /// Runs until the handle is gone and nothing is left to do.
    pub(crate) fn run(mut self, incoming: Receiver<Incoming>) {
        let _stopped = Stopped(Arc::clone(&self.published));
        let mut open = true;
        while !self.is_lost() && (open || !self.running.is_empty() || !self.waiting.is_empty()) {
            open = self.listen(&incoming, open);
            self.turn += 1;
            self.published.turn.store(self.turn, Ordering::Release);
            self.watch.turn(&self.slots);
            self.drop_cancelled();
            self.admit();
            self.report();
            self.prefill_step();
            self.decode_steps();
            self.pair_turn(open);
            self.publish();
        }
        self.end_lost(&incoming);
    }

    /// Takes what has come in; waits if there is nothing else to do. Returns whether more can come.
    fn listen(&mut self, incoming: &Receiver<Incoming>, open: bool) -> bool {
        if !self.pair.is_none() {
            return self.listen_to_pair(incoming, open);
        }
        if open && self.running.is_empty() && self.waiting.is_empty() {
            match incoming.recv() {
                Ok(news) => self.take(news),
                Err(_) => return false,
            }
        }
        self.drain(incoming, open)
    }

    /// Takes what has come in without waiting. Returns whether more can come.
    fn drain(&mut self, incoming: &Receiver<Incoming>, open: bool) -> bool {
        loop {
            match incoming.try_recv() {
                Ok(news) => self.take(news),
                Err(TryRecvError::Empty) => return open,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn take(&mut self, news: Incoming) {
        match news {
            Incoming::Request(ticket) => self.waiting.push_back(*ticket),
            Incoming::Flush => self.prefixes.clear(),
            Incoming::Wake => {}
        }
    }

    fn publish(&self) {
        let p = &self.published;
        p.running.store(self.running.len(), Ordering::Relaxed);
        p.rooms.store(self.pair.rooms(), Ordering::Relaxed);
        let stores = [Some(&self.prefill), self.decode.as_ref()].into_iter().flatten();
        p.free_pages.store(stores.map(KvStore::free_pages).min().unwrap_or(0), Ordering::Relaxed);
        self.report();
    }

    /// Tells a swap that is tried what is there of its assignment.
    fn report(&self) {
        let running = |name: &str| self.running.iter().filter(|s| *s.assignment == *name).count();
        let waits = |name: &str| self.waiting.iter().any(|ticket| ticket.request.assignment == name);
        self.watch.report(self.turn, running, waits, |trial| self.left(trial));
    }

    /// What a drain has to wait for: with other workers only what is on the way between them, unless answers are to end too.
    fn left(&self, trial: &Trial) -> usize {
        let mut of = self.running.iter().filter(|s| *s.assignment == *trial.from.name());
        match (&self.pair, trial.policy.kv) {
            (Pair::Prefill(end), _) => end.kept(trial.from.name()),
            (Pair::Decode(_), KvPolicy::Recompute) => of.filter(|s| s.stage == Stage::Receiving).count(),
            _ => of.by_ref().count(),
        }
    }
}
