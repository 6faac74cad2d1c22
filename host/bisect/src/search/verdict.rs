//! From what the search learnt to the report.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hotseam_target::{Counts, Noise, Verdict};

use super::blame::{entries, guilty, stock_is_wrong};
use super::clear::clear;
use super::hunt::{Hunt, Stop, counts_of};
use super::stats::{self, Tally};
use super::{Knowledge, expected_runs};
use crate::report::{self, Culprit, End, Ends, Exonerated, Rate, Rates, Report, Word};

/// The report of a search, however it ended.
pub(crate) fn report(hunt: Hunt<'_>, known: Knowledge, ended: Result<Word, Stop>, oracle: String) -> Report {
    let plan = &hunt.plan;
    let mut notes = plan.notes.clone();
    notes.extend(known.notes.iter().cloned());
    let mut verdict = match ended {
        Ok(word) => word,
        Err(Stop::Budget) => Word::BudgetSpent,
        Err(Stop::Relaunched) => Word::Inconclusive,
        Err(Stop::Target(error)) => {
            notes.push(describe_error(&error));
            Word::OracleBroken
        }
    };
    let bad_signature = known.bad.and_then(|number| signature(&hunt, number));
    notes.extend(other_signatures(&hunt, bad_signature.as_deref()));
    if let Some((fails, passes)) = hunt.contradiction() {
        notes.push(format!(
            "not monotone: run {fails} fails and run {passes}, which contains it, passes: one change heals another, so \
             there may be other failing sets"
        ));
    }
    let culprits: Vec<Culprit> = known.found.iter().flat_map(|found| entries(&hunt, &known, found)).collect();
    if verdict == Word::Found {
        let other_way = |culprit: &Culprit| signature(&hunt, culprit.sufficient) != bad_signature;
        if culprits.iter().any(other_way) {
            verdict = Word::SecondSignature;
        }
        let suspects = known.found.iter().flat_map(|found| &found.changes);
        let wrong: Vec<_> = suspects
            .filter_map(|&index| stock_is_wrong(&plan.changes[index], &known.conformance))
            .map(|check| check.variant.clone())
            .collect();
        if !wrong.is_empty() {
            verdict = Word::Inconclusive;
            notes.push(format!(
                "the ends differ there, but against the truth it is the good end that is wrong ({}): check it before \
                 blaming the change",
                wrong.join(", ")
            ));
        }
    }
    let (exonerated, open) = clear(&hunt, &known);
    let suspects = evidence(&hunt, &known, &exonerated);
    let end = |name: &str, number: Option<usize>| {
        let trial = number.and_then(|number| hunt.trials.get(number - 1));
        End {
            assignment: name.to_owned(),
            digest: trial.map(|trial| trial.digest.clone()),
            outcome: trial.map(|trial| trial.outcome.clone()),
        }
    };
    let launches: BTreeSet<u64> = hunt.trials.iter().map(|trial| trial.outcome.launch).collect();
    let noise = if hunt.counted { Noise::Counted } else { Noise::Exact };
    Report {
        verdict,
        exit_code: verdict.exit_code(),
        culprits,
        exonerated,
        open,
        runs: hunt.trials.len(),
        expected_runs: expected_runs(plan, noise),
        budget_runs: hunt.options.budget_runs,
        seconds: hunt.seconds(),
        launches: launches.len(),
        oracle,
        noise,
        confidence: hunt.options.confidence,
        rates: if hunt.counted { rates(&hunt, &known) } else { None },
        ends: Ends { good: end(&plan.good, known.good), bad: end(&plan.bad, known.bad) },
        suspects,
        handoff: known.handoff,
        what_if: known.what_if,
        conformance: known.conformance,
        notes,
        trials: hunt.trials,
    }
}

