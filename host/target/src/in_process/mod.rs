//! The target that owns an engine.
//!
//! An arm is a temporary assignment next to the live one: the good rules, then one rule for each set of cells that the
//! arm's changes touch. The engine keeps prefill states by the digest of the prefill cells, so arms that differ only
//! in decode share one prefill. An axis that is changed gets an engine of its own over the same model, and so does the good
//! end if it runs at another topology than the bad one.

mod axes;
mod evidence;
mod identity;
mod launch;
mod local;
mod setup;

use std::collections::HashMap;

use hotseam_config::Oracle;
use hotseam_encoding::Tokenizer;
use hotseam_engine::{EngineConfig, Topology};
use hotseam_evidence::conform::{self, CheckLevel};
use hotseam_evidence::divergence::Passage;
use hotseam_evidence::haystack::Haystack;
use hotseam_slots::Rule;

use crate::judge::{self, Judge, Material};
use crate::planning::{self, Planned, Site};
use crate::{
    Arm, Axis, Conformance, Handoff, Noise, Outcome, Plan, Progress, Suspicion, TOPOLOGY, Target, TargetError,
};
use axes::Setting;
use launch::Launch;
use local::Local;
pub use setup::{Expose, Exposed, Setup};

/// Assignments under which the ends are resolved, for the plan and for evidence.
const GOOD: &str = "bisect-good";
const BAD: &str = "bisect-bad";
/// Assignment under which arms run; arms that run side by side have a number behind it.
const ARM: &str = "bisect-arm";

/// A target that owns an engine.
pub struct InProcess {
    tokenizer: Tokenizer,
    good: Vec<Rule>,
    bad: Vec<Rule>,
    oracle: Oracle,
    haystack: Haystack,
    seed: u64,
    model: String,
    identity: String,
    axes: Vec<Axis>,
    planned: Planned,
    judge: Judge,
    progress: Box<dyn FnMut(Progress)>,
    expose: Option<Expose>,
    launch: Launch,
    /// Where arms without the change of topology run.
    single: Option<Single>,
    /// The engine of the last changed axes, with its own bar.
    other: Option<Other>,
    digests: HashMap<Arm, String>,
    not_run: Arm,
}

/// The engine of topology `single`, beside one that hands over.
struct Single {
    /// Atom that switches to the other.
    atom: usize,
    launch: Launch,
}

/// An engine with other settings, and a judge whose bar its good end sets.
struct Other {
    settings: Vec<(String, String)>,
    setting: Setting,
    launch: Launch,
    judge: Judge,
}

impl InProcess {
    /// Resolves both ends and plans the changes between them.
    ///
    /// # Errors
    /// [`TargetError::Arm`] if an end is refused, [`TargetError::Setup`] if the oracle cannot be prepared.
    pub fn new(setup: Setup) -> Result<Self, TargetError> {
        let Setup { engine, tokenizer, good, bad, oracle, haystack: files, seed, single_to_paired, .. } =
            setup;
        let (progress, expose) = (setup.progress, setup.expose);
        let site = Local(engine.slots());
        let resolve = |name: &str, (end, rules): &(String, Vec<Rule>)| {
            site.define(name, rules).map_err(|source| TargetError::Arm { what: format!("`{end}`"), source })
        };
        let good_end = resolve(GOOD, &good)?;
        let bad_end = resolve(BAD, &bad)?;
        let mut planned = planning::plan(&site, (&good.0, &good.1, &good_end), (&bad.0, &bad_end))?;
        site.remove(GOOD);
        site.remove(BAD);
        let haystack = Haystack::read(&tokenizer, &files).map_err(setup_error)?;
        let model = identity::model(engine.model());
        let material = Material { tokenizer: &tokenizer, haystack: &haystack, seed, model: &model };
        let judge = Judge::new(&oracle, &material).map_err(setup_error)?;
        let sizes = engine.config().clone();
        let mut axes = axes::axes(&site, &sizes, &engine.model().config, &good_end);
        let ends = [good_end.digest.as_str(), bad_end.digest.as_str()];
        let identity = identity::target(&model, &sizes, &oracle, (&files, seed), ends);
        let launch = Launch::of(engine, 0, &tokenizer, expose.as_ref())?;
        let single = match single_to_paired {
            true => {
                axes.retain(|axis| axis.name != TOPOLOGY);
                let launch = launch.beside(&at(&sizes, Topology::Single), &tokenizer, expose.as_ref())?;
                Some(Single { atom: planned.add_topology(), launch })
            }
            false => None,
        };
        Ok(Self {
            tokenizer,
            good: good.1,
            bad: bad.1,
            oracle,
            haystack,
            seed,
            model,
            identity,
            axes,
            planned,
            judge,
            progress,
            expose,
            launch,
            single,
            other: None,
            digests: HashMap::new(),
            not_run: Arm::new(),
        })
    }

