//! From what the search learnt to the report.

use hotseam_target::{Arm, Change, Conformance, Plan, Verdict};

use super::hunt::{Hunt, Stop};
use super::layers::{Narrow, Narrowed};
use super::order::Suspect;
use super::{Knowledge, Options, expected_runs};
use crate::report::{Culprit, End, Ends, Exonerated, Grade, Open, Place, Report, Word, layers};

/// A set of changes that fails on its own.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Indices into the plan; several only for an interaction.
    pub(crate) changes: Vec<usize>,
    /// What was shown to fail alone.
    pub(crate) atoms: Arm,
    /// What was taken out of the failing end afterwards.
    pub(crate) removed: Arm,
    kind: Narrow,
    /// Failing trial of the good end with `atoms`.
    sufficient: usize,
    /// Passing trial of the failing end without `removed`.
    necessary: Option<usize>,
    /// Failing trial of the bad end without `removed`: there is another culprit.
    pub(crate) still_fails: Option<usize>,
    /// Passing trial of the bad end without the other culprits.
    pub(crate) masked: Option<usize>,
}

impl Found {
    pub(crate) fn single(suspect: &Suspect, narrow: Narrowed) -> Self {
        Self {
            changes: vec![suspect.change],
            removed: narrow.atoms.clone(),
            atoms: narrow.atoms,
            kind: narrow.kind,
            sufficient: narrow.trial,
            necessary: None,
            still_fails: None,
            masked: None,
        }
    }

    /// A patch that fails as a whole though the change of `suspect`, a part of it, does not.
    pub(crate) fn spread(suspect: &Suspect, atoms: Arm, trial: usize) -> Self {
        Self::single(suspect, Narrowed { atoms, kind: Narrow::Spread, trial })
    }

    pub(crate) fn set(suspects: &[&Suspect], trial: usize) -> Self {
        let atoms: Arm = suspects.iter().flat_map(|suspect| suspect.atoms.iter().copied()).collect();
        Self {
            changes: suspects.iter().map(|suspect| suspect.change).collect(),
            removed: atoms.clone(),
            atoms,
            kind: Narrow::Only,
            sufficient: trial,
            necessary: None,
            still_fails: None,
            masked: None,
        }
    }

    /// The failing end passes without `atoms`.
    pub(crate) fn confirm(&mut self, trial: usize, atoms: Arm) {
        self.necessary = Some(trial);
        self.removed = atoms;
    }
}

/// The report of a search, however it ended.
pub(crate) fn report(
    hunt: Hunt<'_>,
    known: Knowledge,
    ended: Result<Word, Stop>,
    oracle: String,
    options: &Options,
) -> Report {
    let plan = hunt.plan;
    let trials = hunt.trials;
    let mut notes = plan.notes.clone();
    notes.extend(known.notes.iter().cloned());
    let mut verdict = match ended {
        Ok(word) => word,
        Err(Stop::Budget) => Word::BudgetSpent,
        Err(Stop::Target(error)) => {
            notes.push(describe_error(&error));
            Word::OracleBroken
        }
    };
    let bad_signature = known.bad.map(|number| trials[number - 1].outcome.signature.clone());
    for trial in trials.iter().filter(|trial| trial.outcome.verdict == Verdict::Bad) {
        if bad_signature.as_ref().is_some_and(|signature| *signature != trial.outcome.signature) {
            notes.push(format!(
                "run {} failed in another way ({}: {}): a second fault",
                trial.number, trial.outcome.signature, trial.outcome.summary
            ));
        }
    }
    let culprits: Vec<Culprit> =
        known.found.iter().flat_map(|found| entries(&plan, found, &known.conformance)).collect();
    let other_way = |culprit: &&Culprit| {
        Some(&trials[culprit.sufficient - 1].outcome.signature) != bad_signature.as_ref()
    };
    if verdict == Word::Found && culprits.iter().any(|culprit| other_way(&culprit)) {
        verdict = Word::SecondSignature;
    }
    let (exonerated, open) = clear(&plan, &known, &trials);
    let end = |name: &str, number: Option<usize>| {
        let trial = number.map(|number| &trials[number - 1]);
        End {
            assignment: name.to_owned(),
            digest: trial.map(|trial| trial.digest.clone()),
            outcome: trial.map(|trial| trial.outcome.clone()),
        }
    };
    Report {
        verdict,
        exit_code: verdict.exit_code(),
        culprits,
        exonerated,
        open,
        runs: trials.len(),
        expected_runs: expected_runs(&plan),
        budget_runs: options.budget_runs,
        oracle,
        ends: Ends { good: end(&plan.good, known.good), bad: end(&plan.bad, known.bad) },
        conformance: known.conformance,
        notes,
        trials,
    }
}

