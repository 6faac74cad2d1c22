//! The target that is a running instance: one server, the ranks of a group, or a prefill and decode pair, with or without a
//! worker of topology `single` beside it.
//!
//! Arms are temporary assignments that every server gets through its admin endpoint; the oracle asks the public API with
//! the name of the assignment. The servers go on serving: nothing that others use is changed. The plan is made from what
//! the servers say that their cells run, so this process needs no plugin and no weights, only the tokenizer.
//!
//! Both ends of a pair get every arm whole: a hand-off is only made between workers whose layouts, writing variants and
//! transport are alike, and a cell runs on the end whose phase it belongs to.

mod door;
mod http;
mod remote;
mod single;
mod wire;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hotseam_config::{AuditOracle, Oracle, TargetSection};
use hotseam_encoding::Tokenizer;
use hotseam_evidence::EvidenceError;
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::kv_map::{self, Audited};
use hotseam_slots::Rule;
use sha2::{Digest, Sha256};

use crate::command::Places;
use crate::judge::{self, Audits as _, Judge, Material, Subject};
use crate::planning::{self, Planned, Refused, Site};
use crate::{Arm, Axis, Conformance, Handoff, Noise, Outcome, Plan, Progress, Target, TargetError};
use remote::Remote;
use single::Single;

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
    /// Whether the good end runs on the worker of topology `single` and the bad end on the pair.
    pub single_to_paired: bool,
    /// Called as a run proceeds.
    pub progress: Box<dyn FnMut(Progress)>,
}

/// A target that is a running instance. Its temporary assignments are removed when it is dropped.
pub struct Endpoints {
    remote: Arc<Remote>,
    /// The worker beside the pair.
    single: Option<Single>,
    places: Places,
    tokenizer: Tokenizer,
    good: Vec<Rule>,
    planned: Planned,
    judge: Judge,
    haystack: Haystack,
    progress: Box<dyn FnMut(Progress)>,
    /// Name of the assignment under which arms run.
    arm: String,
    identity: String,
    digests: HashMap<Arm, String>,
    not_run: Arm,
}

/// Removes what a target has defined on its servers, from whatever thread hears that the process must end.
#[derive(Debug, Clone)]
pub struct Cleaner(Vec<Arc<Remote>>);

impl Cleaner {
    /// Removes the temporary assignments.
    pub fn clean(&self) {
        self.0.iter().for_each(|remote| remote.clean());
    }
}

/// Removes the temporary assignments if the target is not made in the end.
struct Unfinished(Vec<Arc<Remote>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.iter().for_each(|remote| remote.clean());
    }
}

impl Endpoints {
    /// Connects, resolves both ends on the servers and plans the changes between them.
    ///
    /// # Errors
    /// [`TargetError::Arm`] if an end is refused, [`TargetError::Setup`] for the rest: a server that is not there, ranks
    /// that differ, an oracle that cannot be prepared.
    pub fn new(setup: EndpointsSetup) -> Result<Self, TargetError> {
        let EndpointsSetup { section, tokenizer, good, bad, oracle, haystack: files, seed, .. } = setup;
        let (progress, single_to_paired) = (setup.progress, setup.single_to_paired);
        let setup_error = |error: Refused| TargetError::Setup(error.to_string());
        let haystack = Haystack::read(&tokenizer, &files).map_err(|error| setup_error(error.into()))?;
        let remote = Arc::new(Remote::new(&section).map_err(setup_error)?);
        let mut unfinished = Unfinished(vec![remote.clone()]);
        // Two searches on one server must not take each other's names.
        let arm = format!("bisect-{}", unique());
        let resolve = |suffix: &str, (end, rules): &(String, Vec<Rule>)| {
            let resolved = remote.define(&format!("{arm}-{suffix}"), rules);
            resolved.map_err(|source| TargetError::Arm { what: format!("`{end}`"), source })
        };
        let good_end = resolve("good", &good)?;
        let bad_end = resolve("bad", &bad)?;
        let named = Named { remote: &remote, prefix: &arm };
        let mut planned = planning::plan(&named, (&good.0, &good.1, &good_end), (&bad.0, &bad_end))?;
        for suffix in ["good", "bad"] {
            remote.remove(&format!("{arm}-{suffix}"));
        }
        let material = Material { tokenizer: &tokenizer, haystack: &haystack, seed, model: remote.model() };
        let make_judge = || Judge::new(&oracle, &material).map_err(|error| setup_error(error.into()));
        let judge = make_judge()?;
        let single = match &section.single {
            Some(worker) => {
                let own = Arc::new(Remote::single(worker, section.timeout_seconds).map_err(setup_error)?);
                unfinished.0.push(own.clone());
                own.is_like(&remote, &format!("{arm}-single"), &good.1, &good_end).map_err(setup_error)?;
                let atom = single_to_paired.then(|| planned.add_topology());
                let judge = if single_to_paired { None } else { Some(make_judge()?) };
                Some(Single { remote: own, atom, judge, places: single::places(worker) })
            }
            None => None,
        };
        let places = places(&section);
        let mut hash = Sha256::new();
        let oracle = serde_json::to_string(&oracle).unwrap_or_default();
        let text = format!("{files:?}{seed}{places:?}");
        for part in [remote.model(), &oracle, &text, &good_end.digest, &bad_end.digest] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let identity = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        unfinished.0.clear();
        let (digests, not_run) = (HashMap::new(), Arm::new());
        let good = good.1;
        Ok(Self {
            remote,
            single,
            places,
            tokenizer,
            good,
            planned,
            judge,
            haystack,
            progress,
            arm,
            identity,
            digests,
            not_run,
        })
    }

