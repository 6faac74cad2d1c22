//! The target that is a running instance: one server, the ranks of a group, or a prefill and decode pair.
//!
//! Arms are temporary assignments that every server gets through its admin endpoint; the oracle asks the public API with
//! the name of the assignment. The servers go on serving: nothing that others use is changed. The plan is made from what
//! the servers say that their cells run, so this process needs no plugin and no weights, only the tokenizer.

mod http;
mod remote;
mod wire;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hotseam_config::{Oracle, TargetSection};
use hotseam_encoding::Tokenizer;
use hotseam_evidence::haystack::Haystack;
use hotseam_slots::Rule;
use sha2::{Digest, Sha256};

use crate::command::Places;
use crate::judge::{self, Judge, Material, Subject};
use crate::planning::{self, Planned, Refused, Site};
use crate::{Arm, Conformance, Noise, Outcome, Plan, Progress, Target, TargetError};
use remote::Remote;

/// Requests in flight, unless the oracle says otherwise; a server queues what it cannot run.
const IN_FLIGHT: usize = 8;

/// What an [`Endpoints`] target is made of.
pub struct EndpointsSetup {
    /// The servers.
    pub section: TargetSection,
    /// Tokenizer of their model.
    pub tokenizer: Tokenizer,
    /// Name and rules of the good end.
    pub good: (String, Vec<Rule>),
    /// Name and rules of the bad end.
    pub bad: (String, Vec<Rule>),
    /// What tells them apart.
    pub oracle: Oracle,
    /// Held-out text.
    pub haystack: Vec<PathBuf>,
    /// Seed of the needles.
    pub seed: u64,
    /// Called as a run proceeds.
    pub progress: Box<dyn FnMut(Progress)>,
}

/// A target that is a running instance. Its temporary assignments are removed when it is dropped.
pub struct Endpoints {
    remote: Arc<Remote>,
    places: Places,
    tokenizer: Tokenizer,
    good: Vec<Rule>,
    planned: Planned,
    judge: Judge,
    progress: Box<dyn FnMut(Progress)>,
    /// Name of the assignment under which arms run.
    arm: String,
    identity: String,
    digests: HashMap<Arm, String>,
    not_run: Arm,
}

/// Removes what a target has defined on its servers, from whatever thread hears that the process must end.
#[derive(Debug, Clone)]
pub struct Cleaner(Arc<Remote>);

impl Cleaner {
    /// Removes the temporary assignments.
    pub fn clean(&self) {
        self.0.clean();
    }
}

/// Removes the temporary assignments if the target is not made in the end.
struct Unfinished(Option<Arc<Remote>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(remote) = &self.0 {
            remote.clean();
        }
    }
}

impl Endpoints {
    /// Connects, resolves both ends on the servers and plans the changes between them.
    ///
    /// # Errors
    /// [`TargetError::Arm`] if an end is refused, [`TargetError::Setup`] for the rest: a server that is not there, ranks
    /// that differ, an oracle that cannot be prepared.
    pub fn new(setup: EndpointsSetup) -> Result<Self, TargetError> {
        let EndpointsSetup { section, tokenizer, good, bad, oracle, haystack: files, seed, progress } = setup;
        let setup_error = |error: Refused| TargetError::Setup(error.to_string());
        let haystack = Haystack::read(&tokenizer, &files).map_err(|error| setup_error(error.into()))?;
        let remote = Arc::new(Remote::new(&section).map_err(setup_error)?);
        let mut unfinished = Unfinished(Some(remote.clone()));
        // Two searches on one server must not take each other's names.
        let arm = format!("bisect-{}", unique());
        let resolve = |suffix: &str, (end, rules): &(String, Vec<Rule>)| {
            let resolved = remote.define(&format!("{arm}-{suffix}"), rules);
            resolved.map_err(|source| TargetError::Arm { what: format!("`{end}`"), source })
        };
        let good_end = resolve("good", &good)?;
        let bad_end = resolve("bad", &bad)?;
        let named = Named { remote: &remote, prefix: &arm };
        let planned = planning::plan(&named, (&good.0, &good.1, &good_end), (&bad.0, &bad_end))?;
        for suffix in ["good", "bad"] {
            remote.remove(&format!("{arm}-{suffix}"));
        }
        let material = Material { tokenizer: &tokenizer, haystack: &haystack, seed, model: remote.model() };
        let judge = Judge::new(&oracle, &material).map_err(|error| setup_error(error.into()))?;
        let places = Places {
            admin: section.endpoints.iter().map(ToString::to_string).collect(),
            api: Some(section.api.to_string()),
            config: None,
        };
        let mut hash = Sha256::new();
        let oracle = serde_json::to_string(&oracle).unwrap_or_default();
        let text = format!("{files:?}{seed}{places:?}");
        for part in [remote.model(), &oracle, &text, &good_end.digest, &bad_end.digest] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let identity = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        unfinished.0 = None;
        let (digests, not_run) = (HashMap::new(), Arm::new());
        let good = good.1;
        Ok(Self {
            remote,
            places,
            tokenizer,
            good,
            planned,
            judge,
            progress,
            arm,
            identity,
            digests,
            not_run,
        })
    }