/// One entry a seam member of `found`.
fn entries(plan: &Plan, found: &Found, conformance: &[Conformance]) -> Vec<Culprit> {
    found
        .changes
        .iter()
        .map(|&index| {
            let change = &plan.changes[index];
            // An interaction removes all its members; each entry speaks of its own change.
            let blamed: Vec<&Change> = match found.changes[..] {
                [_] => plan
                    .changes
                    .iter()
                    .filter(|c| c.same_patch(change) && c.atoms.iter().any(|a| found.removed.contains(&a.id)))
                    .collect(),
                _ => vec![change],
            };
            let mut layers: Vec<usize> = blamed
                .iter()
                .flat_map(|c| &c.atoms)
                .filter(|atom| found.removed.contains(&atom.id))
                .filter_map(|atom| atom.layer)
                .collect();
            layers.sort_unstable();
            layers.dedup();
            let mut evidence =
                vec![format!("sufficient: the good end with it fails (run {})", found.sufficient)];
            match (found.necessary, found.still_fails) {
                (Some(trial), _) => {
                    evidence.push(format!("necessary: the bad end without it passes (run {trial})"))
                }
                (None, Some(trial)) => {
                    evidence.push(format!("not alone: the bad end fails without it too (run {trial})"));
                }
                (None, None) => evidence.push("necessary: not tested".to_owned()),
            }
            if let Some(trial) = found.masked {
                evidence.push(format!(
                    "masked: in the bad end, without the other culprits, it does no harm (run {trial})"
                ));
            }
            if let Some(note) = narrowing(plan, change, found) {
                evidence.push(note);
            }
            let failed: Vec<&Conformance> =
                conformance.iter().filter(|c| change.variants.contains(&c.variant) && !c.passed).collect();
            evidence
                .extend(failed.iter().map(|c| format!("conformance of {} fails: {}", c.variant, c.detail)));
            if failed.is_empty() {
                evidence.push("its variant passes conformance: suspect the wiring around it".to_owned());
            }
            Culprit {
                seam: change.seam.clone(),
                phase: joined(blamed.iter().map(|c| c.phase.to_string())),
                class: joined(blamed.iter().map(|c| c.class.to_string())),
                layers,
                change: change.delta.to_string(),
                variant: change.variants.join(", "),
                sufficient: found.sufficient,
                necessary: found.necessary,
                interacts_with: found
                    .changes
                    .iter()
                    .filter(|other| **other != index)
                    .map(|other| plan.changes[*other].title())
                    .collect(),
                evidence,
            }
        })
        .collect()
}

/// What the layers say, in words.
fn narrowing(plan: &Plan, change: &Change, found: &Found) -> Option<String> {
    let all = layers(&change.layers());
    let own: Vec<usize> =
        plan.atoms().filter(|atom| found.atoms.contains(&atom.id)).filter_map(|atom| atom.layer).collect();
    let own = layers(&own);
    if found.removed != found.atoms && found.changes.len() == 1 {
        let what = match found.kind {
            Narrow::Spread => "a part of the patch".to_owned(),
            _ => format!("{} {own}", change.place()).trim_end().to_owned(),
        };
        return Some(format!("{what} is enough to fail, but taking only that out does not heal"));
    }
    match &found.kind {
        Narrow::Only => None,
        Narrow::Single => Some(format!("{own} of {all} fails alone")),
        Narrow::Any => Some(format!("any layer suffices: first and last of {all} each fail alone")),
        Narrow::All => Some(format!("all of {all} are needed to fail")),
        Narrow::Band => Some(format!("{own} of {all} are needed together")),
        Narrow::Spread => Some("adds up: no class or phase of the patch fails alone".to_owned()),
        Narrow::Several { first, last } => {
            Some(format!("enough by itself: {}, or {} together", layers(first), layers(last)))
        }
    }
}

