//! A rank that follows.

use super::make_current;
use super::wire::{self, Build, Counts, Fault, Hello, Told, kind};
use crate::forward::Step;
use crate::forward::{Forward, ops::StepError};
use crate::guard::{Guard, GuardLog};
use crate::observe::Probe;
use crate::scheduler::{layouts, store};
use crate::{EngineConfig, EngineError};
use hotseam_kv::{KvStore, LayerLayout, Plan};
use hotseam_model::Model;
use hotseam_ranks::{Collective, Link, LinkError, NCCL_ID, Nccl, Shared};
use hotseam_slots::{Phase, Slots, Snapshot};
use serde::Serialize;
use std::collections::HashMap;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time limit where the leader may be silent for as long as it likes; its end closes the link.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// What a rank inherits from the leader.
#[derive(Debug)]
pub struct RankEnds {
    /// Link for tables and counts.
    pub tables: OwnedFd,
    /// Link for steps.
    pub steps: OwnedFd,
    /// Memory for sums.
    pub shared: OwnedFd,
}

impl RankEnds {
    /// The files of these numbers: tables, steps, shared.
    ///
    /// # Errors
    /// If one is not open.
    ///
    /// # Safety
    /// Nothing else in this process owns files of these numbers.
    pub unsafe fn inherited(numbers: [i32; 3]) -> io::Result<Self> {
        let [a, b, c] = numbers;
        if a == b || b == c || a == c {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "two of the files have one number"));
        }
        for number in numbers {
            // SAFETY: asks for the flags of a number, whatever it is.
            if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
                let error = io::Error::last_os_error();
                return Err(io::Error::new(
                    error.kind(),
                    format!("file {number} was not inherited: {error}"),
                ));
            }
        }
        // SAFETY: each number is open, they differ, and by the caller nobody else owns them.
        let [tables, steps, shared] = numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        Ok(Self { tables, steps, shared })
    }
}

/// What the caller of [`follow`] makes of the leader's specification.
#[derive(Debug)]
pub struct RankParts {
    /// The whole model; [`follow`] takes the rank's part of it.
    pub model: Model,
    /// Slots whose registry's geometry is that of the rank, without assignments.
    pub slots: Slots,
}

/// Tables by their numbers.
#[derive(Debug, Default)]
struct Tables {
    by_number: HashMap<u64, Arc<Snapshot>>,
    /// Forgotten ones that a step may still use, kept so that instances do not end in the step loop.
    forgotten: Vec<Arc<Snapshot>>,
}

impl Tables {
    fn forget(&mut self, number: u64) {
        self.forgotten.extend(self.by_number.remove(&number));
        self.forgotten.retain(|table| Arc::strong_count(table) > 1);
    }
}

/// Runs one rank until the leader is gone. `parts` gets the leader's specification ([`super::RankSettings::spec`]), the rank, the
/// number of ranks and the sizes of its engine.
///
/// # Errors
/// A text, if the leader is gone before it has said what to do, or the rank cannot run; the leader has been told.
pub fn follow(
    ends: RankEnds,
    parts: impl FnOnce(&str, (u32, u32), &EngineConfig) -> Result<RankParts, String>,
) -> Result<(), String> {
    let (mut tables, mut steps) = (Link::from_fd(ends.tables), Link::from_fd(ends.steps));
    let mut frame = Vec::new();
    let hello = tables.receive(&mut frame, FOR_EVER).map_err(|e| format!("the leader: {e}"))?;
    if hello != kind::HELLO {
        return Err(format!("the leader began with a message of kind {hello}"));
    }
    let Hello { rank, world, spec, sizes, nccl } = from_json(&frame)?;
    let _span = tracing::info_span!("rank", rank).entered();
    let config = sizes.config(rank).map_err(|error| error.to_string());
    let ready = config.and_then(|config| {
        let parts = parts(&spec, (rank, world), &config)?;
        let model = parts.model.of_rank(rank, world).map_err(|error| error.to_string())?;
        Ok((config, model, parts.slots))
    });
    let (config, model, slots) = match ready {
        Ok(ready) => ready,
        Err(message) => {
            // A leader that is gone does not hear it.
            let _ = tables.send(kind::REFUSED, &[message.as_bytes()]);
            return Err(message);
        }
    };
    answer(&mut tables, kind::DONE, &()).map_err(|e| e.to_string())?;

    let known = Arc::new(Mutex::new(Tables::default()));
    let builder = {
        let known = Arc::clone(&known);
        let thread = std::thread::Builder::new().name("tables".into());
        thread.spawn(move || serve_tables(tables, &slots, &known)).map_err(|e| e.to_string())?
    };
    let join = || -> Result<Box<dyn Collective>, EngineError> {
        let failed = |error: hotseam_ranks::RankError| EngineError::Ranks(error.to_string());
        let shared = Shared::join(ends.shared, rank).map_err(failed)?;
        match nccl.map(<[u8; NCCL_ID]>::try_from) {
            None => Ok(Box::new(shared)),
            Some(Ok(id)) => Ok(Box::new(Nccl::join(id, rank, world, shared.breaker()).map_err(failed)?)),
            Some(Err(_)) => Err(EngineError::Ranks("the leader's name of the NCCL group is none".to_owned())),
        }
    };
    let follower = Follower::new(model, &config, known, join);
    let mut follower = match follower {
        Ok(follower) => follower,
        Err(error) => {
            let fault = Fault::Other(error.to_string());
            // As above.
            let _ = answer(&mut steps, kind::FAULT, &fault);
            return Err(error.to_string());
        }
    };
    answer(&mut steps, kind::DONE, &()).map_err(|e| e.to_string())?;
    let ended = follower.run(&mut steps);
    // The leader's end closes the other link too.
    drop(builder.join());
    ended
}