    /// Something that cleans up when the process is interrupted.
    pub fn cleaner(&self) -> Cleaner {
        let single = self.single.iter().map(|single| single.remote.clone());
        Cleaner(std::iter::once(self.remote.clone()).chain(single).collect())
    }

    /// Whether an arm runs on the worker beside the pair.
    fn is_single(&self, arm: &Arm) -> bool {
        let atom = self.single.as_ref().and_then(|single| single.atom);
        atom.is_some_and(|atom| !arm.contains(&atom))
    }

    /// Defines an arm on every server that runs it, or beside them, and returns its digest.
    fn define(&self, arm: &Arm, beside: bool) -> Result<String, TargetError> {
        let refused = |source| TargetError::Arm { what: self.planned.describe(arm), source };
        let rules = self.planned.rules(&self.good, arm).map_err(refused)?;
        let (remote, topology) = match &self.single {
            Some(single) if beside => (&single.remote, "single"),
            _ => (&self.remote, "paired"),
        };
        let digest = remote.define(&self.arm, &rules).map_err(refused)?.digest;
        Ok(match self.single.as_ref().and_then(|single| single.atom) {
            // Equal cells in one pool and in two are two arms.
            Some(_) => format!("{topology}:{digest}"),
            None => digest,
        })
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.cleaner().clean();
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
        let digest = self.define(arm, self.is_single(arm))?;
        self.digests.insert(arm.clone(), digest.clone());
        Ok(digest)
    }

    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError> {
        let beside = self.is_single(arm);
        let digest = self.define(arm, beside)?;
        let (remote, places) = match &self.single {
            Some(single) if beside => (&single.remote, &single.places),
            _ => (&self.remote, &self.places),
        };
        let subject = subject(remote, places, &self.tokenizer, &self.arm, &digest);
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

    fn handoff(&mut self, arm: &Arm) -> Result<Option<Handoff>, TargetError> {
        self.define(arm, false)?;
        let mut sum = Handoff::default();
        let lengths = AuditOracle::default().lengths;
        for prompt in kv_map::prompts(&self.tokenizer, &self.haystack, &lengths) {
            match self.remote.audit(&self.arm, &prompt) {
                Ok(Audited::Map(map)) => sum.add(&map),
                Ok(Audited::Failed(_) | Audited::Nothing) => {}
                // Hand-offs are not audited there.
                Err(EvidenceError::NoHandoff) => return Ok(None),
                Err(error) => {
                    let (what, message) = (self.planned.describe(arm), error.to_string());
                    return Err(TargetError::Oracle { what, message });
                }
            }
        }
        Ok((sum.requests > 0).then_some(sum))
    }

    fn axes(&self) -> Vec<Axis> {
        let single = self.single.as_ref().filter(|single| single.atom.is_none());
        single.map(|_| single::axis()).into_iter().collect()
    }

    fn measure_axes(&mut self, settings: &[(String, String)], arm: &Arm) -> Result<Outcome, TargetError> {
        single::check(settings, self.single.is_some())?;
        let based = self.single.as_ref().and_then(|single| single.judge.as_ref()).is_none_or(Judge::is_based);
        let first = (!based && !arm.is_empty()).then(Arm::new);
        let mut last = None;
        // An arm is held against the good end at the same topology.
        for arm in first.into_iter().chain([arm.clone()]) {
            let digest = self.define(&arm, true)?;
            let Some(Single { remote, judge, places, .. }) = &mut self.single else { break };
            let judge = judge.as_mut().unwrap_or(&mut self.judge);
            let subject = subject(remote, places, &self.tokenizer, &self.arm, &digest);
            let found = match arm.is_empty() {
                true => judge.base(&subject, &mut *self.progress),
                false => judge.arm(&subject, &mut *self.progress),
            };
            last = Some(found.map_err(|error| error.of(self.planned.describe(&arm)))?);
        }
        last.ok_or_else(|| TargetError::Setup("nothing was measured".to_owned()))
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }
}

/// An assignment on some servers as an oracle sees it.
fn subject<'a>(
    remote: &'a Remote,
    places: &'a Places,
    tokenizer: &'a Tokenizer,
    assignment: &'a str,
    digest: &'a str,
) -> Subject<'a> {
    Subject {
        model: remote,
        engine: None,
        audits: remote,
        tokenizer,
        assignment,
        digest,
        in_flight: IN_FLIGHT,
        places,
    }
}

/// Where a command reaches the servers. Of a pair it gets the decode worker's door, and has to send to both itself.
fn places(section: &TargetSection) -> Places {
    let pair = section.prefill.iter().chain(&section.decode);
    let admins = section.endpoints.iter().chain(pair.map(|worker| &worker.admin));
    let api = section.api.as_ref().or(section.decode.as_ref().map(|worker| &worker.api));
    Places {
        admin: admins.map(ToString::to_string).collect(),
        api: api.map(ToString::to_string),
        config: None,
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