    fn rules(&self, arm: &Arm) -> Result<Vec<Rule>, TargetError> {
        let what = || self.planned.describe(arm);
        self.planned.rules(&self.good, arm).map_err(|source| TargetError::Arm { what: what(), source })
    }

    /// Where an arm runs.
    fn launch_of(&self, arm: &Arm) -> &Launch {
        match &self.single {
            Some(single) if !arm.contains(&single.atom) => &single.launch,
            _ => &self.launch,
        }
    }

    /// Defines an arm under `name` and returns its digest.
    fn define(&self, name: &str, arm: &Arm) -> Result<String, TargetError> {
        let rules = self.rules(arm)?;
        let what = || self.planned.describe(arm);
        let launch = self.launch_of(arm);
        let resolved = Local(launch.slots()).define(name, &rules);
        let digest = resolved.map_err(|source| TargetError::Arm { what: what(), source })?.digest;
        Ok(match self.single {
            // Equal cells in one pool and in two are two arms.
            Some(_) => format!("{}:{digest}", launch.sizes().topology),
            None => digest,
        })
    }

    /// Notes which cells of the bad end were called.
    fn note_receipts(&mut self, name: &str, arm: &Arm, outcome: &Outcome) {
        // A run that broke off says nothing about the cells behind the fault.
        let whole = !judge::broke_off(outcome);
        if !whole || *arm != self.planned.plan.all() {
            return;
        }
        if let Some(snapshot) = self.launch_of(arm).slots().snapshot(name) {
            self.not_run = self.planned.not_run(&local::calls(&snapshot));
        }
    }

    /// Makes the engine of `settings` the other one, unless it is. Its topology is that of `arm`, unless a setting says it.
    fn other(&mut self, settings: &[(String, String)], arm: &Arm) -> Result<(), TargetError> {
        let mut setting = axes::apply(settings, self.launch.sizes())?;
        if !settings.iter().any(|(name, _)| name == TOPOLOGY) {
            setting.sizes.topology = self.launch_of(arm).sizes().topology;
        }
        if let Some(other) = self.other.as_mut().filter(|other| other.settings == settings) {
            if other.launch.sizes().topology != setting.sizes.topology {
                other.launch = other.launch.beside(&setting.sizes, &self.tokenizer, self.expose.as_ref())?;
            }
            return Ok(());
        }
        // Two at a time hold two pools.
        self.other = None;
        let launch = self.launch.with(&setting.sizes, &self.tokenizer, self.expose.as_ref())?;
        let material = Material {
            tokenizer: &self.tokenizer,
            haystack: &self.haystack,
            seed: self.seed,
            model: &self.model,
        };
        let judge = Judge::new(&self.oracle, &material).map_err(setup_error)?;
        self.other = Some(Other { settings: settings.to_vec(), setting, launch, judge });
        Ok(())
    }
}