/// How what ran in trial `number` fails: the signature of the first of its runs that did.
fn signature(hunt: &Hunt<'_>, number: usize) -> Option<String> {
    let digest = &hunt.trials.get(number - 1)?.digest;
    let mut own = hunt.trials.iter().filter(|trial| trial.digest == *digest && trial.axes.is_empty());
    own.find(|trial| trial.outcome.verdict == Verdict::Bad).map(|trial| trial.outcome.signature.clone())
}

/// Runs that fail in another way than the bad end: faults of their own, which are kept and not followed.
fn other_signatures(hunt: &Hunt<'_>, bad: Option<&str>) -> Vec<String> {
    let Some(bad) = bad else { return Vec::new() };
    let others = hunt.trials.iter().filter(|trial| {
        trial.outcome.verdict == Verdict::Bad && trial.outcome.signature != bad && trial.axes.is_empty()
    });
    others
        .map(|trial| {
            format!(
                "run {} failed in another way ({}: {}): a second fault",
                trial.number, trial.outcome.signature, trial.outcome.summary
            )
        })
        .collect()
}

/// Failure rates of both ends in the launch of the search, or in all if there was none.
fn rates(hunt: &Hunt<'_>, known: &Knowledge) -> Option<Rates> {
    let of = |number: Option<usize>| {
        let digest = &hunt.trials.get(number? - 1)?.digest;
        let mut counts = Counts::default();
        for trial in hunt.trials.iter().filter(|trial| trial.digest == *digest && trial.axes.is_empty()) {
            if hunt.verified.is_none_or(|launch| launch == trial.outcome.launch) {
                let run = counts_of(&trial.outcome);
                counts.fail += run.fail;
                counts.total += run.total;
            }
        }
        Some(counts)
    };
    let (good, bad) = (of(known.good)?, of(known.bad)?);
    let rate = |counts: Counts| {
        let tally = Tally::from(counts);
        let (low, high) = stats::interval(tally);
        Rate { counts, mean: tally.mean(), low, high }
    };
    Some(Rates { good: rate(good), bad: rate(bad), fisher: stats::fisher(good, bad) })
}

/// The table of all changes with what is known about them.
fn evidence(hunt: &Hunt<'_>, known: &Knowledge, exonerated: &[Exonerated]) -> Vec<report::Suspect> {
    let mut blamed = BTreeMap::new();
    let mut cleared = BTreeMap::new();
    let by_title: HashMap<&str, &Exonerated> =
        exonerated.iter().map(|entry| (entry.change.as_str(), entry)).collect();
    for (index, change) in hunt.plan.changes.iter().enumerate() {
        if let Some(found) = known.found.iter().find(|found| guilty(&hunt.plan, found, change)) {
            let text = match found.necessary {
                Some(trial) => {
                    format!("fails with it (run {}), passes without it (run {trial})", found.sufficient)
                }
                None => format!("fails with it (run {})", found.sufficient),
            };
            blamed.insert(index, text);
        } else if let Some(entry) = by_title.get(change.title().as_str()) {
            cleared.insert(index, (entry.grade.step(), entry.reason.clone()));
        }
    }
    let total: f64 = known.suspects.iter().map(|suspect| suspect.weight).sum();
    let mut prior = Vec::new();
    if total > 0.0 {
        prior = vec![0.0; hunt.plan.changes.len()];
        for suspect in &known.suspects {
            prior[suspect.change] = suspect.weight / total;
        }
    }
    let posterior: Vec<f64> = match hunt.beliefs.iter().any(Option::is_some) {
        true => hunt.beliefs.iter().map(|belief| belief.unwrap_or(0.0)).collect(),
        false => Vec::new(),
    };
    report::suspects(&report::Known {
        plan: &hunt.plan,
        not_run: &known.not_run,
        receipts: !known.suspects.is_empty(),
        conformance: &known.conformance,
        suspicions: &known.suspicions,
        trials: &hunt.trials,
        blamed: &blamed,
        cleared: &cleared,
        prior: &prior,
        posterior: &posterior,
    })
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