/// Distinct words in order, joined by `+`; parts that hold several count as several.
fn joined(words: impl Iterator<Item = String>) -> String {
    let mut parts: Vec<String> =
        words.flat_map(|w| w.split('+').map(str::to_owned).collect::<Vec<_>>()).collect();
    let mut seen = Vec::new();
    parts.retain(|part| {
        let new = !seen.contains(part);
        seen.push(part.clone());
        new
    });
    parts.join("+")
}

/// Who is cleared by which evidence, and who is not.
fn clear(plan: &Plan, known: &Knowledge, trials: &[crate::Trial]) -> (Vec<Exonerated>, Vec<Open>) {
    let mut exonerated: Vec<Exonerated> = plan
        .unchanged
        .iter()
        .map(|seam| Exonerated {
            change: seam.clone(),
            place: Place {
                seam: seam.clone(),
                phase: String::new(),
                class: String::new(),
                delta: String::new(),
            },
            grade: Grade::SameCode,
            trial: None,
            reason: "same code and options at both ends".to_owned(),
        })
        .collect();
    let mut open = Vec::new();
    for change in &plan.changes {
        let atoms: Arm = change.atoms.iter().map(|atom| atom.id).collect();
        let blamed = known.found.iter().any(|found| !found.removed.is_disjoint(&atoms));
        let title = change.title();
        let place = Place {
            seam: change.seam.clone(),
            phase: change.phase.to_string(),
            class: change.class.to_string(),
            delta: change.delta.to_string(),
        };
        if blamed && known.found.iter().any(|found| guilty(plan, found, change)) {
            continue;
        }
        let alive: Arm = atoms.difference(&known.not_run).copied().collect();
        if alive.is_empty() {
            let reason = "did not run in the failing run (receipts)".to_owned();
            exonerated.push(Exonerated {
                change: title,
                place,
                grade: Grade::DidNotRun,
                trial: None,
                reason,
            });
            continue;
        }
        let passing = trials.iter().filter(|trial| trial.outcome.verdict == Verdict::Good);
        let witness = passing.filter(|trial| alive.is_subset(&trial.arm)).max_by_key(|trial| trial.arm.len());
        let failing: Vec<&str> = known
            .conformance
            .iter()
            .filter(|c| change.variants.contains(&c.variant) && !c.passed)
            .map(|c| c.variant.as_str())
            .collect();
        let flag = if failing.is_empty() {
            String::new()
        } else {
            format!("; but {} fails conformance", failing.join(" and "))
        };
        match witness {
            Some(trial) => {
                let reason = if known.healed == Some(trial.number) {
                    format!("the bad end without the culprit passes with it (run {}){flag}", trial.number)
                } else {
                    format!("passes with it (run {}: {}){flag}", trial.number, trial.why)
                };
                exonerated.push(Exonerated {
                    change: title,
                    place,
                    grade: Grade::Passes,
                    trial: Some(trial.number),
                    reason,
                });
            }
            None => {
                let why = if blamed { "taken out together with a culprit" } else { "not tested apart" };
                open.push(Open { change: title, place, reason: format!("{why}{flag}") });
            }
        }
    }
    (exonerated, open)
}

/// True if `change` is part of what `found` is reported as.
fn guilty(plan: &Plan, found: &Found, change: &Change) -> bool {
    found.changes.iter().any(|&index| {
        let own = &plan.changes[index];
        own == change || (found.changes.len() == 1 && own.same_patch(change) && found.necessary.is_some())
    }) && change.atoms.iter().any(|atom| found.removed.contains(&atom.id))
}

fn describe_error(error: &hotseam_target::TargetError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}
