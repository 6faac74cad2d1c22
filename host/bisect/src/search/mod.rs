//! The procedure.

mod confirm;
mod hunt;
mod interact;
mod layers;
mod order;
mod prefix;
mod verdict;

use hotseam_target::{Arm, Conformance, Plan, Target};

use crate::event::Observer;
use crate::report::{Report, Word};
use confirm::Healing;
use hunt::{Hunt, Stop};
use order::Suspect;
use verdict::Found;

/// Bounds of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Oracle runs allowed, both ends included.
    pub budget_runs: usize,
    /// Independent culprits looked for.
    pub max_culprits: usize,
    /// Largest set of changes that only fail together.
    pub max_set: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { budget_runs: 20, max_culprits: 4, max_set: 3 }
    }
}

/// Runs a search for one culprit is expected to take: both ends, the prefix search, the layers, two confirmations.
pub fn expected_runs(plan: &Plan) -> usize {
    let layers = plan.changes.iter().map(|change| change.atoms.len()).max().unwrap_or(1);
    let halvings = |n: usize| n.next_power_of_two().trailing_zeros() as usize;
    2 + halvings(plan.changes.len()) + 2 * halvings(layers) + 2
}

/// What the search learnt so far; the report is made of it however the search ended.
#[derive(Default)]
pub(crate) struct Knowledge {
    pub(crate) good: Option<usize>,
    pub(crate) bad: Option<usize>,
    pub(crate) not_run: Arm,
    pub(crate) conformance: Vec<Conformance>,
    pub(crate) found: Vec<Found>,
    /// Trial in which the bad end without every culprit passed.
    pub(crate) healed: Option<usize>,
    pub(crate) notes: Vec<String>,
}

/// Searches for the changes that make the bad end of `target` fail.
pub fn run(target: &mut dyn Target, options: &Options, observer: &mut dyn Observer) -> Report {
    let oracle = target.oracle();
    let mut hunt = Hunt::new(target, observer, options.budget_runs);
    let mut known = Knowledge::default();
    let ended = search(&mut hunt, options, &mut known);
    verdict::report(hunt, known, ended, oracle, options)
}

fn search(hunt: &mut Hunt<'_>, options: &Options, known: &mut Knowledge) -> Result<Word, Stop> {
    if hunt.plan.changes.is_empty() {
        return Ok(Word::SameCode);
    }
    let good = hunt.test(&Arm::new(), "good end", None)?;
    known.good = Some(good.trial);
    if good.bad {
        return Ok(Word::GoodFails);
    }
    let all = hunt.plan.all();
    let bad = hunt.test(&all, "bad end", None)?;
    known.bad = Some(bad.trial);
    known.conformance = conformance(hunt)?;
    if !bad.bad {
        return Ok(Word::OracleAgrees);
    }
    known.not_run = hunt.target.not_run();
    let suspects = order::suspects(&hunt.plan, &known.not_run, &known.conformance);
    hunt.note(&format!(
        "{} of {} changes ran in the bad end, conformance suspects {}",
        suspects.len(),
        hunt.plan.changes.len(),
        suspects.iter().filter(|suspect| suspect.accused).count(),
    ));

    // The failing end that is searched: the bad end without the culprits found so far.
    let mut failing = all;
    while known.found.len() < options.max_culprits {
        let live = order::within(&suspects, &failing);
        let Some(found) = one_culprit(hunt, options, &live)? else { return Ok(Word::Inconclusive) };
        let healing = confirm::heal(hunt, &found, &failing, &live);
        let spent = matches!(healing, Err(Stop::Budget));
        known.found.push(found);
        let last = known.found.len() - 1;
        if spent {
            return Err(Stop::Budget);
        }
        match healing? {
            Healing::Healed { trial, atoms } => {
                known.found[last].confirm(trial, atoms);
                known.healed = Some(trial);
                settle(hunt, known, &suspects)?;
                return Ok(Word::Found);
            }
            Healing::StillFails { trial, without } => {
                hunt.note("the bad end fails without it too: there is another culprit");
                known.found[last].removed = failing.difference(&without).copied().collect();
                known.found[last].still_fails = Some(trial);
                failing = without;
            }
        }
    }
    known.notes.push(format!(
        "the bad end still fails without the {} culprits found; raise the limit to look for more",
        options.max_culprits
    ));
    Ok(Word::Inconclusive)
}

