//! Is the culprit necessary: does the failing end pass without it?

use hotseam_target::Arm;

use super::found::Found;
use super::hunt::{Hunt, Stop};
use super::order::{self, Suspect};

/// Confidence with which, if outcomes are draws, it must be known that something fails beside a culprit before it is
/// looked for: two culprits are rarer than one.
pub(crate) const BESIDE: f64 = 0.995;

/// What taking a culprit out did.
pub(crate) enum Healing {
    /// The rest passes.
    Healed {
        /// The passing trial.
        trial: usize,
        /// The smallest set of the tried ones whose removal heals.
        atoms: Arm,
    },
    /// Even without the whole patch the rest fails.
    StillFails {
        /// The failing trial.
        trial: usize,
        /// The failing rest.
        without: Arm,
    },
    /// The rest cannot be judged.
    Unclear {
        /// The trial that tried.
        trial: usize,
    },
}

/// Takes `found` out of `failing`. If that does not heal, a fault may sit on more layers, classes or phases than are
/// needed to show it: the whole change, the patch in that phase, and the patch everywhere are taken out too, and the
/// smallest of these that heals is the answer.
pub(crate) fn heal(
    hunt: &mut Hunt<'_>,
    found: &Found,
    failing: &Arm,
    suspects: &[Suspect],
) -> Result<Healing, Stop> {
    let steps = widening(hunt, found, suspects);
    let test = |hunt: &mut Hunt<'_>, step: usize| {
        let rest = hunt.plan.without(failing, &steps[step].1);
        let why = format!("bad end without {}", steps[step].0);
        let confidence = [hunt.options.confidence, BESIDE];
        hunt.test_at(&rest, &why, None, confidence).map(|tested| (tested, rest))
    };
    let (first, rest) = test(hunt, 0)?;
    if first.good() {
        return Ok(Healing::Healed { trial: first.trial, atoms: steps[0].1.clone() });
    }
    let last = steps.len() - 1;
    let (whole, rest) = if last == 0 { (first, rest) } else { test(hunt, last)? };
    match whole.fails() {
        None => return Ok(Healing::Unclear { trial: whole.trial }),
        Some(true) => return Ok(Healing::StillFails { trial: whole.trial, without: rest }),
        Some(false) => {}
    }
    // Smallest step that heals; step 0 does not, the last does.
    let (mut fails, mut heals, mut trial) = (0, last, whole.trial);
    while heals - fails > 1 {
        let middle = (heals + fails) / 2;
        let tested = match test(hunt, middle) {
            // The widest step is an answer already; a closer one is worth no failed search.
            Err(Stop::Budget) => break,
            other => other?.0,
        };
        if tested.good() {
            heals = middle;
            trial = tested.trial;
        } else {
            fails = middle;
        }
    }
    Ok(Healing::Healed { trial, atoms: steps[heals].1.clone() })
}

/// Growing sets around `found`, with names.
fn widening(hunt: &Hunt<'_>, found: &Found, suspects: &[Suspect]) -> Vec<(String, Arm)> {
    let mut steps = vec![("the culprit".to_owned(), found.atoms.clone())];
    if let [change] = found.changes[..] {
        let change = &hunt.plan.changes[change];
        let patch = |same_phase: bool| {
            order::union(suspects.iter().filter(|suspect| {
                let other = &hunt.plan.changes[suspect.change];
                change.same_patch(other) && (!same_phase || other.phase == change.phase)
            }))
        };
        let whole: Arm = change.atoms.iter().map(|atom| atom.id).collect();
        steps.push((change.place(), whole));
        steps.push((format!("the patch in {}", change.phase), patch(true)));
        steps.push(("the whole patch".to_owned(), patch(false)));
    }
    let mut grown: Vec<(String, Arm)> = Vec::new();
    for (name, atoms) in steps {
        let atoms: Arm = match grown.last() {
            Some((_, before)) => before.union(&atoms).copied().collect(),
            None => atoms,
        };
        if grown.last().is_none_or(|(_, before)| *before != atoms) {
            grown.push((name, atoms));
        }
    }
    grown
}
