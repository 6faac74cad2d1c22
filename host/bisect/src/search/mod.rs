//! The procedure.

mod axes;
mod bayes;
mod blame;
mod clear;
mod confirm;
mod culprit;
mod draws;
mod ends;
mod found;
mod hunt;
mod infer;
mod layers;
mod locate;
mod minimal;
mod options;
mod order;
mod prefix;
mod stats;
mod topology;
mod verdict;

use hotseam_target::{Arm, Conformance, Delta, Handoff, Suspicion, TOPOLOGY, Target};

use crate::event::Observer;
use crate::report::{Report, WhatIf, Word};
use confirm::Healing;
use culprit::Search;
use ends::Ends;
use found::Found;
use hunt::{Hunt, Stop};
use order::Suspect;

pub use options::{Options, Strategy, expected_runs};

/// Suspects that may turn out to pass after all before a search gives up.
const RETRACTIONS: usize = 4;

/// What the search learnt so far; the report is made of it however the search ended.
#[derive(Default)]
pub(crate) struct Knowledge {
    pub(crate) good: Option<usize>,
    pub(crate) bad: Option<usize>,
    pub(crate) not_run: Arm,
    pub(crate) conformance: Vec<Conformance>,
    pub(crate) suspicions: Vec<Suspicion>,
    /// What hand-offs of the bad end brought, if they were audited.
    pub(crate) handoff: Option<Handoff>,
    pub(crate) suspects: Vec<Suspect>,
    pub(crate) found: Vec<Found>,
    /// Trial in which the bad end without every culprit passed.
    pub(crate) healed: Option<usize>,
    /// A set that fails only together was met, and not found.
    pub(crate) interacting: bool,
    pub(crate) what_if: Vec<WhatIf>,
    /// Trial in which the bad end passed once a setting had healed the good end, and the setting in words.
    pub(crate) passed_with: Option<(usize, String)>,
    pub(crate) notes: Vec<String>,
}

/// Searches for the changes that make the bad end of `target` fail. The search depends on nothing but the options and
/// what the target answers, so a target that answers from a record makes the same report again.
pub fn run(target: &mut dyn Target, options: &Options, observer: &mut dyn Observer) -> Report {
    let oracle = target.oracle();
    let mut hunt = Hunt::new(target, observer, options);
    let mut known = Knowledge::default();
    let ended = search(&mut hunt, &mut known);
    verdict::report(hunt, known, ended, oracle)
}

fn search(hunt: &mut Hunt<'_>, known: &mut Knowledge) -> Result<Word, Stop> {
    if hunt.plan.changes.is_empty() {
        return Ok(Word::SameCode);
    }
    let ends = ends::verify(hunt, known)?;
    if ends != Ends::GoodFails {
        known.conformance = conformance(hunt)?;
        topology::audit(hunt, known);
    }
    if let Some(word) = ended(hunt, known, ends)? {
        return Ok(word);
    }
    known.not_run = hunt.target.not_run();
    known.suspicions = hunt.target.suspicions().map_err(Stop::Target)?;
    if let Some(handoff) = &known.handoff {
        known.suspicions.extend(topology::suspicions(hunt, handoff));
    }
    let suspects = order::suspects(&hunt.plan, &known.not_run, &known.conformance, &known.suspicions);
    known.suspects.clone_from(&suspects);
    hunt.note(&format!(
        "{} of {} changes ran in the bad end, conformance suspects {}",
        suspects.len(),
        hunt.plan.changes.len(),
        suspects.iter().filter(|suspect| suspect.accused).count(),
    ));
    loop {
        match culprits(hunt, known, &suspects) {
            Err(Stop::Relaunched) => {
                hunt.note("a new launch: both ends are run in it first");
                known.found.clear();
                let ends = ends::verify(hunt, known)?;
                if let Some(word) = ended(hunt, known, ends)? {
                    return Ok(word);
                }
            }
            Ok(word) => {
                topology::tell(hunt, known)?;
                return Ok(word);
            }
            Err(stop) => return Err(stop),
        }
    }
}

/// The verdict if the ends do not differ.
fn ended(hunt: &mut Hunt<'_>, known: &mut Knowledge, ends: Ends) -> Result<Option<Word>, Stop> {
    Ok(match ends {
        Ends::Differ => None,
        Ends::Agree => Some(Word::OracleAgrees),
        Ends::Unclear => Some(Word::Inconclusive),
        Ends::GoodFails => Some(axes::search(hunt, known)?),
    })
}

