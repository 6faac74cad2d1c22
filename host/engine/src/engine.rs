//! The handle to an engine.

use crate::guard::{GuardLog, GuardReport};
use crate::observe::{Observed, Observer};
use crate::provenance::{self, Origin};
use crate::ranks::Leader;
use crate::request::{Handle, Request};
use crate::scheduler::{Pair, Scheduler};
use crate::sequence::Ticket;
use crate::swaps::{Book, Ends, Mates, Swaps};
use crate::{EngineConfig, EngineError, KvMap, Role, SubmitError};
use crossbeam_channel::{Sender, bounded, unbounded};
use hotseam_model::Model;
use hotseam_pd::{DecodeSide, Group, Patience, PrefillSide, Rank, Registry};
use hotseam_slots::Slots;
use serde::Serialize;
use std::any::Any;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// Requests that may wait; more are refused.
const MAX_WAITING: usize = 256;

/// What comes in to the engine thread.
pub(crate) enum Incoming {
    /// A request.
    Request(Box<Ticket>),
    /// Forget the saved prefill states.
    Flush,
    /// Nothing but a reason to look at what a swap wants.
    Wake,
}

/// Counters that the engine thread publishes after each step.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) step: AtomicU64,
    /// Turns of the loop that have begun.
    pub(crate) turn: AtomicU64,
    pub(crate) running: AtomicUsize,
    pub(crate) waiting: AtomicUsize,
    pub(crate) free_pages: AtomicUsize,
    pub(crate) total_pages: AtomicUsize,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) generated_tokens: AtomicU64,
    pub(crate) stopped: AtomicBool,
    /// Whether a step, or the hand-off after it, is being run.
    pub(crate) in_step: AtomicBool,
    pub(crate) ledger: provenance::Ledger,
    pub(crate) guard: GuardLog,
    /// Rooms that are open or asked for.
    pub(crate) rooms: AtomicUsize,
    /// What the last audited hand-off brought.
    pub(crate) kv_map: Mutex<Option<KvMap>>,
}

impl Published {
    /// Whether the engine thread runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }

    /// Keeps what the last audited hand-off brought.
    pub(crate) fn show_map(&self, map: KvMap) {
        *self.kv_map.lock().unwrap_or_else(|e| e.into_inner()) = Some(map);
    }
}

/// State of an engine.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct EngineStats {
    /// Steps run.
    pub step: u64,
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Full KV pages that are free, of the store that has fewer.
    pub free_pages: usize,
    /// Full KV pages of each store.
    pub total_pages: usize,
    /// Prompt tokens processed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Rooms of requests that other workers have a part in, open or asked for.
    pub rooms: usize,
    /// Calls that broke the contract under guard.
    pub guard_violations: u64,
}

