//! What a report holds.

use hotseam_target::{Change, Conformance, Counts, Evidence, Handoff, Noise, Outcome};
use schemars::JsonSchema;
use serde::Serialize;

use super::Word;
use crate::event::Trial;

/// The result of a bisection.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// What came out.
    pub verdict: Word,
    /// Exit code of the command.
    pub exit_code: u8,
    /// Changes that break the model.
    pub culprits: Vec<Culprit>,
    /// Changes that are cleared, and by what.
    pub exonerated: Vec<Exonerated>,
    /// Changes that are neither.
    pub open: Vec<Open>,
    /// Settings that were tried in place of a patch.
    pub what_if: Vec<WhatIf>,
    /// Oracle runs made.
    pub runs: usize,
    /// Runs expected at the start, for one culprit.
    pub expected_runs: usize,
    /// Runs allowed.
    pub budget_runs: usize,
    /// Time that the runs took, in seconds.
    pub seconds: f64,
    /// Launches of the engine or server that the runs were made in.
    pub launches: usize,
    /// The oracle and its bar.
    pub oracle: String,
    /// Whether a run is a verdict or a number of draws.
    pub noise: Noise,
    /// Confidence that a claim needs, from 0 to 1.
    pub confidence: f64,
    /// Failure rates; absent if the oracle is exact, or nothing was measured.
    pub rates: Option<Rates>,
    /// Both ends.
    pub ends: Ends,
    /// Every change with what is known about it, by step of evidence.
    pub suspects: Vec<Suspect>,
    /// What hand-offs of the bad end brought, by component; absent if none was audited.
    pub handoff: Option<Handoff>,
    /// Every variant that a change brings in, checked against the truth.
    pub conformance: Vec<Conformance>,
    /// Remarks of the search.
    pub notes: Vec<String>,
    /// Every run.
    pub trials: Vec<Trial>,
}

impl Default for Report {
    /// A report of nothing: no runs, inconclusive.
    fn default() -> Self {
        let end = End { assignment: String::new(), digest: None, outcome: None };
        Self {
            verdict: Word::Inconclusive,
            exit_code: Word::Inconclusive.exit_code(),
            culprits: Vec::new(),
            exonerated: Vec::new(),
            open: Vec::new(),
            what_if: Vec::new(),
            runs: 0,
            expected_runs: 0,
            budget_runs: 0,
            seconds: 0.0,
            launches: 0,
            oracle: String::new(),
            noise: Noise::Exact,
            confidence: 0.95,
            rates: None,
            ends: Ends { good: end.clone(), bad: end },
            suspects: Vec::new(),
            handoff: None,
            conformance: Vec::new(),
            notes: Vec::new(),
            trials: Vec::new(),
        }
    }
}

/// The two ends.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Ends {
    /// The end that works.
    pub good: End,
    /// The end that fails.
    pub bad: End,
}

/// One end.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct End {
    /// Name of the assignment.
    pub assignment: String,
    /// Digest of its cells; absent if it was not run.
    pub digest: Option<String>,
    /// What the oracle said the first time; absent if it was not run.
    pub outcome: Option<Outcome>,
}

/// Failure rates of the two ends.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Rates {
    /// Without the culprit.
    pub good: Rate,
    /// With it.
    pub bad: Rate,
    /// Fisher's exact p that both are one rate.
    pub fisher: f64,
}

/// A failure rate.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Rate {
    /// Draws that failed, of those made.
    pub counts: Counts,
    /// Mean.
    pub mean: f64,
    /// Lower bound of the Jeffreys interval at 95 %.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// A change that breaks the model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Culprit {
    /// Seam.
    pub seam: String,
    /// Phases, joined by `+`, or `handoff`.
    pub phase: String,
    /// Classes of layers, joined by `+`.
    pub class: String,
    /// Layers; empty outside the layers.
    pub layers: Vec<usize>,
    /// Tensor-parallel ranks; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// The delta, such as `early_exit: false -> true`.
    pub change: String,
    /// Variant with options that runs when this change alone is switched.
    pub variant: String,
    /// The smallest selector that switches it, such as `indexer@decode:layers=2-4`.
    pub selector: String,
    /// Run in which the good end with it failed.
    pub sufficient: usize,
    /// Run in which the bad end without it passed.
    pub necessary: Option<usize>,
    /// Run in which it did no harm in the bad end once the other culprits were out.
    pub masked: Option<usize>,
    /// Failures of the good end with it, over all runs.
    pub with: Counts,
    /// Failures of the bad end without it, over all runs.
    pub without: Counts,
    /// Probability that it is (part of) a culprit, if beliefs are kept.
    pub probability: Option<f64>,
    /// Changes it fails only together with.
    pub interacts_with: Vec<String>,
    /// Which phase writes the state that goes wrong, and which reads it.
    pub phases: Option<WriterReader>,
    /// In which topology it fails; absent if that was not asked.
    pub topology: Option<ByTopology>,
    /// What hand-offs with it brought, by component; absent if none was audited.
    pub handoff: Option<Handoff>,
    /// Failures against the number of its layers that are switched.
    pub dose: Vec<Dose>,
    /// Sentences for people.
    pub evidence: Vec<String>,
}