/// Finds culprits until the bad end without them passes.
fn culprits(hunt: &mut Hunt<'_>, known: &mut Knowledge, suspects: &[Suspect]) -> Result<Word, Stop> {
    // The failing end that is searched: the bad end without the culprits found so far.
    let mut failing = hunt.plan.all();
    let mut retracted = 0;
    while known.found.len() < hunt.options.max_culprits {
        let live = order::within(suspects, &failing);
        let mut found = match culprit::one(hunt, &live)? {
            Search::Found(found) => found,
            Search::Open(why) => {
                known.notes.push(why);
                known.interacting = true;
                known.notes.extend(culprit::needed(hunt, &failing, &live)?);
                return Ok(Word::Inconclusive);
            }
        };
        match confirm::heal(hunt, &found, &failing, &live) {
            Ok(Healing::Healed { trial, atoms }) => {
                found.confirm(trial, atoms);
                known.found.push(*found);
                known.healed = Some(trial);
                settle(hunt, known, suspects)?;
                retract(hunt, known)?;
                let healed = hunt.trials[trial - 1].arm.clone();
                if hunt.counted && !ends::hold(hunt, &healed)? {
                    known
                        .notes
                        .push("more runs of both ends do not tell them apart: no claim is made".to_owned());
                    known.found.clear();
                    return Ok(Word::Inconclusive);
                }
                return Ok(Word::Found);
            }
            Ok(Healing::StillFails { trial, without }) => {
                if hunt.counted && !still_fails_alone(hunt, &found)? {
                    hunt.note("more runs say that it passes alone: the search goes on");
                    retracted += 1;
                    if retracted < RETRACTIONS {
                        continue;
                    }
                    known
                        .notes
                        .push("suspects that seemed to fail alone do not: no claim is made".to_owned());
                    return Ok(Word::Inconclusive);
                }
                hunt.note("the bad end fails without it too: there is another culprit");
                found.removed = failing.difference(&without).copied().collect();
                found.still_fails = Some(trial);
                failing = without;
                known.found.push(*found);
            }
            Ok(Healing::Unclear { trial }) => {
                known.notes.push(format!("the bad end without the culprit cannot be judged (run {trial})"));
                known.found.push(*found);
                return Ok(Word::Inconclusive);
            }
            Err(stop) => {
                known.found.push(*found);
                return Err(stop);
            }
        }
    }
    known.notes.push(format!(
        "the bad end still fails without the {} culprits found; raise the limit to look for more",
        hunt.options.max_culprits
    ));
    Ok(Word::Inconclusive)
}

/// If outcomes are draws, a culprit without which the bad end fails, and that does no harm in it, stands on the runs of
/// itself alone: it must fail beyond doubt at the rates that are known by now, or it is no culprit.
fn retract(hunt: &mut Hunt<'_>, known: &mut Knowledge) -> Result<(), Stop> {
    if !hunt.counted {
        return Ok(());
    }
    let mut kept = Vec::new();
    for found in std::mem::take(&mut known.found) {
        if found.masked.is_none() || still_fails_alone(hunt, &found)? {
            kept.push(found);
        }
    }
    known.found = kept;
    Ok(())
}

/// Whether a culprit, by more runs than were enough to name it, fails alone.
fn still_fails_alone(hunt: &mut Hunt<'_>, found: &Found) -> Result<bool, Stop> {
    let arm = hunt.plan.with_required(&found.atoms);
    hunt.reopen(&arm)?;
    Ok(hunt.test_at(&arm, "the culprit alone, once more", None, [confirm::BESIDE; 2])?.bad())
}

/// Checks every variant that some change brings in, and those that they replace.
fn conformance(hunt: &mut Hunt<'_>) -> Result<Vec<Conformance>, Stop> {
    let mut variants: Vec<String> =
        hunt.plan.changes.iter().flat_map(|change| change.variants.iter().cloned()).collect();
    variants.sort();
    variants.dedup();
    hunt.note(&format!("checking {} variants against the truth", variants.len()));
    let mut checks = Vec::new();
    for variant in &variants {
        checks.push(hunt.target.conformance(variant).map_err(Stop::Target)?);
    }
    // A good side that cannot be checked by its name alone is taken to be right.
    let mut replaced: Vec<&String> = Vec::new();
    for change in &hunt.plan.changes {
        if let Delta::Variant { from, .. } = &change.delta
            && change.seam != TOPOLOGY
            && !replaced.contains(&from)
            && !variants.contains(from)
        {
            replaced.push(from);
            checks.extend(hunt.target.conformance(from).ok());
        }
    }
    Ok(checks)
}

/// With several culprits: is one of them all that has to go? The others fail by themselves, and heal each other in the
/// bad end.
fn one_is_enough(hunt: &mut Hunt<'_>, known: &mut Knowledge) -> Result<bool, Stop> {
    for index in 0..known.found.len() {
        let without = hunt.plan.without(&hunt.plan.all(), &known.found[index].removed);
        let tested = match hunt.test(&without, "bad end without one culprit", None) {
            Err(Stop::Budget) => return Ok(false),
            other => other?,
        };
        if !tested.good() {
            continue;
        }
        known.healed = Some(tested.trial);
        for (other, found) in known.found.iter_mut().enumerate() {
            if other == index {
                let removed = found.removed.clone();
                found.confirm(tested.trial, removed);
            } else {
                found.masked = Some(tested.trial);
                found.necessary = None;
            }
        }
        return Ok(true);
    }
    Ok(false)
}

/// With several culprits: does each matter in the bad end once the others are gone? Costs runs only while the budget
/// lasts; what is known without it is already a result.
fn settle(hunt: &mut Hunt<'_>, known: &mut Knowledge, suspects: &[Suspect]) -> Result<(), Stop> {
    let count = known.found.len();
    if count > 1 && one_is_enough(hunt, known)? {
        return Ok(());
    }
    for index in 0..count.saturating_sub(1) {
        let mut others = Arm::new();
        for (other, found) in known.found.iter().enumerate() {
            if other != index {
                others.extend(&found.removed);
            }
        }
        let base = hunt.plan.without(&hunt.plan.all(), &others);
        let outcome = hunt.test(&base, "bad end without the other culprits", None);
        let tested = match outcome {
            Err(Stop::Budget) => return Ok(()),
            other => other?,
        };
        if tested.good() {
            known.found[index].masked = Some(tested.trial);
            continue;
        }
        let live = order::within(suspects, &base);
        match confirm::heal(hunt, &known.found[index], &base, &live) {
            Ok(Healing::Healed { trial, atoms }) => known.found[index].confirm(trial, atoms),
            Ok(Healing::StillFails { .. } | Healing::Unclear { .. }) | Err(Stop::Budget) => {}
            Err(stop) => return Err(stop),
        }
    }
    Ok(())
}
