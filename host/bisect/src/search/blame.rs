//! What is said of a culprit.

use hotseam_target::{Arm, Change, Conformance, Counts, Delta, Plan, Span, TOPOLOGY};

use super::Knowledge;
use super::found::Found;
use super::hunt::{Answer, Hunt};
use super::layers::Narrow;
use crate::report::{Culprit, Fails, WriterReader, dose, layers, ranges};

/// One entry a seam member of `found`.
pub(super) fn entries(hunt: &Hunt<'_>, known: &Knowledge, found: &Found) -> Vec<Culprit> {
    let plan = &hunt.plan;
    let (with, without) = counts(hunt, found);
    let entry = |&index: &usize| {
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
        let mut on: Vec<usize> = blamed
            .iter()
            .flat_map(|c| &c.atoms)
            .filter(|atom| found.removed.contains(&atom.id))
            .filter_map(|atom| atom.layer)
            .collect();
        on.sort_unstable();
        on.dedup();
        let phase = joined(blamed.iter().map(|c| c.phase.to_string()));
        let class = joined(blamed.iter().map(|c| c.class.to_string()));
        let others = found.changes.iter().filter(|other| **other != index);
        Culprit {
            selector: selector(change, &blamed, &on),
            seam: change.seam.clone(),
            phase,
            class,
            layers: on,
            ranks: change.ranks.clone(),
            change: change.what(),
            variant: change.variants.join(", "),
            sufficient: found.sufficient,
            necessary: found.necessary,
            masked: found.masked,
            with,
            without,
            probability: hunt.counted.then_some(found.probability),
            interacts_with: others.map(|other| plan.changes[*other].title()).collect(),
            phases: phases(hunt, change, &blamed),
            topology: found.topology,
            handoff: found.handoff.clone(),
            dose: match found.changes[..] {
                [_] => dose(plan, &hunt.trials, index),
                _ => Vec::new(),
            },
            evidence: evidence(hunt, known, found, change, with, without),
        }
    };
    found.changes.iter().map(entry).collect()
}

/// Draws of the good end with `found`, and of the bad end without it.
fn counts(hunt: &Hunt<'_>, found: &Found) -> (Counts, Counts) {
    let of = |trial: Option<usize>| {
        let digest = trial.and_then(|number| hunt.trials.get(number - 1)).map(|trial| &trial.digest);
        let mut sum = Counts::default();
        for trial in hunt.trials.iter().filter(|trial| Some(&trial.digest) == digest && trial.axes.is_empty())
        {
            sum.fail += trial.outcome.counts.fail;
            sum.total += trial.outcome.counts.total;
        }
        sum
    };
    (of(Some(found.sufficient)), of(found.necessary.or(found.still_fails)))
}

fn evidence(
    hunt: &Hunt<'_>,
    known: &Knowledge,
    found: &Found,
    change: &Change,
    with: Counts,
    without: Counts,
) -> Vec<String> {
    let seen = |counts: Counts| if hunt.counted { format!(", {counts} failed") } else { String::new() };
    let mut lines =
        vec![format!("sufficient: the good end with it fails (run {}{})", found.sufficient, seen(with))];
    lines.push(match (found.necessary, found.still_fails) {
        (Some(trial), _) => {
            format!("necessary: the bad end without it passes (run {trial}{})", seen(without))
        }
        (None, Some(trial)) => {
            format!("not alone: the bad end fails without it too (run {trial}{})", seen(without))
        }
        (None, None) => "necessary: not tested".to_owned(),
    });
    if let Some(trial) = found.masked {
        lines.push(format!(
            "masked: the bad end passes with it once the other culprits are out (run {trial})"
        ));
    }
    lines.extend(by_topology(hunt, found));
    lines.extend(handed_over(found));
    lines.extend(narrowing(&hunt.plan, change, found));
    let of_change = |passed: bool| {
        known.conformance.iter().filter(move |c| c.passed == passed && change.variants.contains(&c.variant))
    };
    lines.extend(of_change(false).map(|c| format!("conformance of {} fails: {}", c.variant, c.detail)));
    if of_change(false).next().is_none() && change.seam != TOPOLOGY {
        lines.push(match stock_is_wrong(change, &known.conformance) {
            Some(stock) => format!(
                "its variant passes conformance and {} fails: the good end may be the wrong one ({})",
                stock.variant, stock.detail
            ),
            None => "its variant passes conformance: suspect the wiring around it".to_owned(),
        });
    }
    lines
}

