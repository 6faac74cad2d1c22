//! Who is cleared by which evidence, and who is not.

use hotseam_target::{Arm, Change};

use super::Knowledge;
use super::blame::guilty;
use super::hunt::{Answer, Hunt};
use crate::report::{Exonerated, Grade, Open, Place};

/// Belief below which a change is cleared.
const IMPROBABLE: f64 = 0.01;

/// The changes that are cleared, and those that are neither blamed nor cleared.
pub(super) fn clear(hunt: &Hunt<'_>, known: &Knowledge) -> (Vec<Exonerated>, Vec<Open>) {
    let mut exonerated: Vec<Exonerated> = hunt.plan.unchanged.iter().map(|seam| unchanged(seam)).collect();
    let mut open = Vec::new();
    for (index, change) in hunt.plan.changes.iter().enumerate() {
        let atoms: Arm = change.atoms.iter().map(|atom| atom.id).collect();
        let blamed = known.found.iter().any(|found| !found.removed.is_disjoint(&atoms));
        if blamed && known.found.iter().any(|found| guilty(&hunt.plan, found, change)) {
            continue;
        }
        let flag = flag(known, change);
        let cleared = |grade, trial, reason| Exonerated {
            change: change.title(),
            place: Place::of(change),
            grade,
            trial,
            reason,
        };
        if let Some((trial, set)) = &known.passed_with {
            let reason = format!("passes with it once {set} (run {trial}){flag}");
            exonerated.push(cleared(Grade::Passes, Some(*trial), reason));
            continue;
        }
        let alive: Arm = atoms.difference(&known.not_run).copied().collect();
        if alive.is_empty() {
            let reason = "did not run in the failing run (receipts)".to_owned();
            exonerated.push(cleared(Grade::DidNotRun, None, reason));
            continue;
        }
        let passing = hunt.trials.iter().filter(|trial| hunt.answer_of(trial) == Some(Answer::Good));
        let witness = passing.filter(|trial| alive.is_subset(&trial.arm)).max_by_key(|trial| trial.arm.len());
        let belief = hunt.beliefs.get(index).copied().flatten();
        match (witness, belief) {
            // What fails only together passes apart.
            (Some(trial), _) if known.interacting => {
                let reason = format!(
                    "passes with it (run {}), but may be part of a set that fails{flag}",
                    trial.number
                );
                open.push(Open { change: change.title(), place: Place::of(change), reason });
            }
            (Some(trial), _) => {
                let healed = known.healed.and_then(|number| hunt.trials.get(number - 1));
                let reason = if healed.is_some_and(|healed| healed.digest == trial.digest) {
                    format!("the bad end without the culprit passes with it (run {}){flag}", trial.number)
                } else {
                    format!("passes with it (run {}: {}){flag}", trial.number, trial.why)
                };
                exonerated.push(cleared(Grade::Passes, Some(trial.number), reason));
            }
            (None, Some(belief)) if belief < IMPROBABLE && !blamed => {
                let reason = format!("improbable after all runs: {:.1} %{flag}", 100.0 * belief);
                exonerated.push(cleared(Grade::Improbable, None, reason));
            }
            (None, _) => {
                let why = if blamed { "taken out together with a culprit" } else { "not tested apart" };
                let reason = format!("{why}{flag}");
                open.push(Open { change: change.title(), place: Place::of(change), reason });
            }
        }
    }
    (exonerated, open)
}

fn unchanged(seam: &str) -> Exonerated {
    Exonerated {
        change: seam.to_owned(),
        place: Place { seam: seam.to_owned(), ..Place::default() },
        grade: Grade::SameCode,
        trial: None,
        reason: "same code and options at both ends".to_owned(),
    }
}

/// A remark on variants of a change that fail conformance.
fn flag(known: &Knowledge, change: &Change) -> String {
    let failing: Vec<&str> = known
        .conformance
        .iter()
        .filter(|c| change.variants.contains(&c.variant) && !c.passed)
        .map(|c| c.variant.as_str())
        .collect();
    if failing.is_empty() {
        String::new()
    } else {
        format!("; but {} fails conformance", failing.join(" and "))
    }
}
