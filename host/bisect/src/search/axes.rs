//! When the good end fails too, no patch is guilty: which setting is?

use hotseam_target::{Arm, Axis, Verdict};

use super::Knowledge;
use super::hunt::{Hunt, Stop, counts_of};
use super::stats::{Tally, probability_above};
use crate::event::Progress;
use crate::report::{Setting, WhatIf, Word};

/// Runs of one setting after which it is given up, if outcomes are draws.
const MOST: usize = 24;

/// Tries other settings on the good end, the smallest changes first: each axis by itself, then pairs.
pub(crate) fn search(hunt: &mut Hunt<'_>, known: &mut Knowledge) -> Result<Word, Stop> {
    let axes = hunt.target.axes();
    if !hunt.options.axes || axes.is_empty() {
        return Ok(Word::GoodFails);
    }
    hunt.note(&format!("the good end fails without any patch: trying {} settings", axes.len()));
    let order = order(&axes);
    // Each setting is a chance to be wrong.
    let confidence = 1.0 - (1.0 - hunt.options.confidence) / order.len() as f64;
    for settings in &order {
        if heals(hunt, known, settings, confidence)? {
            patched(hunt, known, settings, confidence)?;
            return Ok(Word::NoPatch);
        }
    }
    known.notes.push("no setting that was tried, alone or in pairs, heals the good end".to_owned());
    Ok(Word::GoodFails)
}

/// Sets of settings to try: single ones by the place of their values, then pairs by the sum of the places.
fn order(axes: &[Axis]) -> Vec<Vec<Setting>> {
    let setting = |axis: &Axis, value: &String| Setting {
        name: axis.name.clone(),
        from: axis.now.clone(),
        to: value.clone(),
    };
    let mut ranked: Vec<(usize, usize, Vec<Setting>)> = Vec::new();
    for (index, axis) in axes.iter().enumerate() {
        for (place, value) in axis.values.iter().enumerate() {
            ranked.push((1, place, vec![setting(axis, value)]));
            for other in &axes[index + 1..] {
                for (second, paired) in other.values.iter().enumerate() {
                    ranked.push((2, place + second, vec![setting(axis, value), setting(other, paired)]));
                }
            }
        }
    }
    ranked.sort_by_key(|(count, place, _)| (*count, *place));
    ranked.into_iter().map(|(_, _, settings)| settings).collect()
}

fn pairs(settings: &[Setting]) -> Vec<(String, String)> {
    settings.iter().map(|setting| (setting.name.clone(), setting.to.clone())).collect()
}

fn words(settings: &[Setting]) -> String {
    let one = |setting: &Setting| format!("{} {} -> {}", setting.name, setting.from, setting.to);
    settings.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Does the good end pass with `settings`?
fn heals(
    hunt: &mut Hunt<'_>,
    known: &mut Knowledge,
    settings: &[Setting],
    confidence: f64,
) -> Result<bool, Stop> {
    let failing = hunt.digest(&Arm::new())?;
    let (trial, answer) = ask(hunt, &Arm::new(), settings, "good end with", confidence, &failing)?;
    let heals = answer == Some(true);
    let outcome = hunt.trials[trial - 1].outcome.clone();
    known.what_if.push(WhatIf { settings: settings.to_vec(), trial, outcome, heals });
    Ok(heals)
}

/// With the setting that heals the good end, does the bad end pass too? Costs a run only if one is left.
fn patched(
    hunt: &mut Hunt<'_>,
    known: &mut Knowledge,
    settings: &[Setting],
    confidence: f64,
) -> Result<(), Stop> {
    let all = hunt.plan.all();
    let failing = hunt.digest(&Arm::new())?;
    let (trial, answer) = match ask(hunt, &all, settings, "bad end with", confidence, &failing) {
        Err(Stop::Budget) => return Ok(()),
        other => other?,
    };
    let heals = answer == Some(true);
    let set = words(settings);
    if heals {
        known.passed_with = Some((trial, set.clone()));
    }
    known.notes.push(if heals {
        format!("with {set} the bad end passes too (run {trial}): the patches are cleared")
    } else {
        format!(
            "with {set} the bad end still fails (run {trial}): a patch is guilty as well; bisect with it set"
        )
    });
    Ok(())
}

/// Runs `arm` with `settings` until it is known whether it passes; `failing` is the digest of what fails without them.
/// Returns the last trial and the answer, if there is one.
pub(super) fn ask(
    hunt: &mut Hunt<'_>,
    arm: &Arm,
    settings: &[Setting],
    what: &str,
    confidence: f64,
    failing: &str,
) -> Result<(usize, Option<bool>), Stop> {
    let why = format!("{what} {}", words(settings));
    let changed = pairs(settings);
    let once = |hunt: &mut Hunt<'_>| hunt.draw(arm, &changed, &why, |_| Progress::default());
    let mut trial = once(hunt)?;
    if !hunt.counted {
        let verdict = hunt.trials[trial - 1].outcome.verdict;
        return Ok((trial, (verdict != Verdict::Skip).then_some(verdict == Verdict::Good)));
    }
    let failing = Tally::from(hunt.draws.counts(failing).0);
    let mut tally = Tally::from(counts_of(&hunt.trials[trial - 1].outcome));
    for _ in 1..MOST {
        let better = probability_above(failing, tally);
        // It must be better than what fails, and by half at least: a setting that only helps is no answer.
        if better >= confidence && tally.mean() <= failing.mean() / 2.0 {
            return Ok((trial, Some(true)));
        }
        if better <= 0.5 && tally.total() >= 4.0 {
            return Ok((trial, Some(false)));
        }
        trial = once(hunt)?;
        tally.add(Tally::from(counts_of(&hunt.trials[trial - 1].outcome)));
    }
    Ok((trial, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_come_before_large_ones_and_single_ones_before_pairs() {
        let axis = |name: &str, values: &[&str]| Axis {
            name: name.to_owned(),
            now: "0".to_owned(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        let order: Vec<String> =
            order(&[axis("a", &["1", "2"]), axis("b", &["x"])]).iter().map(|s| words(s)).collect();
        assert_eq!(order, ["a 0 -> 1", "b 0 -> x", "a 0 -> 2", "a 0 -> 1, b 0 -> x", "a 0 -> 2, b 0 -> x"]);
    }
}
