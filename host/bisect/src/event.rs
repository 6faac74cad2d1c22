//! What happens during a search, for progress and logs.

use hotseam_target::{Arm, Outcome};
use schemars::JsonSchema;
use serde::Serialize;

/// One run of the oracle.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Trial {
    /// Number, from 1.
    pub number: usize,
    /// Why it was run, such as `first 4 of 17 suspects`.
    pub why: String,
    /// The changes that were on the bad side, partly switched ones with their layers.
    pub changes: Vec<String>,
    /// Settings that were changed for this run, name and value; empty for runs of the search itself.
    pub axes: Vec<(String, String)>,
    /// Digest of the assignment.
    pub digest: String,
    /// Atoms on the bad side.
    #[serde(skip)]
    pub arm: Arm,
    /// What the oracle said.
    pub outcome: Outcome,
    /// How the search stands after it.
    pub after: Progress,
}

/// How a search stands after a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Progress {
    /// Suspects left in the present stage, if it is a search.
    pub left: Option<usize>,
    /// Runs that are expected still, confirmation included.
    pub runs_left: Option<f64>,
    /// What is believed about the suspects, if beliefs are kept.
    pub posterior: Option<Posterior>,
}

/// What is believed about the suspects.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Posterior {
    /// Uncertainty in bits: 0 if one suspect is certain.
    pub entropy: f64,
    /// The most likely suspects, most likely first, at most eight.
    pub top: Vec<Belief>,
}

/// The probability of one suspect.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Belief {
    /// The change, or the set of changes.
    pub change: String,
    /// From 0 to 1.
    pub probability: f64,
}

/// Something that happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step of the procedure, in words.
    Note(&'a str),
    /// A run begins.
    Start {
        /// Its number, from 1.
        number: usize,
        /// Why it is run.
        why: &'a str,
        /// The changes on the bad side.
        changes: &'a [String],
        /// Digest of the assignment.
        digest: &'a str,
    },
    /// A run ended.
    End {
        /// The run.
        trial: &'a Trial,
    },
}

/// Takes events as they happen.
pub trait Observer {
    /// Called for each event, in order.
    fn event(&mut self, event: &Event<'_>);
}

/// For callers that want only the report.
impl Observer for () {
    fn event(&mut self, _: &Event<'_>) {}
}

impl<T: Observer + ?Sized> Observer for &mut T {
    fn event(&mut self, event: &Event<'_>) {
        (**self).event(event);
    }
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn event(&mut self, event: &Event<'_>) {
        self.0.event(event);
        self.1.event(event);
    }
}

impl<T: Observer> Observer for Option<T> {
    fn event(&mut self, event: &Event<'_>) {
        if let Some(observer) = self {
            observer.event(event);
        }
    }
}
