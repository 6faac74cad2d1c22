//! The servers of a target: assignments on all of them, requests to one, or to both workers of a pair.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hotseam_config::{Endpoint, TargetSection, WorkerSection};
use hotseam_engine::KvMap;
use hotseam_evidence::kv_map::Audited;
use hotseam_evidence::model::{Model, Question, Reply, Said};
use hotseam_evidence::{EvidenceError, RequestFailure};
use hotseam_slots::{Cell, CellId, Rule, VariantSpec};
use serde_json::{Map, Value, json};

use super::door::Door;
use super::http::{Client, Trouble};
use super::wire::{Assignment, Called, Completion, Slots, Trace, Variant};
use crate::judge::Audits;
use crate::planning::{End, Refused, Resolved, Served, Site};

/// The servers of one serving instance, in the order of the file: their ranks.
#[derive(Debug)]
pub(super) struct Remote {
    admins: Vec<Client>,
    door: Door,
    /// Name of the served model.
    model: String,
    /// Assignments that this target has defined and not removed.
    defined: Mutex<BTreeSet<String>>,
    /// What the servers said of variants.
    variants: Mutex<HashMap<String, Variant>>,
    /// Whether it hands nothing over: it stands beside the pair.
    alone: bool,
}

impl Remote {
    /// The servers of a target, but for one of another topology that stands beside them.
    pub(super) fn new(section: &TargetSection) -> Result<Self, Refused> {
        let limit = Duration::try_from_secs_f64(section.timeout_seconds)?;
        if let (Some(prefill), Some(decode)) = (&section.prefill, &section.decode) {
            return Self::over(&[&prefill.admin, &decode.admin], Door::pair(prefill, decode, limit)?, limit);
        }
        let api = section.api.as_ref().ok_or("`bisect.target` names no `api`")?;
        let door = Door::One(Client::new(api, limit)?);
        Self::over(&section.endpoints.iter().collect::<Vec<_>>(), door, limit)
    }

    /// The server that stands beside a pair.
    pub(super) fn single(worker: &WorkerSection, seconds: f64) -> Result<Self, Refused> {
        let limit = Duration::try_from_secs_f64(seconds)?;
        let over = Self::over(&[&worker.admin], Door::One(Client::new(&worker.api, limit)?), limit)?;
        Ok(Self { alone: true, ..over })
    }

    /// Connects to every server and checks that they serve one model.
    fn over(admins: &[&Endpoint], door: Door, limit: Duration) -> Result<Self, Refused> {
        let admins: Vec<Client> =
            admins.iter().map(|endpoint| Client::new(endpoint, limit)).collect::<Result<_, _>>()?;
        let mut models: Vec<(String, String)> = Vec::new();
        for admin in &admins {
            let slots: Slots = admin.ask("GET", "/slots", None)?;
            if slots.assignments.is_empty() {
                return Err(format!("{}: the server has no assignment", admin.name()).into());
            }
            models.push((admin.name().to_owned(), slots.model));
        }
        let (_, model) = models.first().cloned().ok_or("`bisect.target.endpoints` names no server")?;
        if let Some((rank, (place, other))) = models.iter().enumerate().find(|(_, (_, m))| *m != model) {
            let text = format!("rank {rank} ({place}) serves the model `{other}`, rank 0 serves `{model}`");
            return Err(format!("{text}; one target is one serving instance").into());
        }
        let (defined, variants) = (Mutex::default(), Mutex::default());
        Ok(Self { admins, door, model, defined, variants, alone: false })
    }

    /// Whose answers it gives.
    pub(super) fn name(&self) -> &str {
        self.door.name()
    }

    /// Name of the served model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Calls of each cell since the assignment was defined, on all servers together.
    pub(super) fn calls(&self, name: &str) -> Result<HashMap<CellId, u64>, Refused> {
        let mut calls = HashMap::new();
        for admin in &self.admins {
            let trace: Trace = admin.ask("GET", &format!("/trace?assignment={name}"), None)?;
            for Called { cell, calls: own } in trace.cells {
                *calls.entry(cell).or_default() += own;
            }
        }
        Ok(calls)
    }

    /// Removes every assignment that this target has defined. What fails is left: there is nothing more to do about it.
    pub(super) fn clean(&self) {
        let names = std::mem::take(&mut *self.defined.lock().unwrap_or_else(PoisonError::into_inner));
        for name in names {
            self.remove_everywhere(&name);
        }
    }

    fn remove_everywhere(&self, name: &str) {
        for admin in &self.admins {
            let gone: Result<Value, Trouble> = admin.ask("DELETE", &format!("/assignments/{name}"), None);
            match gone {
                Ok(_) | Err(Trouble::Refused { status: 404, .. }) => {}
                Err(error) => tracing::warn!(%error, assignment = name, "an assignment could not be removed"),
            }
        }
    }

    /// What the first server says of a variant; asked once for each.
    fn variant(&self, spec: &VariantSpec) -> Result<Variant, Trouble> {
        let key = spec.to_string();
        let known = self.variants.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let admin = &self.admins[0];
        let variant: Variant = admin.ask("POST", "/variant", Some(&json!({ "use": key })))?;
        let mut variants = self.variants.lock().unwrap_or_else(PoisonError::into_inner);
        variants.insert(key, variant.clone());
        Ok(variant)
    }

    fn resolved(&self, assignment: Assignment) -> Result<Resolved, Refused> {
        let mut cells = Vec::new();
        for line in assignment.cells {
            let Variant { variant: spec, plugin, .. } = self.variant(&line.variant)?;
            let cell = Cell { id: line.cell, class: line.class };
            cells.push(Served { cell, by: End { spec, plugin, hash: line.hash } });
        }
        Ok(Resolved { digest: assignment.digest, cells })
    }
}