struct Shared {
    requests: Mutex<Option<Sender<Incoming>>>,
    published: Arc<Published>,
    model: Arc<Model>,
    slots: Arc<Slots>,
    config: EngineConfig,
    swaps: Swaps,
    /// The control listener of a prefill worker; it ends with the engine.
    control: Mutex<Option<PrefillSide>>,
    /// Where decode workers learn of it.
    registry: Option<Arc<Registry>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A running engine. Clones are handles to the same one; it stops when [`Engine::shutdown`] is called or the last
/// handle goes.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// Starts the engine thread. Assignments are looked up by name in `slots` for each step.
    ///
    /// # Errors
    /// If a size cannot work, or no thread can be had.
    pub fn start(model: Arc<Model>, slots: Arc<Slots>, config: EngineConfig) -> Result<Self, EngineError> {
        config.validate(&model.config)?;
        let (requests, incoming) = unbounded();
        let published = Arc::new(Published::default());
        published.total_pages.store(config.total_pages(), Ordering::Relaxed);
        published.free_pages.store(config.total_pages(), Ordering::Relaxed);
        let mates = config.pd.swap_group.as_deref().filter(|_| config.role != Role::Single).map(|name| {
            // What a member may have said in it is limited by the group, and who comes and goes must not be lost.
            let (heard, events) = unbounded();
            // Whoever would hear it is gone when the engine is.
            (Group::new(name, move |event| drop(heard.send(event))), events)
        });
        let (pair, control) = Self::pair(&config, mates.as_ref().map(|(group, _)| group))?;
        let registry = control.as_ref().map(|control| Arc::new(registry(&config, control, &model, &slots)));
        let leader = leader(&config, &slots)?;
        let ends = Ends::new();
        let (ready, told) = bounded(1);
        let thread = std::thread::Builder::new().name("engine".into()).spawn({
            let (model, slots, config) = (Arc::clone(&model), Arc::clone(&slots), config.clone());
            let (published, link) = (Arc::clone(&published), Arc::clone(&ends.link));
            move || match Scheduler::new(model, slots, config, published, link, pair, leader) {
                Ok(scheduler) => {
                    // Whoever started the engine waits for this.
                    let _ = ready.send(Ok(()));
                    scheduler.run(incoming);
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        told.recv().map_err(|_| std::io::Error::other("it ended while it started"))??;
        let mut settings = config.swap.clone();
        if settings.state_dir.is_none() {
            settings.state_dir = slots.registry().loader().state_dir().map(Path::to_owned);
        }
        let mates = mates.map(|(group, events)| {
            let (owner, of) = (settings.owner.clone(), (Arc::clone(&model), config.index_topk));
            let book = Book::new(group, owner, config.role, of, Arc::clone(&slots));
            if config.pd.peers_wait {
                book.ask_first(Box::new(|_| Err("this worker is still starting; ask again".to_owned())));
            }
            Mates { book: Arc::new(book), events }
        });
        let swaps = Swaps::start(ends, &slots, &published, requests.clone(), settings, mates)?;
        let shared = Shared {
            requests: Mutex::new(Some(requests)),
            published,
            model,
            slots,
            config,
            swaps,
            control: Mutex::new(control),
            registry,
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What the engine thread has of other workers, and the control listener of a prefill worker.
    fn pair(
        config: &EngineConfig,
        group: Option<&Arc<Group>>,
    ) -> Result<(Pair, Option<PrefillSide>), EngineError> {
        let worker = config.swap.owner.clone();
        match config.role {
            Role::Single => Ok((Pair::None, None)),
            Role::Prefill => {
                let (send, events) = unbounded();
                let address = config.pd.listen;
                let control = PrefillSide::start(address, &worker, group.cloned(), move |event| {
                    send.send(event).is_ok()
                });
                let control = control.map_err(|source| EngineError::Control { address, source })?;
                Ok((Pair::prefill(events), Some(control)))
            }
            Role::Decode => {
                let (send, events) = unbounded();
                let patience = Patience { bootstrap: config.pd.bootstrap_timeout };
                let mut side = DecodeSide::new(&worker, patience, move |event| send.send(event).is_ok());
                if let Some(group) = group {
                    side = side.in_group(Arc::clone(group), &config.pd.prefill_workers);
                }
                Ok((Pair::decode(side, events), None))
            }
        }
    }

    /// Hands a request over.
    ///
    /// # Errors
    /// If it can never run, or too many wait.
    pub fn submit(&self, request: Request) -> Result<Handle, SubmitError> {
        self.take(request, None)
    }

    /// Hands a request over with an observer, which sees all of its calls. No saved prefill state is used for it, and no
    /// step of it has rows of another request; later prompts wait until its prompt is done.
    ///
    /// # Errors
    /// As [`Engine::submit`], and if steps run on several ranks.
    pub fn observe(&self, request: Request, observer: Box<dyn Observer>) -> Result<Handle, SubmitError> {
        if let Some(ranks) = &self.shared.config.ranks {
            return Err(SubmitError::ObservedRanks(ranks.world));
        }
        self.take(request, Some(Observed(observer)))
    }

    fn take(&self, request: Request, observer: Option<Observed>) -> Result<Handle, SubmitError> {
        self.check(&request)?;
        let waiting = self.shared.published.waiting.fetch_add(1, Ordering::Relaxed);
        let refuse = |error| {
            self.shared.published.waiting.fetch_sub(1, Ordering::Relaxed);
            Err(error)
        };
        if waiting >= MAX_WAITING {
            return refuse(SubmitError::Full(waiting));
        }
        // Room for every event, so that a slow client neither stops the engine nor makes it allocate. Taps are too large
        // to reserve.
        let (events, receiver) = match request.tap_logits {
            true => unbounded(),
            false => {
                let told = request.prompt_logprobs.map_or(0, |_| request.prompt.len());
                bounded(told + request.max_tokens + 1)
            }
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        let ticket = Ticket {
            request,
            events,
            cancelled: Arc::clone(&cancelled),
            observer,
            resume: None,
            since: Instant::now(),
            again: None,
        };
        let ticket = Incoming::Request(Box::new(ticket));
        let requests = self.shared.requests.lock().unwrap_or_else(|e| e.into_inner());
        match requests.as_ref().is_some_and(|r| r.send(ticket).is_ok()) {
            true => Ok(Handle { events: receiver, cancelled }),
            false => refuse(SubmitError::Stopped),
        }
    }

    /// Whether prefill workers on a host may be asked.
    fn asks(&self, host: &str) -> bool {
        let hosts = &self.shared.config.pd.hosts;
        hosts.is_empty() || hosts.iter().any(|known| known == host)
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let vocab_size = self.shared.model.config.vocab_size;
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if request.max_tokens == 0 {
            return Err(SubmitError::NoTokens);
        }
        let mut tokens = request.prompt.iter().chain(&request.forced);
        if let Some(token) = tokens.find(|t| **t as usize >= vocab_size) {
            return Err(SubmitError::Token { token: *token, vocab_size });
        }
        let (prompt, max_tokens, max_context) =
            (request.prompt.len(), request.max_tokens, self.shared.config.max_context);
        if prompt.saturating_add(max_tokens) > max_context {
            return Err(SubmitError::Context { max_context, prompt, max_tokens });
        }
        let s = request.sampling;
        let sampling = |field, expected, found: f32| {
            Err(SubmitError::Sampling { field, expected, found: found.to_string() })
        };
        if !(0.0..=100.0).contains(&s.temperature) {
            return sampling("temperature", "0 to 100", s.temperature);
        }
        if !(0.0..=1.0).contains(&s.top_p) {
            return sampling("top_p", "0 to 1", s.top_p);
        }
        let role = self.shared.config.role;
        let wrong = |message| Err(SubmitError::Role { role, message });
        match (role, &request.disaggregation) {
            (Role::Single, Some(_)) => {
                return wrong("it meets no other worker; leave bootstrap_room away or ask a pair");
            }
            (Role::Prefill | Role::Decode, None) => {
                return wrong(
                    "requests need bootstrap_host, bootstrap_port and bootstrap_room; a router gives them",
                );
            }
            (Role::Decode, Some(bootstrap)) if !self.asks(&bootstrap.host) => {
                return Err(SubmitError::Host { host: bootstrap.host.chars().take(64).collect() });
            }
            (Role::Decode, Some(bootstrap)) if bootstrap.hold => {
                return wrong("it holds no KV for others; ask a prefill worker");
            }
            _ => {}
        }
        let largest = self.shared.config.chunk;
        if let Some(bad) = request.chunks.iter().find(|c| **c == 0 || **c > largest) {
            return sampling("chunks", "sizes of 1 to engine.chunk", *bad as f32);
        }
        match self.shared.slots.snapshot(&request.assignment) {
            Some(_) => Ok(()),
            None => Err(SubmitError::Assignment {
                name: request.assignment.clone(),
                known: self.shared.slots.names().join(", "),
            }),
        }
    }

    /// Counters as of the last step.
    pub fn stats(&self) -> EngineStats {
        let p = &self.shared.published;
        EngineStats {
            step: p.step.load(Ordering::Relaxed),
            running: p.running.load(Ordering::Relaxed),
            waiting: p.waiting.load(Ordering::Relaxed),
            free_pages: p.free_pages.load(Ordering::Relaxed),
            total_pages: p.total_pages.load(Ordering::Relaxed),
            prompt_tokens: p.prompt_tokens.load(Ordering::Relaxed),
            generated_tokens: p.generated_tokens.load(Ordering::Relaxed),
            rooms: p.rooms.load(Ordering::Relaxed),
            guard_violations: p.guard.violations(),
        }
    }

    /// Whose KV the steps of an assignment, as it is now, have read; empty if there is no such assignment.
    pub fn origins(&self, assignment: &str) -> Vec<Origin> {
        let snapshot = self.shared.slots.snapshot(assignment);
        snapshot
            .map_or_else(Vec::new, |snapshot| provenance::origins(&self.shared.published.ledger, &snapshot))
    }

    /// What the guard has seen; all zero where calls are not guarded.
    pub fn guard(&self) -> GuardReport {
        self.shared.published.guard.report()
    }

    /// Forgets the prefill states that are saved for reuse; a step that runs ends first. False if the engine has stopped.
    pub fn flush_prefixes(&self) -> bool {
        let requests = self.shared.requests.lock().unwrap_or_else(|e| e.into_inner());
        requests.as_ref().is_some_and(|requests| requests.send(Incoming::Flush).is_ok())
    }

    /// What the last audited hand-off brought; `None` if there was none.
    pub fn kv_map(&self) -> Option<KvMap> {
        self.shared.published.kv_map.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Where decode workers reach a prefill worker; `None` for other roles.
    pub fn control(&self) -> Option<std::net::SocketAddr> {
        let control = self.shared.control.lock().unwrap_or_else(|e| e.into_inner());
        control.as_ref().map(PrefillSide::address)
    }

    /// The bootstrap registry of a prefill worker, to be served on its API port.
    pub fn registry(&self) -> Option<&Arc<Registry>> {
        self.shared.registry.as_ref()
    }

    /// Whether the engine takes requests.
    pub fn is_running(&self) -> bool {
        self.shared.published.is_running()
    }

    /// The model it serves.
    pub fn model(&self) -> &Arc<Model> {
        &self.shared.model
    }

    /// The assignments it serves with.
    pub fn slots(&self) -> &Arc<Slots> {
        &self.shared.slots
    }

    /// Swaps, with all that makes them safe.
    pub fn swaps(&self) -> &Swaps {
        &self.shared.swaps
    }

    /// Its sizes.
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// Takes no more requests, finishes those it has, and waits for the thread to end. Cancel handles first to end soon.
    pub fn shutdown(&self) {
        self.shared.shutdown();
    }
}

/// The ranks that hold the tables of `slots`, if there are several.
fn leader(config: &EngineConfig, slots: &Slots) -> Result<Option<Arc<Leader>>, EngineError> {
    let Some(settings) = &config.ranks else { return Ok(None) };
    let peers = slots.peers().cloned().map(|peers| peers as Arc<dyn Any + Send + Sync>);
    let leader = peers.and_then(|peers| peers.downcast::<Leader>().ok());
    let leader = leader.filter(|leader| leader.world() == settings.world);
    let missing = || EngineError::Ranks(format!("the slots have no {} ranks", settings.world));
    leader.map(Some).ok_or_else(missing)
}

/// The registry of a prefill worker, with its one rank.
fn registry(config: &EngineConfig, control: &PrefillSide, model: &Model, slots: &Slots) -> Registry {
    let address = control.address();
    let host = config.pd.advertise.clone().unwrap_or_else(|| address.ip().to_string());
    let dtype = slots.snapshot("live").filter(|_| model.config.num_hidden_layers > 0);
    let dtype = dtype.map_or_else(|| "none".to_owned(), |table| table.kv_layout(0).name().to_owned());
    let registry = Registry::default();
    registry.put(Rank::only(host, address.port(), hotseam_kv::PAGE_TOKENS as u64, dtype));
    registry
}

impl Shared {
    fn shutdown(&self) {
        // Its thread also holds an end of the line of requests.
        self.swaps.shutdown();
        drop(self.requests.lock().unwrap_or_else(|e| e.into_inner()).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(|e| e.into_inner()).take() {
            // A panic of the engine thread was printed by its hook; there is nothing left to stop.
            let _ = thread.join();
        }
        drop(self.control.lock().unwrap_or_else(|e| e.into_inner()).take());
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.shutdown();
    }
}
