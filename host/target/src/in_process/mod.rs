//! The target that owns an engine.
//!
//! An arm is a temporary assignment next to the live one: the good rules, then one rule for each set of cells that the
//! arm's changes touch. The engine keeps prefill states by the digest of the prefill cells, so arms that differ only
//! in decode share one prefill.

mod arms;
mod couple;
mod delta;
mod judge;
mod planner;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use hotseam_config::Oracle;
use hotseam_encoding::Tokenizer;
use hotseam_engine::Engine;
use hotseam_evidence::conform::{self, CheckLevel};
use hotseam_evidence::haystack::Haystack;
use hotseam_slots::{Rule, Slots, SlotsError, Snapshot};

use crate::{Arm, Conformance, Outcome, Plan, Target, TargetError};
use judge::Judge;
use planner::{Planned, plan};

/// Assignments under which the ends are resolved once.
const GOOD: &str = "bisect-good";
const BAD: &str = "bisect-bad";
/// Assignment under which arms run.
const ARM: &str = "bisect-arm";

/// Probes done and all probes of the run in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Finished.
    pub done: usize,
    /// All.
    pub total: usize,
}

/// What an [`InProcess`] target is made of.
pub struct Setup {
    /// A running engine that serves nobody else.
    pub engine: Engine,
    /// Tokenizer of its model.
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

/// A target that owns an engine.
pub struct InProcess {
    engine: Engine,
    tokenizer: Tokenizer,
    good: Vec<Rule>,
    planned: Planned,
    judge: Judge,
    progress: Box<dyn FnMut(Progress)>,
    digests: HashMap<Arm, String>,
    not_run: Arm,
}

impl InProcess {
    /// Resolves both ends and plans the changes between them.
    ///
    /// # Errors
    /// [`TargetError::Arm`] if an end is refused, [`TargetError::Setup`] if the oracle cannot be prepared.
    pub fn new(setup: Setup) -> Result<Self, TargetError> {
        let Setup { engine, tokenizer, good, bad, oracle, haystack, seed, progress } = setup;
        let slots = engine.slots().clone();
        let resolve = |name: &str, (end, rules): &(String, Vec<Rule>)| {
            define(&slots, name, rules.clone())
                .map_err(|source| TargetError::Arm { what: format!("`{end}`"), source: Box::new(source) })
        };
        let good_end = resolve(GOOD, &good)?;
        let bad_end = resolve(BAD, &bad)?;
        let planned = plan(&slots, (&good.0, &good.1, &good_end), (&bad.0, &bad_end))?;
        slots.remove(GOOD);
        slots.remove(BAD);
        let text = Haystack::read(&tokenizer, &haystack).map_err(setup_error)?;
        let judge = Judge::new(&oracle, &tokenizer, &text, seed).map_err(setup_error)?;
        let good = good.1;
        let (digests, not_run) = (HashMap::new(), Arm::new());
        Ok(Self { engine, tokenizer, good, planned, judge, progress, digests, not_run })
    }

    fn slots(&self) -> &Arc<Slots> {
        self.engine.slots()
    }

    /// The snapshot of an arm, with fresh receipts, under the name of arms.
    fn arm(&self, arm: &Arm) -> Result<Arc<Snapshot>, TargetError> {
        let mut rules = self.good.clone();
        rules.extend(arms::rules(&self.planned, arm));
        define(self.slots(), ARM, rules)
            .map_err(|source| TargetError::Arm { what: self.describe(arm), source: Box::new(source) })
    }

    fn describe(&self, arm: &Arm) -> String {
        let changes = self.planned.plan.changes.iter();
        let on: Vec<String> = changes
            .filter(|change| change.atoms.iter().any(|atom| arm.contains(&atom.id)))
            .map(crate::Change::title)
            .collect();
        if on.is_empty() { "the good end".to_owned() } else { format!("the arm [{}]", on.join("; ")) }
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
        let digest = self.arm(arm)?.digest().to_string();
        self.digests.insert(arm.clone(), digest.clone());
        Ok(digest)
    }

    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError> {
        let snapshot = self.arm(arm)?;
        let baseline = arm.is_empty();
        let outcome =
            self.judge.measure(&self.engine, &self.tokenizer, ARM, baseline, &mut *self.progress).map_err(
                |error| TargetError::Oracle { what: self.describe(arm), message: error.to_string() },
            )?;
        // A run that broke off says nothing about the cells behind the fault.
        let whole = !outcome.signature.starts_with(judge::ERROR);
        if whole && *arm == self.planned.plan.all() {
            self.not_run = self.planned.not_run(&snapshot);
        }
        Ok(outcome)
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
        let generation = self.slots().registry().generation(&spec).map_err(failed)?;
        let report = conform::check(&generation, CheckLevel::Full);
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
}

/// Defines an assignment anew, with receipts at zero and whatever layouts its rules have.
fn define(slots: &Slots, name: &str, rules: Vec<Rule>) -> Result<Arc<Snapshot>, SlotsError> {
    slots.remove(name);
    slots.define(name, rules)
}

fn setup_error(error: hotseam_evidence::EvidenceError) -> TargetError {
    TargetError::Setup(error.to_string())
}