impl Target for InProcess {
    fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    fn digest(&mut self, arm: &Arm) -> Result<String, TargetError> {
        if let Some(digest) = self.digests.get(arm) {
            return Ok(digest.clone());
        }
        let digest = self.define(ARM, arm)?;
        self.digests.insert(arm.clone(), digest.clone());
        Ok(digest)
    }

    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError> {
        let rules = self.rules(arm)?;
        let digest = self.define(ARM, arm)?;
        let launch = match &self.single {
            Some(single) if !arm.contains(&single.atom) => &single.launch,
            _ => &self.launch,
        };
        let fresh = launch.fresh(ARM, &rules);
        let subject = launch.subject(ARM, &digest, &self.tokenizer, &fresh);
        let found = match arm.is_empty() {
            true => self.judge.base(&subject, &mut *self.progress),
            false => self.judge.arm(&subject, &mut *self.progress),
        };
        let outcome = launch.stamp(found).map_err(|error| error.of(self.planned.describe(arm)))?;
        self.note_receipts(ARM, arm, &outcome);
        Ok(outcome)
    }

    fn measure_many(&mut self, arms: &[Arm]) -> Vec<Result<Outcome, TargetError>> {
        // The good end sets the bar, so it is not judged beside others; arms of two engines take turns.
        if arms.len() < 2 || self.single.is_some() || !self.judge.is_based() || arms.iter().any(Arm::is_empty)
        {
            return arms.iter().map(|arm| self.measure(arm)).collect();
        }
        let name = |number: usize| format!("{ARM}-{number}");
        let side = launch::Side {
            launch: &self.launch,
            judge: &self.judge,
            tokenizer: &self.tokenizer,
            planned: &self.planned,
            good: &self.good,
        };
        let outcomes: Vec<Result<Outcome, TargetError>> = std::thread::scope(|scope| {
            let running: Vec<_> = arms
                .iter()
                .enumerate()
                .map(|(number, arm)| (number, arm, &side))
                .map(|(number, arm, side)| scope.spawn(move || side.measure(&name(number), arm)))
                .collect();
            let ended = running.into_iter().zip(arms).map(|(thread, arm)| {
                thread.join().unwrap_or_else(|_| {
                    let what = self.planned.describe(arm);
                    Err(TargetError::Oracle { what, message: "the measurement panicked".to_owned() })
                })
            });
            ended.collect()
        });
        for (number, (arm, outcome)) in arms.iter().zip(&outcomes).enumerate() {
            if let Ok(outcome) = outcome {
                self.note_receipts(&name(number), arm, outcome);
            }
            self.launch.slots().remove(&name(number));
        }
        outcomes
    }

    fn not_run(&self) -> Arm {
        self.not_run.clone()
    }

    fn conformance(&mut self, variant: &str) -> Result<Conformance, TargetError> {
        let failed =
            |source| TargetError::Arm { what: format!("variant `{variant}`"), source: Box::new(source) };
        let spec = variant.parse().map_err(|error: hotseam_slots::VariantError| {
            TargetError::Setup(format!("planned variant cannot be read back: {error}"))
        })?;
        let generation = self.launch.slots().registry().generation(&spec).map_err(failed)?;
        let report = conform::check(&generation, CheckLevel::Full).map_err(|e| failed(e.into()))?;
        let failures: Vec<_> = report.failures().collect();
        let detail = match failures.first() {
            None => format!("{} cases", report.cases.len()),
            Some(first) => format!("{} of {} cases fail; {first}", failures.len(), report.cases.len()),
        };
        Ok(Conformance { variant: variant.to_owned(), passed: failures.is_empty(), detail })
    }

    fn oracle(&self) -> String {
        self.judge.describe()
    }

    fn noise(&self) -> Noise {
        self.judge.noise()
    }

    fn relaunch(&mut self) -> Result<u64, TargetError> {
        let sizes = self.launch.sizes().clone();
        self.launch = self.launch.with(&sizes, &self.tokenizer, self.expose.as_ref())?;
        if let Some(single) = &mut self.single {
            let sizes = at(&sizes, Topology::Single);
            single.launch = self.launch.beside(&sizes, &self.tokenizer, self.expose.as_ref())?;
        }
        Ok(self.launch.id())
    }

