//! Runs of the oracle: counted, bounded, never repeated for equal code.

use std::collections::HashMap;

use hotseam_target::{Arm, Plan, Target, TargetError, Verdict};

use crate::event::{Event, Observer, Trial};
use crate::report::layers;

/// Why a search ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// No run is left.
    Budget,
    /// The target gave no verdict.
    Target(TargetError),
}

/// A verdict and the trial it stands in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tested {
    pub(crate) bad: bool,
    /// Number of the trial, from 1.
    pub(crate) trial: usize,
}

/// The target with the record of what was asked.
pub(crate) struct Hunt<'a> {
    pub(crate) target: &'a mut dyn Target,
    pub(crate) plan: Plan,
    pub(crate) trials: Vec<Trial>,
    observer: &'a mut dyn Observer,
    budget: usize,
    by_digest: HashMap<String, usize>,
}

impl<'a> Hunt<'a> {
    pub(crate) fn new(target: &'a mut dyn Target, observer: &'a mut dyn Observer, budget: usize) -> Self {
        let plan = target.plan().clone();
        Self { target, plan, trials: Vec::new(), observer, budget, by_digest: HashMap::new() }
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.observer.event(&Event::Note(text));
    }

    /// Judges `arm`, by an earlier trial if one ran the same code. `left` is the number of suspects that a good and a
    /// bad verdict leave.
    pub(crate) fn test(&mut self, arm: &Arm, why: &str, left: Option<[usize; 2]>) -> Result<Tested, Stop> {
        let digest = self.target.digest(arm).map_err(Stop::Target)?;
        if let Some(&number) = self.by_digest.get(&digest) {
            return Ok(Tested { bad: self.bad(number), trial: number });
        }
        if self.trials.len() >= self.budget {
            return Err(Stop::Budget);
        }
        let number = self.trials.len() + 1;
        let changes = describe(&self.plan, arm);
        self.observer.event(&Event::Start { number, why, changes: &changes, digest: &digest });
        let outcome = self.target.measure(arm).map_err(Stop::Target)?;
        let bad = outcome.verdict == Verdict::Bad;
        let trial =
            Trial { number, why: why.to_owned(), changes, digest: digest.clone(), arm: arm.clone(), outcome };
        self.observer.event(&Event::End { trial: &trial, left: left.map(|left| left[usize::from(bad)]) });
        self.trials.push(trial);
        self.by_digest.insert(digest, number);
        Ok(Tested { bad, trial: number })
    }

    fn bad(&self, number: usize) -> bool {
        self.trials[number - 1].outcome.verdict == Verdict::Bad
    }
}

/// The changes of `arm` in words; partly switched ones with their layers.
fn describe(plan: &Plan, arm: &Arm) -> Vec<String> {
    let mut lines = Vec::new();
    for change in &plan.changes {
        let on: Vec<usize> =
            change.atoms.iter().filter(|atom| arm.contains(&atom.id)).filter_map(|atom| atom.layer).collect();
        let count = change.atoms.iter().filter(|atom| arm.contains(&atom.id)).count();
        if count == change.atoms.len() {
            lines.push(change.title());
        } else if count > 0 {
            lines.push(format!("{} {}: {}", change.place(), layers(&on), change.delta));
        }
    }
    lines
}
