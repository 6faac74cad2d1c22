//! The life of a swap: plan and conformance beside the step loop, shadow, drain, commit between two steps, probation with
//! automatic rollback, retirement. One swap runs at a time.
//!
//! Three threads take part. The *engine thread* only reads what it is to do and counts ([`trial`]); when a step fails on
//! new variants it goes back to the old ones by itself, at once, and no request fails. The *swap thread* ([`run`]) drives
//! the stages and takes tables back that failed. Preparation has a thread of its own per swap with the lowest priority
//! and without the pool ([`prepare`]), which may hang without harm. The *reaper* ends old generations.

mod group;
mod log;
mod prepare;
mod probation;
mod reaper;
mod run;
pub(crate) mod trial;

use crate::engine::{Incoming, Published};
use crossbeam_channel::{Receiver, Sender, unbounded};
pub(crate) use group::{Book, Mates};
pub use group::{GroupView, MemberView, PeerSwap};
use hotseam_slots::{Change, Slots, SlotsError, SwapEvent, SwapPlan, SwapRecord, SwapRequest, Verdicts};
use log::Log;
use run::{Job, Runner};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use trial::{Failure, Link};

/// Where swaps keep what outlasts the process, and their limits.
#[derive(Debug, Clone)]
pub struct SwapSettings {
    /// Directory of the crash marker and of remembered verdicts; `None` for that of the loader, and if it has none
    /// neither is kept.
    pub state_dir: Option<PathBuf>,
    /// What tells the crash marker from that of other engines with this state directory.
    pub owner: String,
    /// Plugin files that may be mapped before swaps warn (504).
    pub mapped_limit: usize,
    /// How long replaced generations may stay in use before somebody is told (503).
    pub patience: Duration,
    /// How long a step on probation may take before it counts as hung. Nothing can end it from outside.
    pub hang: Duration,
    /// Whether the process then exits, with [`SwapSettings::HUNG`], so that the next one starts on the variants before.
    pub exit_on_hang: bool,
}

impl SwapSettings {
    /// Exit code of a process that hangs in a step on probation.
    pub const HUNG: i32 = 70;
}

impl Default for SwapSettings {
    fn default() -> Self {
        Self {
            state_dir: None,
            owner: "engine".to_owned(),
            mapped_limit: 64,
            patience: Duration::from_secs(10),
            hang: Duration::from_secs(60),
            exit_on_hang: false,
        }
    }
}

/// Why a swap did not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// Another one runs.
    #[error(
        "E-PLUG-401 swap {running} is running or on probation, and one runs at a time. Wait for its end (`--wait`), or \
         take it back with `hotseam rollback`."
    )]
    Busy {
        /// Its number.
        running: u64,
    },
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}

impl SwapError {
    /// `E-PLUG` number, if it has one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Busy { .. } => Some(401),
            Self::Stopped => None,
        }
    }
}

/// Swaps of a running engine.
#[derive(Debug)]
pub struct Swaps {
    slots: Arc<Slots>,
    log: Arc<Log>,
    link: Arc<Link>,
    jobs: Sender<Job>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    book: Option<Arc<Book>>,
}

/// The ends that the engine needs before its thread starts.
pub(crate) struct Ends {
    pub(crate) link: Arc<Link>,
    jobs: Sender<Job>,
    incoming: Receiver<Job>,
}

impl Ends {
    pub(crate) fn new() -> Self {
        let (jobs, incoming) = unbounded();
        Self { link: Arc::new(Link::new(jobs.clone())), jobs, incoming }
    }
}

