//! The leader's ends: tables and counts ([`Peers`]), and steps.

use super::Carrier;
use super::wire::{self, Build, Counts, Fault, Hello, RankSizes, StepHead, kind};
use crate::{Device, EngineConfig, EngineError};
use hotseam_kv::Plan;
use hotseam_ranks::{
    Breaker, Children, Collective, Link, LinkError, NCCL_ID, Nccl, Program, RankError, Shared,
};
use hotseam_slots::{CallError, Counted, Digest, Peers, Rule, SlotsError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a rank may take to load its part of the model, or the plugins of a table.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a rank may take after the leader has ended its own part of a step.
const STEP: Duration = Duration::from_secs(120);

/// The group as the leader reaches it. The ranks end with it.
#[derive(Debug)]
pub struct Leader {
    world: u32,
    tables: Mutex<Tables>,
    /// What the engine thread takes.
    engine: Mutex<Option<(Vec<Link>, Join)>>,
    breaker: Breaker,
    children: Children,
}

/// The links for tables, of rank 1 and up.
#[derive(Debug)]
struct Tables {
    links: Vec<Link>,
    /// Whether all ranks have said that they have their part of the model.
    ready: bool,
    answer: Vec<u8>,
}

/// The leader's part in the sums, before its device is there.
#[derive(Debug)]
pub(crate) enum Join {
    Shared(Shared),
    /// Name of the group, number of its ranks, and what tells that one is gone.
    Nccl([u8; NCCL_ID], u32, Breaker),
}

impl Join {
    /// Joins the group; on a device its context is current. Waits for the other ranks.
    pub(crate) fn join(self) -> Result<Box<dyn Collective>, EngineError> {
        match self {
            Self::Shared(shared) => Ok(Box::new(shared)),
            Self::Nccl(id, world, breaker) => match Nccl::join(id, 0, world, breaker) {
                Ok(nccl) => Ok(Box::new(nccl)),
                Err(error) => Err(EngineError::Ranks(error.to_string())),
            },
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before the lock is released.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leader {
    /// Starts the other ranks of an engine of these sizes; `None` if it has none. They load the model while the caller does; the
    /// first table waits for them.
    ///
    /// # Errors
    /// If the group cannot be of this size, or a rank cannot be started.
    pub fn start(sizes: &EngineConfig, hidden_size: usize) -> Result<Option<Arc<Self>>, EngineError> {
        let Some(settings) = &sizes.ranks else { return Ok(None) };
        let world = settings.world;
        let failed = |error: &dyn std::fmt::Display| EngineError::Ranks(error.to_string());
        let nccl = carrier(settings.carrier, sizes.device, world)?;
        let values = sizes.max_rows() * hidden_size;
        let (shared, memory) = Shared::create(world, values).map_err(|e| failed(&e))?;
        let breaker = shared.breaker();
        let program = Program { path: settings.program.clone(), args: settings.args.clone() };
        let (links, children) =
            Children::start(&program, world, &memory, &breaker).map_err(|e| failed(&e))?;
        let (mut tables, steps): (Vec<Link>, Vec<Link>) = links.into_iter().map(|[a, b]| (a, b)).unzip();
        for (rank, link) in (1..).zip(&mut tables) {
            let hello = Hello {
                rank,
                world,
                spec: settings.spec.clone(),
                sizes: RankSizes::of(sizes),
                nccl: nccl.map(|id| id.to_vec()),
            };
            say(link, kind::HELLO, &hello).map_err(|e| failed(&gone(&children, rank, &e)))?;
        }
        let join = nccl.map_or(Join::Shared(shared), |id| Join::Nccl(id, world, breaker.clone()));
        Ok(Some(Arc::new(Self {
            world,
            tables: Mutex::new(Tables { links: tables, ready: false, answer: Vec::new() }),
            engine: Mutex::new(Some((steps, join))),
            breaker,
            children,
        })))
    }

    /// Number of ranks.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// What the engine thread needs; `None` the second time.
    pub(crate) fn take(&self) -> Option<(Steps, Join)> {
        let (links, join) = lock(&self.engine).take()?;
        Some((Steps { links, frame: Vec::new(), answer: Vec::new() }, join))
    }

    /// Why a rank that is lost has ended, if it has.
    pub(crate) fn ended(&self) -> Option<String> {
        self.children.ended_soon()
    }

    /// Has every rank do the same, and hands each answer to `each`.
    fn ask<T: DeserializeOwned>(
        &self,
        of: u32,
        message: &impl Serialize,
        each: &mut dyn FnMut(u32, T) -> Result<(), SlotsError>,
    ) -> Result<(), SlotsError> {
        let mut tables = lock(&self.tables);
        let Tables { links, ready, answer } = &mut *tables;
        let refused = |rank: u32, message: String| SlotsError::Rank { rank, message };
        let wait = |rank: u32, link: &mut Link, answer: &mut Vec<u8>| {
            let kind = link.receive(answer, PATIENCE).map_err(|e| gone(&self.children, rank, &e))?;
            match kind {
                kind::DONE => Ok(()),
                _ => Err(String::from_utf8_lossy(answer).into_owned()),
            }
        };
        if !*ready {
            for (rank, link) in (1..).zip(&mut *links) {
                wait(rank, link, answer).map_err(|message| refused(rank, message))?;
            }
            *ready = true;
        }
        for (rank, link) in (1..).zip(&mut *links) {
            say(link, of, message).map_err(|e| refused(rank, gone(&self.children, rank, &e)))?;
        }
        // All answers are read, so that the next question does not find them.
        let mut first = Ok(());
        for (rank, link) in (1..).zip(&mut *links) {
            let said = wait(rank, link, answer).map_err(|message| refused(rank, message));
            let said = said.and_then(|()| match serde_json::from_slice(answer) {
                Ok(value) => each(rank, value),
                Err(error) => Err(refused(rank, format!("an answer that is none: {error}"))),
            });
            first = first.and(said);
        }
        first
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // Whoever waits for the leader's part of a sum need not wait longer.
        self.breaker.break_with(0);
    }
}

impl Peers for Leader {
    fn build(&self, number: u64, name: &str, rules: &[Rule], digest: Digest) -> Result<(), SlotsError> {
        let build = Build { number, name: name.to_owned(), rules: rules.to_vec(), digest };
        self.ask(kind::BUILD, &build, &mut |_, ()| Ok(()))
    }

    fn forget(&self, number: u64) {
        let mut tables = lock(&self.tables);
        for link in tables.links.iter_mut().filter(|_| self.children.ended().is_none()) {
            // A rank that is gone has nothing to forget.
            let _ = say(link, kind::FORGET, &number);
        }
    }

    fn counts(&self, number: u64) -> Result<Vec<Counted>, SlotsError> {
        let mut all = Vec::new();
        self.ask(kind::COUNTS, &number, &mut |_, Counts(counts)| {
            all.extend(counts);
            Ok(())
        })?;
        Ok(all)
    }
}

fn say(link: &mut Link, of: u32, message: &impl Serialize) -> Result<(), LinkError> {
    let Ok(text) = serde_json::to_vec(message) else { unreachable!("plain data has a text") };
    link.send(of, &[&text])
}

/// What is known of a rank that does not answer.
fn gone(children: &Children, rank: u32, error: &LinkError) -> String {
    children.ended_soon().unwrap_or_else(|| format!("rank {rank} does not answer: {error}"))
}

/// What NCCL reads: whether ranks may share a device.
const SHARED_DEVICE: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// The name of the NCCL group, if it is to carry the sums.
fn carrier(wanted: Carrier, device: Device, world: u32) -> Result<Option<[u8; NCCL_ID]>, EngineError> {
    let Device::Cuda(_) = device else {
        return match wanted {
            Carrier::Nccl => Err(EngineError::Config {
                field: "engine.collective",
                expected: "auto or shared where steps run on the CPU".to_owned(),
                found: "nccl".to_owned(),
            }),
            Carrier::Auto | Carrier::Shared => Ok(None),
        };
    };
    if wanted == Carrier::Shared {
        return Ok(None);
    }
    let devices = hotseam_cuda::capabilities()?.len();
    let shared = wanted == Carrier::Nccl && std::env::var_os(SHARED_DEVICE).is_some_and(|value| value == "1");
    let id = match shared || devices >= world as usize {
        true => Nccl::unique_id().map_err(|error| error.to_string()),
        false => Err(format!(
            "NCCL needs a device for each of {world} ranks, there are {devices}. NCCL 2.30 or newer lets ranks share one, for trials, \
             with {SHARED_DEVICE}=1 in the environment and engine.collective: nccl"
        )),
    };
    match (id, wanted) {
        (Ok(id), _) => Ok(Some(id)),
        (Err(error), Carrier::Nccl) => Err(EngineError::Ranks(error)),
        (Err(error), _) => {
            tracing::warn!(%error, "sums of ranks go through host memory");
            Ok(None)
        }
    }
}

/// The links for steps.
#[derive(Debug)]
pub(crate) struct Steps {
    links: Vec<Link>,
    frame: Vec<u8>,
    answer: Vec<u8>,
}

/// What another rank says of a step.
#[derive(Debug)]
pub(crate) enum Elsewhere {
    /// A call failed there.
    Call(CallError),
    /// Something else failed there; the group goes on.
    Failed(String),
    /// A rank is gone, and the group with it.
    Gone(RankError),
}

impl Steps {
    /// Waits until every rank can run steps.
    ///
    /// # Errors
    /// The first that cannot.
    pub(crate) fn wait(&mut self) -> Result<(), EngineError> {
        self.end(PATIENCE).map_err(|found| {
            EngineError::Ranks(match found {
                Elsewhere::Call(error) => error.to_string(),
                Elsewhere::Failed(error) => error,
                Elsewhere::Gone(error) => error.to_string(),
            })
        })
    }

    /// Tells all ranks to run a step.
    ///
    /// # Errors
    /// If a rank is gone.
    pub(crate) fn begin(&mut self, step: StepHead, tokens: &[i32], plan: &Plan) -> Result<(), RankError> {
        wire::encode(&mut self.frame, step, tokens, plan);
        for (rank, link) in (1..).zip(&mut self.links) {
            link.send(kind::STEP, &[&self.frame]).map_err(|error| lost(rank, &error))?;
        }
        Ok(())
    }

    /// Waits until all ranks have run the step.
    ///
    /// # Errors
    /// The failure of the first rank that has one.
    pub(crate) fn finish(&mut self) -> Result<(), Elsewhere> {
        self.end(STEP)
    }

    fn end(&mut self, limit: Duration) -> Result<(), Elsewhere> {
        let mut first = Ok(());
        for (rank, link) in (1..).zip(&mut self.links) {
            let said = link.receive(&mut self.answer, limit);
            let kind = said.map_err(|error| Elsewhere::Gone(lost(rank, &error)))?;
            if kind != kind::DONE && first.is_ok() {
                first = Err(match serde_json::from_slice(&self.answer) {
                    Ok(Fault::Call { cell, variant, code, message }) => {
                        Elsewhere::Call(CallError { cell, variant, code, message })
                    }
                    Ok(Fault::Other(text)) => Elsewhere::Failed(format!("rank {rank}: {text}")),
                    Err(error) => Elsewhere::Failed(format!("rank {rank}: an answer that is none: {error}")),
                });
            }
        }
        first
    }
}

fn lost(rank: u32, error: &LinkError) -> RankError {
    RankError::Gone { rank, what: format!("does not answer: {error}") }
}