/// In which topology a culprit fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ByTopology {
    /// Where.
    pub fails: Fails,
    /// Run in which it failed at topology `paired`.
    pub paired: usize,
    /// Run in which it was asked at topology `single`.
    pub single: usize,
}

/// Topologies in which a culprit fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fails {
    /// Only where prefill hands its KV over to decode.
    OnlyPaired,
    /// In one pool for both phases too.
    Both,
}

/// Blame split into who writes the state and who reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct WriterReader {
    /// Phase that writes.
    pub writer: String,
    /// Phase that reads.
    pub reader: String,
}

/// One point of a dose curve.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Dose {
    /// Layers that were switched.
    pub layers: Vec<usize>,
    /// Failures of the runs with exactly these.
    pub counts: Counts,
    /// Mean of what the oracle measured, such as recall.
    pub metric: f64,
    /// How many of the runs were bad.
    pub bad: usize,
    /// The runs.
    pub trials: Vec<usize>,
}

/// Kind of evidence that clears a change, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// Both ends run the same code (E0).
    SameCode,
    /// Its cells were not called in the failing run (E1).
    DidNotRun,
    /// A run with it passed (E5).
    Passes,
    /// Improbable, given the failures and passes of all runs (E5).
    Improbable,
}

impl Grade {
    /// The step of the evidence ladder that it stands on.
    pub fn step(self) -> Evidence {
        match self {
            Self::SameCode => Evidence::E0,
            Self::DidNotRun => Evidence::E1,
            Self::Passes | Self::Improbable => Evidence::E5,
        }
    }
}

/// Where a change applies and what it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Place {
    /// Seam.
    pub seam: String,
    /// Phase; empty for a whole seam.
    pub phase: String,
    /// Class of layers; empty for a whole seam.
    pub class: String,
    /// The delta; empty for a whole seam.
    pub delta: String,
}

impl Place {
    /// The place of `change`.
    pub fn of(change: &Change) -> Self {
        Self {
            seam: change.seam.clone(),
            phase: change.phase.to_string(),
            class: change.class.to_string(),
            delta: change.what(),
        }
    }
}

/// A change that is cleared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Exonerated {
    /// Place and delta, or the seam.
    pub change: String,
    /// Where it applies.
    #[serde(flatten)]
    pub place: Place,
    /// Kind of evidence.
    pub grade: Grade,
    /// The run that clears it, if one does.
    pub trial: Option<usize>,
    /// The evidence in words.
    pub reason: String,
}

/// A change that is neither blamed nor cleared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Open {
    /// Place and delta.
    pub change: String,
    /// Where it applies.
    #[serde(flatten)]
    pub place: Place,
    /// Why it is open.
    pub reason: String,
}

/// A run with settings changed and no patch.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WhatIf {
    /// Settings that were changed: name, value of the configuration, value tried.
    pub settings: Vec<Setting>,
    /// The run.
    pub trial: usize,
    /// What the oracle said.
    pub outcome: Outcome,
    /// True if it is the answer: the smallest change that heals.
    pub heals: bool,
}

/// One changed setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Setting {
    /// Name, such as `index_topk`.
    pub name: String,
    /// Value of the configuration.
    pub from: String,
    /// Value tried.
    pub to: String,
}

/// A change with what is known about it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Suspect {
    /// Place and delta.
    pub change: String,
    /// Where it applies.
    #[serde(flatten)]
    pub place: Place,
    /// Layers it covers; empty outside the layers.
    pub layers: Vec<usize>,
    /// Probability before the search, from cheap evidence.
    pub prior: f64,
    /// Probability after the search, if beliefs are kept.
    pub posterior: Option<f64>,
    /// How it stands.
    pub standing: Standing,
    /// Findings, cheapest first.
    pub findings: Vec<Finding>,
}

/// How a suspect stands in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Blamed.
    Guilty,
    /// Cleared.
    Cleared,
    /// Neither.
    Open,
}

/// One piece of evidence about a suspect.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Finding {
    /// Step of the evidence ladder.
    pub step: Evidence,
    /// Which way it points.
    pub points: Points,
    /// The evidence in words.
    pub text: String,
}

/// Which way evidence points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Points {
    /// It clears.
    Clears,
    /// It says little.
    Neutral,
    /// It accuses.
    Accuses,
    /// It convicts.
    Convicts,
}
