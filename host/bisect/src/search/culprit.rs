//! One culprit: a set of changes that fails on its own and none of which can be left out.

use hotseam_target::Arm;

use super::found::Found;
use super::hunt::{Hunt, Stop};
use super::layers;
use super::locate::{Located, Scene, locate};
use super::minimal::minimal;
use super::order::{self, Suspect};
use super::prefix::{self, Boundary};
use crate::report::layers as in_words;

/// What came of a search.
pub(crate) enum Search {
    /// A culprit.
    Found(Box<Found>),
    /// None, and why.
    Open(String),
}

/// Finds one set of changes that fails on its own. `suspects` all together are held to fail.
pub(crate) fn one(hunt: &mut Hunt<'_>, suspects: &[Suspect]) -> Result<Search, Stop> {
    if suspects.is_empty() {
        return Ok(Search::Open("no change that ran is left".to_owned()));
    }
    // Smallest failing prefix, fix its last member, repeat among what comes before it.
    let mut fixed: Vec<Suspect> = Vec::new();
    let mut bound = suspects.len();
    loop {
        let scene = Scene { fixed: &fixed, suspects: &suspects[..bound] };
        match locate(hunt, &scene)? {
            Located::Alone { index, probability, .. } if fixed.is_empty() => {
                let narrow = layers::narrow(hunt, &suspects[index])?;
                return Ok(Search::Found(Box::new(
                    Found::single(&suspects[index], narrow).believed(probability),
                )));
            }
            Located::Alone { index, trial, probability } => {
                fixed.push(suspects[index].clone());
                return set(hunt, fixed, trial, probability);
            }
            Located::Last(index) => {
                if fixed.is_empty() {
                    if let Some(found) = spread(hunt, &suspects[..=index])? {
                        return Ok(Search::Found(Box::new(found)));
                    }
                    let place = hunt.plan.changes[suspects[index].change].place();
                    hunt.note(&format!("{place} passes alone: looking for what it needs to fail"));
                }
                fixed.push(suspects[index].clone());
                bound = index;
                if fixed.len() >= hunt.options.max_set || bound == 0 {
                    let places: Vec<String> =
                        fixed.iter().map(|s| hunt.plan.changes[s.change].place()).collect();
                    return Ok(Search::Open(format!(
                        "no set of up to {} changes fails; {} and more are needed together",
                        hunt.options.max_set,
                        places.join(", ")
                    )));
                }
            }
            Located::Unclear(from, to) => return unclear(hunt, &fixed, &suspects[..bound], from, to),
        }
    }
}

/// A failing set whose members were found one by one. If a run is a verdict and the space monotone, none can be left
/// out; if some run shows that it is not, or runs are draws, this is checked.
fn set(hunt: &mut Hunt<'_>, members: Vec<Suspect>, trial: usize, belief: f64) -> Result<Search, Stop> {
    if !hunt.counted && hunt.contradiction().is_none() {
        return Ok(Search::Found(Box::new(Found::set(&members, trial))));
    }
    hunt.note("checking that every member of the set is needed");
    Ok(match debug(hunt, &[], &members)? {
        Search::Found(found) => Search::Found(Box::new(found.believed(belief))),
        open => open,
    })
}

/// A minimal failing subset of `suspects` with `fixed`, whatever the space.
fn debug(hunt: &mut Hunt<'_>, fixed: &[Suspect], suspects: &[Suspect]) -> Result<Search, Stop> {
    let scene = Scene { fixed, suspects };
    let mut last = None;
    let left = minimal((0..suspects.len()).collect(), |items| {
        let chosen: Vec<Suspect> = items.iter().map(|&item| suspects[item].clone()).collect();
        let arm = scene.with_fixed(&hunt.plan, &chosen);
        let why = format!("{} changes together", fixed.len() + items.len());
        let tested = hunt.test(&arm, &why, None)?;
        if tested.bad() {
            last = Some(tested.trial);
        }
        Ok(tested.fails())
    })?;
    let mut members: Vec<Suspect> = fixed.to_vec();
    members.extend(left.iter().map(|&item| suspects[item].clone()));
    let arm = hunt.plan.with_required(&order::union(&members));
    let tested = hunt.test(&arm, &format!("{} changes together", members.len()), None)?;
    if !tested.bad() || members.len() > hunt.options.max_set {
        let count = members.len();
        return Ok(Search::Open(format!("the smallest set that was seen to fail has {count} changes")));
    }
    if let [only] = &members[..] {
        let narrow = layers::narrow(hunt, only)?;
        return Ok(Search::Found(Box::new(Found::single(only, narrow))));
    }
    Ok(Search::Found(Box::new(Found::set(&members, last.unwrap_or(tested.trial)))))
}

/// No run tells which suspect between two places it is. With an exact oracle delta debugging, which takes what cannot
/// be judged for unresolved, may still find a set.
fn unclear(
    hunt: &mut Hunt<'_>,
    fixed: &[Suspect],
    suspects: &[Suspect],
    from: usize,
    to: usize,
) -> Result<Search, Stop> {
    if !hunt.counted && to <= suspects.len() {
        hunt.note("prefixes there cannot be judged: delta debugging takes over");
        if let Search::Found(found) = debug(hunt, fixed, &suspects[..to])? {
            return Ok(Search::Found(found));
        }
    }
    let places: Vec<String> = suspects[from.min(to)..to.min(suspects.len())]
        .iter()
        .map(|suspect| hunt.plan.changes[suspect.change].place())
        .collect();
    Ok(Search::Open(format!("one of these, and no run tells which: {}", places.join(", "))))
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
    Ok(tested.bad().then(|| Found::spread(last, atoms, tested.trial)))
}

/// The other direction, when no small set is enough to fail: which change is needed, so that the failing end passes
/// without it? Runs are made while the budget lasts; the remarks are all that comes of it.
pub(crate) fn needed(hunt: &mut Hunt<'_>, failing: &Arm, suspects: &[Suspect]) -> Result<Vec<String>, Stop> {
    match heal(hunt, failing, suspects) {
        Err(Stop::Budget) => Ok(Vec::new()),
        other => other,
    }
}

fn heal(hunt: &mut Hunt<'_>, failing: &Arm, suspects: &[Suspect]) -> Result<Vec<String>, Stop> {
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let weights: Vec<f64> = suspects.iter().map(|suspect| suspect.weight).collect();
    let jobs = hunt.options.jobs;
    let boundary = prefix::smallest_failing(&weights, jobs, |lengths| {
        let ask = |(length, left): &(usize, [usize; 2])| {
            let rest = hunt.plan.without(failing, &order::union(&suspects[..*length]));
            let why = format!("bad end without the first {length} suspects");
            // What passes here is what "fails" the other way round.
            hunt.test(&rest, &why, Some([left[1], left[0]])).map(|tested| tested.fails().map(|fails| !fails))
        };
        lengths.iter().map(ask).collect()
    })?;
    let Boundary::At(length) = boundary else { return Ok(Vec::new()) };
    let last = &suspects[length - 1];
    let place = hunt.plan.changes[last.change].place();
    let rest = hunt.plan.without(failing, &last.atoms);
    let tested = hunt.test(&rest, &format!("bad end without {place}"), None)?;
    let on = in_words(&hunt.plan.changes[last.change].layers());
    Ok(vec![if tested.good() {
        format!("needed, though not enough: the bad end passes without {place} {on} (run {})", tested.trial)
    } else {
        format!("taking out {place} heals only together with {} changes before it", length - 1)
    }])
}