    /// Something that cleans up when the process is interrupted.
    pub fn cleaner(&self) -> Cleaner {
        Cleaner(self.remote.clone())
    }

    /// Defines an arm on every server and returns its digest.
    fn define(&self, arm: &Arm) -> Result<String, TargetError> {
        let refused = |source| TargetError::Arm { what: self.planned.describe(arm), source };
        let rules = self.planned.rules(&self.good, arm).map_err(refused)?;
        Ok(self.remote.define(&self.arm, &rules).map_err(refused)?.digest)
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.remote.clean();
    }
}

impl Target for Endpoints {
    fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    fn digest(&mut self, arm: &Arm) -> Result<String, TargetError> {
        if let Some(digest) = self.digests.get(arm) {
            return Ok(digest.clone());
        }
        let digest = self.define(arm)?;
        self.digests.insert(arm.clone(), digest.clone());
        Ok(digest)
    }

    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError> {
        let digest = self.define(arm)?;
        let subject = Subject {
            model: &*self.remote,
            engine: None,
            tokenizer: &self.tokenizer,
            assignment: &self.arm,
            digest: &digest,
            in_flight: IN_FLIGHT,
            places: &self.places,
        };
        let found = match arm.is_empty() {
            true => self.judge.base(&subject, &mut *self.progress),
            false => self.judge.arm(&subject, &mut *self.progress),
        };
        let outcome = found.map_err(|error| error.of(self.planned.describe(arm)))?;
        let whole = !judge::broke_off(&outcome);
        if whole && *arm == self.planned.plan.all() {
            let calls = self.remote.calls(&self.arm).map_err(|error| TargetError::Oracle {
                what: "the receipts of the bad end".to_owned(),
                message: error.to_string(),
            })?;
            self.not_run = self.planned.not_run(&calls);
        }
        Ok(outcome)
    }

    fn not_run(&self) -> Arm {
        self.not_run.clone()
    }

    /// Servers check no variants: no case is run, so none fails.
    fn conformance(&mut self, variant: &str) -> Result<Conformance, TargetError> {
        let detail =
            "0 cases: a server checks none; run `hotseam plugin check` where its plugins are".to_owned();
        Ok(Conformance { variant: variant.to_owned(), passed: true, detail })
    }

    fn oracle(&self) -> String {
        self.judge.describe()
    }

    fn noise(&self) -> Noise {
        self.judge.noise()
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }
}

/// The servers, with a planner's assignments under names of this search.
struct Named<'a> {
    remote: &'a Remote,
    prefix: &'a str,
}

impl Site for Named<'_> {
    fn define(&self, name: &str, rules: &[Rule]) -> Result<planning::Resolved, Refused> {
        self.remote.define(&format!("{}-{name}", self.prefix), rules)
    }

    fn remove(&self, name: &str) {
        self.remote.remove(&format!("{}-{name}", self.prefix));
    }

    fn accepts(&self, variant: &str, option: &str, value: &serde_json::Value) -> Result<bool, Refused> {
        self.remote.accepts(variant, option, value)
    }

    fn layout(&self, variant: &hotseam_slots::VariantSpec) -> Result<String, Refused> {
        self.remote.layout(variant)
    }
}

/// A word that another search on the same servers does not have.
fn unique() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    format!("{:x}-{:06x}", std::process::id(), now & 0xff_ffff)
}
