//! What a search found.

mod markdown;
mod text;
mod tree;

use hotseam_target::{Conformance, Outcome};
use serde::{Serialize, Serializer};

use crate::event::Trial;

pub use markdown::markdown;
pub use text::{Style, text, trial_line};

/// The verdict of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Culprits were found and confirmed.
    Found,
    /// Both ends run the same code.
    SameCode,
    /// Both ends pass the oracle.
    OracleAgrees,
    /// The good end fails.
    GoodFails,
    /// A failing set was found, or none, and the question stays open.
    Inconclusive,
    /// The oracle could not be asked.
    OracleBroken,
    /// No run was left.
    BudgetSpent,
    /// The culprit fails in another way than the bad end.
    SecondSignature,
}

impl Word {
    /// The verdict in words; the same in every format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Found => "culprit found",
            Self::SameCode => "ends agree: same code",
            Self::OracleAgrees => "ends agree by this oracle",
            Self::GoodFails => "good end fails",
            Self::Inconclusive => "inconclusive",
            Self::OracleBroken => "oracle broken",
            Self::BudgetSpent => "budget spent",
            Self::SecondSignature => "second signature",
        }
    }

    /// Exit code of the command: 0 found, 1 nothing to find, 3 inconclusive, 4 the ends do not reproduce, 5 oracle
    /// broken, 6 budget spent, 10 a second signature. (2 is wrong usage.)
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Found => 0,
            Self::SameCode | Self::OracleAgrees => 1,
            Self::Inconclusive => 3,
            Self::GoodFails => 4,
            Self::OracleBroken => 5,
            Self::BudgetSpent => 6,
            Self::SecondSignature => 10,
        }
    }
}

impl Serialize for Word {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The result of a bisection.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// Oracle runs made.
    pub runs: usize,
    /// Runs expected at the start, for one culprit.
    pub expected_runs: usize,
    /// Runs allowed.
    pub budget_runs: usize,
    /// The oracle and its bar.
    pub oracle: String,
    /// Both ends.
    pub ends: Ends,
    /// Every variant that a change brings in, checked against the truth.
    pub conformance: Vec<Conformance>,
    /// Remarks of the search.
    pub notes: Vec<String>,
    /// Every run.
    pub trials: Vec<Trial>,
}

/// The two ends.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ends {
    /// The end that works.
    pub good: End,
    /// The end that fails.
    pub bad: End,
}

/// One end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct End {
    /// Name of the assignment.
    pub assignment: String,
    /// Digest of its cells; absent if it was not run.
    pub digest: Option<String>,
    /// What the oracle said; absent if it was not run.
    pub outcome: Option<Outcome>,
}

/// A change that breaks the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Culprit {
    /// Seam.
    pub seam: String,
    /// Phases, joined by `+`, or `handoff`.
    pub phase: String,
    /// Classes of layers, joined by `+`.
    pub class: String,
    /// Layers; empty outside the layers.
    pub layers: Vec<usize>,
    /// The delta, such as `early_exit: false -> true`.
    pub change: String,
    /// Variant with options that runs when this change alone is switched.
    pub variant: String,
    /// Run in which the good end with it failed.
    pub sufficient: usize,
    /// Run in which the bad end without it passed.
    pub necessary: Option<usize>,
    /// Changes it fails only together with.
    pub interacts_with: Vec<String>,
    /// Sentences for people.
    pub evidence: Vec<String>,
}

/// Kind of evidence that clears a change, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// Both ends run the same code.
    SameCode,
    /// Its cells were not called in the failing run.
    DidNotRun,
    /// A run with it passed.
    Passes,
}

/// Where a change applies and what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

/// A change that is cleared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Open {
    /// Place and delta.
    pub change: String,
    /// Where it applies.
    #[serde(flatten)]
    pub place: Place,
    /// Why it is open.
    pub reason: String,
}

/// Rising numbers as ranges: `2-4,6`.
pub fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let text = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

/// `layer 2` or `layers 2-4,6`; empty for no layers.
pub(crate) fn layers(numbers: &[usize]) -> String {
    match numbers {
        [] => String::new(),
        [only] => format!("layer {only}"),
        more => format!("layers {}", ranges(more)),
    }
}

#[cfg(test)]
mod tests {
    use super::{layers, ranges};

    #[test]
    fn layers_are_counted() {
        assert_eq!([layers(&[]), layers(&[3]), layers(&[2, 3])], ["", "layer 3", "layers 2-3"]);
    }

    #[test]
    fn ranges_join_neighbours() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[2, 4, 6]), "2,4,6");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