/// Builds tables, forgets them and counts, until the leader is gone.
fn serve_tables(mut link: Link, slots: &Slots, known: &Mutex<Tables>) {
    let mut frame = Vec::new();
    while let Ok(of) = link.receive(&mut frame, FOR_EVER) {
        let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match of {
            kind::BUILD => from_json(&frame).and_then(|build| built(slots, build)).map(|(number, table)| {
                lock().by_number.insert(number, table);
                json(&())
            }),
            kind::FORGET => {
                if let Ok(number) = from_json(&frame) {
                    lock().forget(number);
                }
                continue;
            }
            kind::COUNTS => from_json(&frame).map(|number: u64| {
                let table = lock().by_number.get(&number).cloned();
                let cells = table.iter().flat_map(|table| table.own_cells());
                json(&Counts(cells.map(|view| (view.cell, view.calls, view.rows)).collect()))
            }),
            other => Err(format!("a message of kind {other} is none")),
        };
        let sent = match &done {
            Ok(text) => link.send(kind::DONE, &[text]),
            Err(message) => link.send(kind::REFUSED, &[message.as_bytes()]),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Builds a table from the leader's rules.
fn built(slots: &Slots, build: Build) -> Result<(u64, Arc<Snapshot>), String> {
    let Build { number, name, rules, digest } = build;
    let table = slots.table(&name, &rules).map_err(|error| error.to_string())?;
    match table.digest() == digest {
        true => Ok((number, table)),
        false => Err(format!(
            "the files of its plugins are not those that rank 0 loaded: expected digest {}, found {}. They were \
             replaced meanwhile; ask again, or reload the configuration.",
            digest.short(),
            table.digest().short()
        )),
    }
}

fn from_json<'a, T: serde::Deserialize<'a>>(frame: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(frame).map_err(|error| format!("a message that is none: {error}"))
}

fn json(message: &impl Serialize) -> Vec<u8> {
    let Ok(text) = serde_json::to_vec(message) else { unreachable!("plain data has a text") };
    text
}

fn answer(link: &mut Link, of: u32, message: &impl Serialize) -> Result<(), LinkError> {
    link.send(of, &[&json(message)])
}

/// The step loop of a rank.
struct Follower {
    forward: Forward,
    store: KvStore,
    model: Arc<Model>,
    guard: Option<Guard>,
    known: Arc<Mutex<Tables>>,
    /// The table of the last step, with its number and layouts.
    table: Option<(u64, Arc<Snapshot>, Vec<LayerLayout>)>,
}

impl Follower {
    fn new(
        model: Model,
        config: &EngineConfig,
        known: Arc<Mutex<Tables>>,
        join: impl FnOnce() -> Result<Box<dyn Collective>, EngineError>,
    ) -> Result<Self, EngineError> {
        let model = Arc::new(model);
        // Kept until the forward pass has its own hold of the context.
        let _device = make_current(config.device)?;
        let forward = Forward::new(&model, config, Some(join()?))?;
        let store = KvStore::new(&model.config, store(config))?;
        let guard = config.guard.then(|| Guard::new(GuardLog::default()));
        Ok(Self { forward, store, model, guard, known, table: None })
    }

    fn run(&mut self, link: &mut Link) -> Result<(), String> {
        let (mut frame, mut told) = (Vec::new(), Told::default());
        loop {
            match link.receive(&mut frame, FOR_EVER) {
                Ok(kind::STEP) => {}
                Ok(other) => return Err(format!("the leader sent a message of kind {other}")),
                Err(LinkError::Closed) => return Ok(()),
                Err(error) => return Err(format!("the leader: {error}")),
            }
            wire::decode(&frame, &mut told).ok_or("the leader sent a step that is none")?;
            let sent = match self.step(&told)? {
                None => link.send(kind::DONE, &[]),
                Some(fault) => answer(link, kind::FAULT, &fault),
            };
            sent.map_err(|error| format!("the leader: {error}"))?;
        }
    }

    /// Runs a step; returns what failed in it.
    ///
    /// # Errors
    /// If the other ranks cannot go on without this one, whose end tells them.
    fn step(&mut self, told: &Told) -> Result<Option<Fault>, String> {
        self.find(told.table)?;
        let Some((_, snapshot, layouts)) = &self.table else { unreachable!("it was just found") };
        let plan: &Plan = &told.plan;
        let step = Step {
            snapshot,
            phase: if told.decode { Phase::Decode } else { Phase::Prefill },
            store: &self.store,
            plan,
            layouts,
            tokens: &told.tokens,
            wanted: &[],
            draws: &[],
            number: told.number,
            looked_at: told.looked_at,
            probe: Probe { guard: self.guard.as_ref(), ..Probe::default() },
        };
        match self.forward.run(&step) {
            Ok(_) => Ok(None),
            Err(StepError::Call(error)) => Ok(Some(error.into())),
            Err(StepError::Device(error)) => Ok(Some(Fault::Other(error))),
            Err(StepError::Rank(error)) => Err(error.to_string()),
        }
    }

    /// Makes `number` the table of the step.
    fn find(&mut self, number: u64) -> Result<(), String> {
        if self.table.as_ref().is_some_and(|(known, ..)| *known == number) {
            return Ok(());
        }
        let table = self.known.lock().unwrap_or_else(PoisonError::into_inner).by_number.get(&number).cloned();
        let table = table.ok_or_else(|| format!("there is no table {number}"))?;
        let layouts: Vec<LayerLayout> = layouts(&self.model.config, &table).collect();
        self.store.ensure(&layouts).map_err(|error| error.to_string())?;
        self.table = Some((number, table, layouts));
        Ok(())
    }
}
