//! What happens during a search, for progress and logs.

use hotseam_target::{Arm, Outcome};
use serde::Serialize;

/// One run of the oracle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// Number, from 1.
    pub number: usize,
    /// Why it was run, such as `first 4 of 17 suspects`.
    pub why: String,
    /// The changes that were on the bad side, partly switched ones with their layers.
    pub changes: Vec<String>,
    /// Digest of the assignment.
    pub digest: String,
    /// Atoms on the bad side.
    #[serde(skip)]
    pub arm: Arm,
    /// What the oracle said.
    pub outcome: Outcome,
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
        /// Suspects left in the present stage, if it is a search.
        left: Option<usize>,
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