impl Swaps {
    /// Starts the swap thread.
    pub(crate) fn start(
        ends: Ends,
        slots: &Arc<Slots>,
        published: &Arc<Published>,
        engine: Sender<Incoming>,
        settings: SwapSettings,
        mates: Option<Mates>,
    ) -> std::io::Result<Self> {
        let book = mates.as_ref().map(|mates| Arc::clone(&mates.book));
        let (log, stop) = (Arc::new(Log::default()), Arc::new(AtomicBool::new(false)));
        let verdicts = settings.state_dir.as_ref().map(|dir| dir.join("conformance"));
        let runner = Runner {
            slots: Arc::clone(slots),
            log: Arc::clone(&log),
            link: Arc::clone(&ends.link),
            engine,
            jobs: ends.incoming,
            published: Arc::clone(published),
            verdicts: Arc::new(Verdicts::new(verdicts)),
            stop: Arc::clone(&stop),
            reaper: reaper::start(
                Arc::clone(slots),
                Arc::clone(&log),
                Arc::clone(published),
                settings.patience,
            )?,
            settings,
            preparer: Default::default(),
            mates,
            node: Default::default(),
            kept: Default::default(),
        };
        let thread = std::thread::Builder::new().name("swap".into()).spawn(move || runner.run())?;
        let (slots, thread) = (Arc::clone(slots), Mutex::new(Some(thread)));
        Ok(Self { slots, log, link: ends.link, jobs: ends.jobs, stop, thread, book })
    }

    /// Works out what a change would do. Loads variants and so may block; nothing changes.
    ///
    /// # Errors
    /// As [`Slots::plan`].
    pub fn plan(&self, assignment: &str, change: &Change) -> Result<SwapPlan, SlotsError> {
        self.slots.plan(assignment, change)
    }

    /// Begins a swap and returns its number at once; [`Swaps::subscribe`] and [`Swaps::wait`] tell how it goes on.
    ///
    /// # Errors
    /// If another swap runs, or the engine has stopped. All other reasons end the swap as
    /// [`hotseam_slots::SwapStage::Refused`].
    pub fn begin(&self, request: SwapRequest) -> Result<u64, SwapError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(SwapError::Stopped);
        }
        let id = self.log.begin(&request.assignment, &request.who, request.change.to_string())?;
        self.jobs.send(Job::Swap(id, Box::new(request))).map_err(|_| SwapError::Stopped)?;
        Ok(id)
    }

    /// Takes back the swap of an assignment that is in its probation, because `who` wants it; it ends as
    /// [`hotseam_slots::SwapStage::RolledBack`] with number 0. Returns its number; `None` if no swap of the assignment is
    /// in its probation.
    pub fn take_back(&self, assignment: &str, who: &str) -> Option<u64> {
        let trial = self.link.trial()?;
        let committed = self.slots.snapshot(assignment).is_some_and(|now| Arc::ptr_eq(&now, &trial.to));
        let failure = Failure { code: 0, message: format!("taken back by {who}") };
        (committed && trial.fail(failure)).then_some(trial.id)
    }

    /// The swap group of this worker, if it is in one.
    pub fn group(&self) -> Option<GroupView> {
        self.book.as_ref().map(|book| book.view())
    }

    /// Asks `allow` before any swap that another worker of the group asks for; what it says against it refuses the swap.
    pub fn ask_first(&self, allow: impl Fn(&PeerSwap<'_>) -> Result<(), String> + Send + Sync + 'static) {
        if let Some(book) = &self.book {
            book.ask_first(Box::new(allow));
        }
    }

    /// Waits for the end of a swap; `None` for a number that is not known (any more).
    pub fn wait(&self, id: u64) -> Option<SwapRecord> {
        self.log.wait(id)
    }

    /// A swap by number.
    pub fn record(&self, id: u64) -> Option<SwapRecord> {
        self.log.record(id)
    }

    /// The last swaps, oldest first.
    pub fn records(&self) -> Vec<SwapRecord> {
        self.log.records()
    }

    /// The swap that runs.
    pub fn running(&self) -> Option<SwapRecord> {
        self.log.running()
    }

    /// Everything that happens from now on. A reader that lags far behind loses events; it never holds a swap up.
    pub fn subscribe(&self) -> Receiver<SwapEvent> {
        self.log.subscribe()
    }

    /// Ends probation early, refuses a swap that is not committed yet, and ends the threads.
    pub(crate) fn shutdown(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread may be gone already.
        let _ = self.jobs.send(Job::Stop);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}
