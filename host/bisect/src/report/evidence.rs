//! What is known about each change, by step of evidence, and dose curves.

use std::collections::BTreeMap;

use hotseam_target::{Arm, Change, Conformance, Counts, Evidence, Plan, Suspicion, Verdict};

use super::{Dose, Finding, Place, Points, Standing, Suspect};
use crate::event::Trial;

/// What a search knows about the changes of its plan.
pub struct Known<'a> {
    /// The changes.
    pub plan: &'a Plan,
    /// Atoms whose cells were not called in the failing run.
    pub not_run: &'a Arm,
    /// Whether the failing run told which cells were called.
    pub receipts: bool,
    /// Variants checked against the truth.
    pub conformance: &'a [Conformance],
    /// Cheap evidence.
    pub suspicions: &'a [Suspicion],
    /// Every run.
    pub trials: &'a [Trial],
    /// Changes that are blamed, by index, with what was shown.
    pub blamed: &'a BTreeMap<usize, String>,
    /// Changes that are cleared, by index, with step and reason.
    pub cleared: &'a BTreeMap<usize, (Evidence, String)>,
    /// Probability of each change before the search; even if empty.
    pub prior: &'a [f64],
    /// Probability of each change after the search; empty if no beliefs are kept.
    pub posterior: &'a [f64],
}

/// A row of the evidence table for each change.
pub fn suspects(known: &Known<'_>) -> Vec<Suspect> {
    known.plan.changes.iter().enumerate().map(|(index, change)| suspect(known, index, change)).collect()
}

fn suspect(known: &Known<'_>, index: usize, change: &Change) -> Suspect {
    let mut findings = vec![Finding {
        step: Evidence::E0,
        points: Points::Neutral,
        text: format!("differs between the ends: {}", change.delta),
    }];
    if known.receipts {
        let silent = change.atoms.iter().filter(|atom| known.not_run.contains(&atom.id)).count();
        let total = change.atoms.len();
        let (points, text) = match silent {
            0 => (Points::Neutral, "ran in the failing run".to_owned()),
            n if n == total => (Points::Clears, "did not run in the failing run (receipts)".to_owned()),
            n => (Points::Neutral, format!("ran on {} of {total} layers in the failing run", total - n)),
        };
        findings.push(Finding { step: Evidence::E1, points, text });
    }
    for suspicion in known.suspicions.iter().filter(|suspicion| suspicion.change == index) {
        let points = if suspicion.weight > 1.0 { Points::Accuses } else { Points::Neutral };
        findings.push(Finding {
            step: suspicion.step,
            points,
            text: format!("{} (weight {:.2})", suspicion.evidence, suspicion.weight),
        });
    }
    for check in known.conformance.iter().filter(|check| change.variants.contains(&check.variant)) {
        let (points, said) =
            if check.passed { (Points::Neutral, "passes") } else { (Points::Accuses, "fails") };
        findings.push(Finding {
            step: Evidence::E3,
            points,
            text: format!("{} {said} conformance: {}", check.variant, check.detail),
        });
    }
    let standing = if let Some(text) = known.blamed.get(&index) {
        findings.push(Finding { step: Evidence::E5, points: Points::Convicts, text: text.clone() });
        Standing::Guilty
    } else if let Some((step, text)) = known.cleared.get(&index) {
        if *step != Evidence::E1 {
            findings.push(Finding { step: *step, points: Points::Clears, text: text.clone() });
        }
        Standing::Cleared
    } else {
        if let Some(text) = failing_runs(known.trials, change) {
            findings.push(Finding { step: Evidence::E5, points: Points::Neutral, text });
        }
        Standing::Open
    };
    findings.sort_by_key(|finding| finding.step);
    let count = known.plan.changes.len() as f64;
    Suspect {
        change: change.title(),
        place: Place::of(change),
        layers: change.layers(),
        prior: known.prior.get(index).copied().unwrap_or(1.0 / count),
        posterior: known.posterior.get(index).copied(),
        standing,
        findings,
    }
}

/// In how many failing and passing runs an undecided change took part.
fn failing_runs(trials: &[Trial], change: &Change) -> Option<String> {
    let with = |verdict: Verdict| {
        let took_part = |trial: &&Trial| change.atoms.iter().any(|atom| trial.arm.contains(&atom.id));
        trials.iter().filter(took_part).filter(|trial| trial.outcome.verdict == verdict).count()
    };
    let (bad, good) = (with(Verdict::Bad), with(Verdict::Good));
    (bad + good > 0).then(|| format!("undecided: in {bad} failing and {good} passing runs"))
}

/// Failures against the number of layers: of the runs in which only the patch of change `index` was switched, on some of
/// its layers. What the change requires may be switched as well.
pub fn dose(plan: &Plan, trials: &[Trial], index: usize) -> Vec<Dose> {
    let Some(change) = plan.changes.get(index) else { return Vec::new() };
    let own: Arm = change.atoms.iter().map(|atom| atom.id).collect();
    let mut points: BTreeMap<Vec<usize>, Dose> = BTreeMap::new();
    for trial in trials.iter().filter(|trial| trial.axes.is_empty()) {
        let on: Arm = trial.arm.intersection(&own).copied().collect();
        if trial.outcome.verdict == Verdict::Skip || plan.with_required(&on) != trial.arm {
            continue;
        }
        let layers: Vec<usize> =
            change.atoms.iter().filter(|atom| on.contains(&atom.id)).filter_map(|atom| atom.layer).collect();
        if layers.is_empty() && !on.is_empty() {
            continue;
        }
        let point = points.entry(layers.clone()).or_insert_with(|| Dose {
            layers,
            counts: Counts::default(),
            metric: 0.0,
            bad: 0,
            trials: Vec::new(),
        });
        let runs = point.trials.len() as f64;
        point.metric = (point.metric * runs + trial.outcome.metric) / (runs + 1.0);
        point.counts.fail += trial.outcome.counts.fail;
        point.counts.total += trial.outcome.counts.total;
        point.bad += usize::from(trial.outcome.verdict == Verdict::Bad);
        point.trials.push(trial.number);
    }
    let mut points: Vec<Dose> = points.into_values().collect();
    points.sort_by(|a, b| (a.layers.len(), &a.layers).cmp(&(b.layers.len(), &b.layers)));
    // One point is no curve.
    if points.iter().filter(|point| !point.layers.is_empty()).count() < 2 { Vec::new() } else { points }
}