    fn suspicions(&mut self) -> Result<Vec<Suspicion>, TargetError> {
        // Where hand-offs are audited, a damaged one ends its request, and the audit is the evidence. Calls of several ranks are not
        // looked at.
        let sizes = self.launch.sizes();
        if self.planned.is_same_code() || sizes.pd.audit || sizes.ranks.is_some() {
            return Ok(Vec::new());
        }
        let failed = |error: hotseam_evidence::EvidenceError| TargetError::Oracle {
            what: "the ends side by side".to_owned(),
            message: error.to_string(),
        };
        let engine = self.launch.engine();
        let tokens = evidence::tokens(engine);
        let passage =
            Passage::new(&self.tokenizer, &self.haystack, tokens, evidence::DECODE).map_err(failed)?;
        let site = Local(self.launch.slots());
        for (name, rules) in [(GOOD, &self.good), (BAD, &self.bad)] {
            site.define(name, rules)
                .map_err(|source| TargetError::Arm { what: format!("`{name}`"), source })?;
        }
        let changes = (0..self.planned.plan.changes.len()).map(|change| self.planned.cells(change));
        let found = evidence::suspicions(engine, GOOD, BAD, &passage, &changes.collect::<Vec<_>>());
        site.remove(GOOD);
        site.remove(BAD);
        found.map_err(failed)
    }

    fn handoff(&mut self, arm: &Arm) -> Result<Option<Handoff>, TargetError> {
        if self.launch.sizes().topology == Topology::Single {
            return Ok(None);
        }
        let rules = self.rules(arm)?;
        let mut sizes = self.launch.sizes().clone();
        sizes.pd.audit = true;
        // Pools of its own, for as long as it takes.
        let launch = self.launch.beside(&sizes, &self.tokenizer, None)?;
        let what = || self.planned.describe(arm);
        Local(launch.slots())
            .define(ARM, &rules)
            .map_err(|source| TargetError::Arm { what: what(), source })?;
        let found = evidence::handoff(&launch, ARM, &self.tokenizer, &self.haystack);
        found.map_err(|error| TargetError::Oracle { what: what(), message: error.to_string() })
    }

    fn axes(&self) -> Vec<Axis> {
        self.axes.clone()
    }

    fn measure_axes(&mut self, settings: &[(String, String)], arm: &Arm) -> Result<Outcome, TargetError> {
        let words: Vec<String> = settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let what = format!("{} with {}", self.planned.describe(arm), words.join(", "));
        // An arm is held against the good end under the same settings.
        let known = self.other.as_ref().filter(|other| other.settings == settings);
        let based = known.is_some_and(|other| other.judge.is_based());
        let first = (!based && !arm.is_empty()).then(Arm::new);
        let mut last = None;
        for arm in first.into_iter().chain([arm.clone()]) {
            self.other(settings, &arm)?;
            let Some(Other { setting, launch, judge, .. }) = &mut self.other else {
                return Err(TargetError::Setup("the engine of the axes is gone".to_owned()));
            };
            let refused = |source| TargetError::Arm { what: what.clone(), source };
            let rules = self.planned.rules(&self.good, &arm).map_err(refused)?;
            let rules = axes::with_keys(rules, setting.keys.as_ref())?;
            let digest = Local(launch.slots()).define(ARM, &rules).map_err(refused)?.digest;
            let fresh = launch.fresh(ARM, &rules);
            let subject = launch.subject(ARM, &digest, &self.tokenizer, &fresh);
            let found = match arm.is_empty() {
                true => judge.base(&subject, &mut *self.progress),
                false => judge.arm(&subject, &mut *self.progress),
            };
            last = Some(launch.stamp(found).map_err(|error| error.of(what.clone()))?);
        }
        last.ok_or_else(|| TargetError::Setup("nothing was measured".to_owned()))
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }
}

/// `sizes` at a topology.
fn at(sizes: &EngineConfig, topology: Topology) -> EngineConfig {
    EngineConfig { topology, ..sizes.clone() }
}

fn setup_error(error: hotseam_evidence::EvidenceError) -> TargetError {
    TargetError::Setup(error.to_string())
}
