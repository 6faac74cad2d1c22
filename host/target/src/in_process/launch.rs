//! One launch: an engine, and where it is reached.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hotseam_encoding::Tokenizer;
use hotseam_engine::{Engine, EngineConfig, Leader};
use hotseam_evidence::EvidenceError;
use hotseam_evidence::RequestFailure;
use hotseam_evidence::kv_map::{self, Audited};
use hotseam_evidence::model::{EngineModel, Model, Question, Reply};
use hotseam_slots::{Rule, Slots};

use super::local::{self, Local};
use super::setup::{Expose, Exposed};
use crate::command::Places;
use crate::judge::{Audits, Fresh, Judge, NoVerdict, Subject};
use crate::planning::{Planned, Site as _};
use crate::{Arm, Outcome, TargetError};

/// An engine of this process.
pub(super) struct Launch {
    engine: Engine,
    tokenizer: Tokenizer,
    id: u64,
    /// Number of launches, of those of changed axes too.
    count: Arc<AtomicU64>,
    places: Places,
    /// Keeps the engine reachable.
    _exposed: Option<Box<dyn Any + Send + Sync>>,
}

/// The assignment of a subject, made anew in slots of its own.
pub(super) type Remake<'a> = Box<dyn Fn() -> Result<Arc<Slots>, EvidenceError> + Sync + 'a>;

impl Launch {
    /// An engine that runs already.
    ///
    /// # Errors
    /// [`TargetError::Setup`] if it cannot be reached.
    pub(super) fn of(
        engine: Engine,
        id: u64,
        tokenizer: &Tokenizer,
        expose: Option<&Expose>,
    ) -> Result<Self, TargetError> {
        Self::numbered(engine, id, Arc::new(AtomicU64::new(id)), tokenizer, expose)
    }

    /// An engine that counts as part of this launch: what runs there and here is compared as if it were one.
    ///
    /// # Errors
    /// [`TargetError::Setup`] if it does not start.
    pub(super) fn beside(
        &self,
        sizes: &EngineConfig,
        tokenizer: &Tokenizer,
        expose: Option<&Expose>,
    ) -> Result<Self, TargetError> {
        Self::numbered(self.again(sizes)?, self.id, self.count.clone(), tokenizer, expose)
    }

    /// A new engine over the same model.
    fn again(&self, sizes: &EngineConfig) -> Result<Engine, TargetError> {
        let failed =
            |error: &dyn fmt::Display| TargetError::Setup(format!("a new launch does not start: {error}"));
        let hidden = self.engine.model().config.hidden_size;
        let leader = Leader::start(sizes, hidden).map_err(|error| failed(&error))?;
        let slots = local::fresh(self.slots(), sizes.topology, leader)
            .map_err(|error| TargetError::Setup(format!("no plugins for a new launch: {error}")))?;
        Engine::start(self.engine.model().clone(), slots, sizes.clone()).map_err(|error| failed(&error))
    }

    fn numbered(
        engine: Engine,
        id: u64,
        count: Arc<AtomicU64>,
        tokenizer: &Tokenizer,
        expose: Option<&Expose>,
    ) -> Result<Self, TargetError> {
        let exposed = expose.map(|expose| expose(&engine, tokenizer)).transpose();
        let exposed = exposed.map_err(|message| {
            TargetError::Setup(format!("the engine cannot be reached by a command: {message}"))
        })?;
        let (places, guard) = match exposed {
            Some(Exposed { places, guard }) => (places, Some(guard)),
            None => (Places::default(), None),
        };
        let tokenizer = tokenizer.clone();
        Ok(Self { engine, tokenizer, id, count, places, _exposed: guard })
    }

    /// A new engine over the same model, with plugin instances of its own.
    ///
    /// # Errors
    /// [`TargetError::Setup`] if it does not start.
    pub(super) fn with(
        &self,
        sizes: &EngineConfig,
        tokenizer: &Tokenizer,
        expose: Option<&Expose>,
    ) -> Result<Self, TargetError> {
        let engine = self.again(sizes)?;
        let id = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        Self::numbered(engine, id, self.count.clone(), tokenizer, expose)
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn slots(&self) -> &Arc<Slots> {
        self.engine.slots()
    }

    pub(super) fn sizes(&self) -> &EngineConfig {
        self.engine.config()
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Makes the rules of an assignment in slots of their own.
    pub(super) fn fresh<'a>(&self, name: &'a str, rules: &'a [Rule]) -> Remake<'a> {
        let (slots, topology) = (self.slots().clone(), self.sizes().topology);
        Box::new(move || {
            let refused = |error: crate::planning::Refused| EvidenceError::Baseline {
                assignment: name.to_owned(),
                code: "E-ASSIGNMENT".to_owned(),
                message: error.to_string(),
            };
            let again = local::fresh(&slots, topology, None).map_err(refused)?;
            Local(&again).define(name, rules).map_err(refused)?;
            Ok(again)
        })
    }

    /// The subject of an oracle.
    pub(super) fn subject<'a>(
        &'a self,
        assignment: &'a str,
        digest: &'a str,
        tokenizer: &'a Tokenizer,
        fresh: Fresh<'a>,
    ) -> Subject<'a> {
        Subject {
            model: self,
            engine: Some((&self.engine, fresh)),
            audits: self,
            tokenizer,
            assignment,
            digest,
            in_flight: self.sizes().max_seqs,
            places: &self.places,
        }
    }

    /// An outcome of this launch; a command may know a launch of its own.
    pub(super) fn stamp(&self, found: Result<Outcome, NoVerdict>) -> Result<Outcome, NoVerdict> {
        found.map(|outcome| match outcome.launch {
            0 => Outcome { launch: self.id, ..outcome },
            _ => outcome,
        })
    }
}

impl Model for Launch {
    fn ask(&self, question: &Question<'_>) -> Result<Result<Reply, RequestFailure>, EvidenceError> {
        EngineModel { engine: &self.engine, tokenizer: &self.tokenizer }.ask(question)
    }
}

impl Audits for Launch {
    fn audit(&self, assignment: &str, prompt: &[u32]) -> Result<Audited, EvidenceError> {
        kv_map::audit(&self.engine, assignment, prompt)
    }
}

/// What arms that run side by side share.
pub(super) struct Side<'a> {
    pub(super) launch: &'a Launch,
    pub(super) judge: &'a Judge,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) planned: &'a Planned,
    pub(super) good: &'a [Rule],
}

impl Side<'_> {
    /// Judges an arm under an assignment of its own.
    pub(super) fn measure(&self, name: &str, arm: &Arm) -> Result<Outcome, TargetError> {
        let what = || self.planned.describe(arm);
        let refused = |source| TargetError::Arm { what: what(), source };
        let rules = self.planned.rules(self.good, arm).map_err(refused)?;
        let digest = Local(self.launch.slots()).define(name, &rules).map_err(refused)?.digest;
        let fresh = self.launch.fresh(name, &rules);
        let subject = self.launch.subject(name, &digest, self.tokenizer, &fresh);
        let found = self.judge.arm(&subject, &mut |_| {});
        self.launch.stamp(found).map_err(|error| error.of(what()))
    }
}
