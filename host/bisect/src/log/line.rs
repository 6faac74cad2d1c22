//! The lines of a log.

use std::collections::BTreeMap;

use hotseam_target::{Axis, Conformance, Handoff, Noise, Outcome, Plan, Suspicion, Target, TargetError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Format of the log; files of another one are refused.
pub const FORMAT: u32 = 1;

/// What a log begins with: everything that the search asks of its target before the first run, and how to make that
/// target again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of the program.
    pub version: String,
    /// How the command was called, for the program itself to make the target again.
    pub invocation: Value,
    /// Bounds of the search.
    pub options: Value,
    /// What answers depend on, by name: configuration, oracle, model, plugins. A log is only resumed if all agree.
    pub facts: BTreeMap<String, String>,
    /// Identity that the target gives itself.
    pub identity: String,
    /// The changes.
    pub plan: Plan,
    /// The oracle and its bar.
    pub oracle: String,
    /// Whether outcomes are draws.
    pub noise: Noise,
    /// Settings that may be tried.
    pub axes: Vec<Axis>,
}

impl Header {
    /// The header of a search on `target`.
    pub fn of(
        target: &dyn Target,
        version: &str,
        facts: BTreeMap<String, String>,
        invocation: Value,
        options: Value,
    ) -> Self {
        Self {
            format: FORMAT,
            version: version.to_owned(),
            invocation,
            options,
            facts,
            identity: target.identity(),
            plan: target.plan().clone(),
            oracle: target.oracle(),
            noise: target.noise(),
            axes: target.axes(),
        }
    }

    /// What differs between the log and a target of today, in words; empty if it may be resumed.
    pub fn differences(&self, now: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let names: std::collections::BTreeSet<&String> = self.facts.keys().chain(now.facts.keys()).collect();
        for name in names {
            let (was, is) = (self.facts.get(name), now.facts.get(name));
            if was != is {
                let word = |fact: Option<&String>| fact.map_or("not there".to_owned(), |f| format!("`{f}`"));
                found.push(format!("{name}: was {}, is {}", word(was), word(is)));
            }
        }
        if self.noise != now.noise {
            found.push(format!("noise: was {:?}, is {:?}", self.noise, now.noise));
        }
        if self.plan != now.plan {
            found.push(format!(
                "changes: were {}, are {}",
                self.plan.changes.len(),
                if self.plan.changes.len() == now.plan.changes.len() {
                    format!("{} others", now.plan.changes.len())
                } else {
                    now.plan.changes.len().to_string()
                }
            ));
        }
        // A hash that says little to people; it is the last word if all that has a name agrees.
        if found.is_empty() && self.identity != now.identity {
            found.push(format!("target: was `{}`, is `{}`", self.identity, now.identity));
        }
        found
    }
}

/// A run that begins. Written, and synced to disk, before anything is run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// Number of the trial.
    pub number: usize,
    /// Why it is run.
    pub why: String,
    /// The changes on the bad side, in words.
    pub changes: Vec<String>,
    /// Atoms on the bad side.
    pub arm: Vec<usize>,
    /// Settings that are changed.
    #[serde(default)]
    pub axes: Vec<(String, String)>,
    /// Identity of what is asked; see [`key`](super::key).
    pub key: String,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The oracle's word.
    Outcome(Outcome),
    /// No verdict came about.
    Failed(Failed),
}

/// Why no verdict came about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Failed {
    /// Set-up.
    Setup {
        /// What was said.
        message: String,
    },
    /// An assignment was refused.
    Arm {
        /// Which.
        what: String,
        /// Why.
        message: String,
    },
    /// The oracle could not be asked.
    Oracle {
        /// On which arm.
        what: String,
        /// Why.
        message: String,
    },
    /// The run did not end in its time.
    Hang {
        /// Which arm.
        what: String,
        /// The time it was given.
        seconds: f64,
    },
}

impl Failed {
    /// True if the same would happen again, so that there is no point in asking again.
    pub fn stands(&self) -> bool {
        matches!(self, Self::Arm { .. } | Self::Hang { .. })
    }
}

impl From<&TargetError> for Failed {
    fn from(error: &TargetError) -> Self {
        match error {
            TargetError::Setup(message) => Self::Setup { message: message.clone() },
            TargetError::Arm { what, source } => {
                Self::Arm { what: what.clone(), message: source.to_string() }
            }
            TargetError::Oracle { what, message } => {
                Self::Oracle { what: what.clone(), message: message.clone() }
            }
            TargetError::Hang { what, seconds } => Self::Hang { what: what.clone(), seconds: *seconds },
        }
    }
}

impl From<Failed> for TargetError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Setup { message } => Self::Setup(message),
            Failed::Arm { what, message } => Self::Arm { what, source: message.into() },
            Failed::Oracle { what, message } => Self::Oracle { what, message },
            Failed::Hang { what, seconds } => Self::Hang { what, seconds },
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    /// The first line.
    Header(Box<Header>),
    /// The search goes on after the program ended; bounds may be others from here on.
    Resume {
        /// Bounds of the search.
        options: Value,
    },
    /// A step of the procedure, in words.
    Note {
        /// The words.
        text: String,
    },
    /// Identity of what an arm runs.
    Digest {
        /// Atoms on the bad side.
        arm: Vec<usize>,
        /// The identity, or why there is none.
        digest: Result<String, Failed>,
    },
    /// A new launch.
    Launch {
        /// Its id.
        id: u64,
    },
    /// A run begins.
    Start(Begun),
    /// A run ended.
    End {
        /// Number of the trial.
        number: usize,
        /// What came of it.
        answer: Answer,
        /// Atoms that were not called, if the bad end ran.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_run: Option<Vec<usize>>,
    },
    /// A variant was checked against the truth.
    Conformance {
        /// The variant.
        variant: String,
        /// The result, or why there is none.
        result: Result<Conformance, Failed>,
    },
    /// Cheap evidence was taken.
    Suspicions {
        /// The evidence, or why there is none.
        result: Result<Vec<Suspicion>, Failed>,
    },
    /// Hand-offs were audited.
    Handoff {
        /// Atoms on the bad side.
        arm: Vec<usize>,
        /// What they brought, or why nothing is known.
        result: Result<Option<Handoff>, Failed>,
    },
    /// The good end was run again, so that the oracle of a resumed search has its bar.
    Bar {
        /// What came of it.
        answer: Answer,
    },
    /// The answer of a run is dropped: it will be asked again.
    Undo {
        /// Number of the trial.
        number: usize,
    },
    /// The search ended.
    Done {
        /// Its verdict.
        verdict: String,
    },
}