/// In which topology it fails, in words.
fn by_topology(hunt: &Hunt<'_>, found: &Found) -> Option<String> {
    let by = found.topology?;
    let said = hunt.trials.get(by.single - 1).map_or("", |trial| trial.outcome.summary.as_str());
    Some(match by.fails {
        Fails::OnlyPaired => format!(
            "guilty only when disaggregated: topology paired fails (run {}), single passes (run {}: {said})",
            by.paired, by.single
        ),
        Fails::Both => format!(
            "guilty in both topologies: paired fails (run {}) and single too (run {}: {said}), so it is not the hand-off",
            by.paired, by.single
        ),
    })
}

/// What an audit of hand-offs with it found, a line a component.
fn handed_over(found: &Found) -> Vec<String> {
    let Some(handoff) = &found.handoff else { return Vec::new() };
    let mut lines: Vec<String> =
        handoff.changed().map(|own| format!("audit of the hand-off: {own}")).collect();
    let whole: Vec<&str> =
        handoff.components.iter().filter(|own| !own.changed()).map(|own| own.component.as_str()).collect();
    if !whole.is_empty() {
        lines.push(format!("audit of the hand-off: {} arrived as sent", whole.join(", ")));
    }
    lines
}

/// The check of the variant that `change` replaces, if that one fails while the new one passes. Then the ends differ
/// because the good one is wrong, and no patch is to blame.
pub(super) fn stock_is_wrong<'c>(change: &Change, checks: &'c [Conformance]) -> Option<&'c Conformance> {
    let Delta::Variant { from, .. } = &change.delta else { return None };
    let mut own = checks.iter().filter(|check| change.variants.contains(&check.variant)).peekable();
    let passes = own.peek().is_some() && own.all(|check| check.passed);
    checks.iter().find(|check| passes && check.variant == *from && !check.passed)
}

/// The smallest selector that switches what is blamed.
fn selector(change: &Change, blamed: &[&Change], on: &[usize]) -> String {
    let mut text = change.seam.clone();
    if change.phase == Span::Handoff {
        return text;
    }
    let spans: Vec<Span> = blamed.iter().map(|change| change.phase).collect();
    match spans.split_first() {
        Some((first, rest)) if *first != Span::Both && rest.iter().all(|span| span == first) => {
            text += &format!("@{first}");
        }
        _ => {}
    }
    if !on.is_empty() {
        text += &format!(":layers={}", ranges(on));
    }
    if !change.ranks.is_empty() {
        let ranks: Vec<usize> = change.ranks.iter().map(|rank| *rank as usize).collect();
        text += &format!("/ranks={}", ranges(&ranks));
    }
    text
}

/// Who writes and who reads the state that goes wrong: known if the patch could be switched in either phase, and it is
/// guilty in one and cleared in the other.
fn phases(hunt: &Hunt<'_>, change: &Change, blamed: &[&Change]) -> Option<WriterReader> {
    let writer = change.phase;
    if !matches!(writer, Span::Prefill | Span::Decode) || blamed.iter().any(|other| other.phase != writer) {
        return None;
    }
    let other: Arm = hunt
        .plan
        .changes
        .iter()
        .filter(|c| c.same_patch(change) && c.phase != writer && c.class == change.class)
        .flat_map(|c| c.atoms.iter().map(|atom| atom.id))
        .collect();
    let own: Arm = change.atoms.iter().map(|atom| atom.id).collect();
    let cleared = hunt.trials.iter().any(|trial| {
        other.is_subset(&trial.arm)
            && trial.arm.is_disjoint(&own)
            && hunt.answer_of(trial) == Some(Answer::Good)
    });
    // What decode writes, only decode reads; what prefill writes is read by stock decode here.
    (!other.is_empty() && cleared)
        .then(|| WriterReader { writer: writer.to_string(), reader: Span::Decode.to_string() })
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
        Narrow::Unclear => Some(format!("which of {all} cannot be told: some of them cannot be judged")),
        Narrow::Spread => Some(
            "adds up: no single class or phase of the patch fails alone, all named here together do; which of them are \
             needed was not narrowed further"
                .to_owned(),
        ),
        Narrow::Several { first, last } => {
            Some(format!("enough by itself: {}, or {} together", layers(first), layers(last)))
        }
    }
}

/// Distinct words in order, joined by `+`; parts that hold several count as several.
fn joined(words: impl Iterator<Item = String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for part in words.flat_map(|word| word.split('+').map(str::to_owned).collect::<Vec<_>>()) {
        if !seen.contains(&part) {
            seen.push(part);
        }
    }
    seen.join("+")
}

/// True if `change` is part of what `found` is reported as.
pub(super) fn guilty(plan: &Plan, found: &Found, change: &Change) -> bool {
    let named = found.changes.iter().any(|&index| {
        let own = &plan.changes[index];
        own == change || (found.changes.len() == 1 && own.same_patch(change) && found.necessary.is_some())
    });
    named && change.atoms.iter().any(|atom| found.removed.contains(&atom.id))
}