/// Checks every variant that some change brings in.
fn conformance(hunt: &mut Hunt<'_>) -> Result<Vec<Conformance>, Stop> {
    let mut variants: Vec<String> =
        hunt.plan.changes.iter().flat_map(|change| change.variants.iter().cloned()).collect();
    variants.sort();
    variants.dedup();
    hunt.note(&format!("checking {} variants against the truth", variants.len()));
    variants.iter().map(|variant| hunt.target.conformance(variant).map_err(Stop::Target)).collect()
}

/// Finds one set of changes that fails on its own. `suspects` all together are known to fail.
fn one_culprit(hunt: &mut Hunt<'_>, options: &Options, suspects: &[Suspect]) -> Result<Option<Found>, Stop> {
    if suspects.is_empty() {
        return Ok(None);
    }
    let weights: Vec<f64> = suspects.iter().map(|suspect| suspect.weight).collect();
    let total = suspects.len();
    let length = prefix::smallest_failing(&weights, |length, left| {
        let arm = hunt.plan.with_required(&order::union(&suspects[..length]));
        let why = match length {
            1 => hunt.plan.changes[suspects[0].change].place(),
            _ => format!("first {length} of {total} suspects"),
        };
        hunt.test(&arm, &why, Some(left)).map(|tested| tested.bad)
    })?;
    let last = &suspects[length - 1];
    let place = hunt.plan.changes[last.change].place();
    let alone = hunt.plan.with_required(&last.atoms);
    let tested = hunt.test(&alone, &format!("{place} alone"), None)?;
    if tested.bad {
        let narrow = layers::narrow(hunt, last)?;
        return Ok(Some(Found::single(last, narrow)));
    }
    if let Some(found) = spread(hunt, &suspects[..length])? {
        return Ok(Some(found));
    }
    interact::find(hunt, suspects, length, options.max_set)
}

/// A fault may have to add up over classes or phases: does the patch of the last suspect fail, as far as it is among
/// `suspects`, though no part of it does?
fn spread(hunt: &mut Hunt<'_>, suspects: &[Suspect]) -> Result<Option<Found>, Stop> {
    let Some(last) = suspects.last() else { return Ok(None) };
    let change = hunt.plan.changes[last.change].clone();
    let parts = suspects.iter().filter(|suspect| hunt.plan.changes[suspect.change].same_patch(&change));
    let atoms = order::union(parts);
    if atoms == last.atoms {
        return Ok(None);
    }
    let arm = hunt.plan.with_required(&atoms);
    let tested = hunt.test(&arm, &format!("{} patch alone", change.seam), None)?;
    Ok(tested.bad.then(|| Found::spread(last, atoms, tested.trial)))
}

/// With several culprits: does each matter in the bad end once the others are gone? Costs runs only while the budget
/// lasts; what is known without it is already a result.
fn settle(hunt: &mut Hunt<'_>, known: &mut Knowledge, suspects: &[Suspect]) -> Result<(), Stop> {
    let count = known.found.len();
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
        if !tested.bad {
            known.found[index].masked = Some(tested.trial);
            continue;
        }
        let live = order::within(suspects, &base);
        match confirm::heal(hunt, &known.found[index], &base, &live) {
            Ok(Healing::Healed { trial, atoms }) => known.found[index].confirm(trial, atoms),
            Ok(Healing::StillFails { .. }) | Err(Stop::Budget) => {}
            Err(stop) => return Err(stop),
        }
    }
    Ok(())
}