impl Site for Remote {
    fn define(&self, name: &str, rules: &[Rule]) -> Result<Resolved, Refused> {
        // Removed first, so that receipts begin at zero and the layouts may be others than before.
        self.remove_everywhere(name);
        self.defined.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        let body = json!({ "rules": rules });
        let mut first: Option<Assignment> = None;
        for (rank, admin) in self.admins.iter().enumerate() {
            let own: Assignment = admin
                .ask("PUT", &format!("/assignments/{name}"), Some(&body))
                .map_err(|error| format!("rank {rank}: {error}"))?;
            match &first {
                None => first = Some(own),
                Some(first) if first.digest != own.digest => {
                    return Err(differing(rank, admin.name(), first, &own).into());
                }
                Some(_) => {}
            }
        }
        self.resolved(first.ok_or("there is no server")?)
    }

    fn remove(&self, name: &str) {
        self.remove_everywhere(name);
        self.defined.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    fn accepts(&self, variant: &str, option: &str, value: &Value) -> Result<bool, Refused> {
        let options = Map::from_iter([(option.to_owned(), value.clone())]);
        match self.variant(&VariantSpec::new(variant, options)) {
            Ok(_) => Ok(true),
            Err(Trouble::Refused { status: 422 | 400, .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn layout(&self, variant: &VariantSpec) -> Result<String, Refused> {
        Ok(self.variant(variant)?.layout)
    }
}

/// Two servers that make other assignments of the same rules.
fn differing(rank: usize, place: &str, first: &Assignment, own: &Assignment) -> String {
    let cell = first.cells.iter().zip(&own.cells).find(|(a, b)| (a.cell, &a.hash) != (b.cell, &b.hash));
    let cell = cell.map_or("the cells are not the same".to_owned(), |(a, b)| {
        let short = |hash: &str| hash.get(..12).unwrap_or(hash).to_owned();
        format!("{} is {} ({}), there {} ({})", a.cell, a.variant, short(&a.hash), b.variant, short(&b.hash))
    });
    format!(
        "rank {rank} ({place}) makes another assignment of the same rules than rank 0: {cell}; give all servers the same \
         plugin files and configuration"
    )
}

/// Whichever of the servers receives KV has the map.
impl Audits for Remote {
    fn audit(&self, assignment: &str, prompt: &[u32]) -> Result<Audited, EvidenceError> {
        if self.alone {
            return Ok(Audited::Nothing);
        }
        let maps = || -> Result<Vec<Option<KvMap>>, EvidenceError> {
            let map = |admin: &Client| admin.ask("GET", "/kv", None);
            self.admins.iter().map(map).collect::<Result<_, _>>().map_err(|trouble| {
                let (place, message) = ("the admin endpoints".to_owned(), trouble.to_string());
                EvidenceError::Transport { place, message }
            })
        };
        let before = maps()?;
        let question = Question { prompt, max_tokens: 2, assignment, reuse_prefill: false };
        let reply = self.ask(&question)?;
        // Others use the servers too, and not this assignment; of a pair the room tells as well whose hand-off it was.
        let own = self.door.last_room();
        let is_own = |map: &KvMap| {
            map.assignment == assignment
                && own.map_or_else(|| !before.iter().flatten().any(|old| old == map), |room| map.room == room)
        };
        let new = maps()?.into_iter().flatten().find(is_own);
        match (new, reply) {
            (Some(map), _) => Ok(Audited::Map(Box::new(map))),
            (None, Err(failure)) => Ok(Audited::Failed(failure)),
            (None, Ok(_)) => Err(EvidenceError::NoHandoff),
        }
    }
}

impl Model for Remote {
    fn ask(&self, question: &Question<'_>) -> Result<Result<Reply, RequestFailure>, EvidenceError> {
        let body = json!({
            "model": self.model,
            "prompt": question.prompt,
            "max_tokens": question.max_tokens,
            "temperature": 0,
            "logprobs": 0,
            "assignment": question.assignment,
        });
        let completion: Completion = match self.door.post("/v1/completions", body) {
            Ok(completion) => completion,
            // The other worker was not there, or its connection broke: that is no answer about the arm.
            Err(Trouble::Refused { place, code, message, .. })
                if code.starts_with("E-PD-") && code != "E-PD-FINGERPRINT" =>
            {
                return Err(EvidenceError::Transport { place, message: format!("{code} {message}") });
            }
            // The model failed: that is an answer about the arm. Everything else says nothing about it.
            Err(Trouble::Refused { status: 500, code, message, .. }) => {
                return Ok(Err(RequestFailure { code, message }));
            }
            Err(Trouble::TimedOut { place, seconds }) => {
                return Err(EvidenceError::TimedOut { place, seconds });
            }
            Err(Trouble::Refused { place, message, .. } | Trouble::Broken { place, message }) => {
                return Err(EvidenceError::Transport { place, message });
            }
        };
        let Some(choice) = completion.choices.into_iter().next() else {
            let (place, message) = (self.door.name().to_owned(), "the answer has no choice".to_owned());
            return Err(EvidenceError::Transport { place, message });
        };
        let said = choice.logprobs.unwrap_or_default();
        let tokens = said.tokens.into_iter().zip(said.token_logprobs);
        let tokens = tokens.map(|(name, logprob)| Said { name, logprob: logprob.unwrap_or(0.0) }).collect();
        Ok(Ok(Reply { text: choice.text, tokens }))
    }
}
