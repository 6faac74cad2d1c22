//! What a search is going to do, before it does it.

use std::path::Path;

use hotseam_bisect::log::{Answer, Line, Log};
use hotseam_bisect::{expected_runs, report};
use hotseam_target::{Arm, Plan, Target};
use serde_json::json;

use crate::args::ReportFormat;
use crate::failure::Failure;
use crate::terminal;

/// A few lines: how much there is to search, with which oracle, at which cost.
pub(super) fn overview(target: &dyn Target, budget: usize) -> String {
    let plan = target.plan();
    let mut patches: Vec<_> = plan.changes.iter().map(|change| (&change.seam, &change.delta)).collect();
    patches.sort();
    patches.dedup();
    format!(
        "{} -> {}: {} changes of {} patches\noracle: {}\nabout {} oracle runs for one culprit, {budget} allowed",
        plan.good,
        plan.bad,
        plan.changes.len(),
        patches.len(),
        target.oracle(),
        expected_runs(plan, target.noise()),
    )
}

/// Seconds of a run, and where they are known from.
struct Pace {
    seconds: f64,
    source: String,
}

/// Prints the changes, the expected runs and their time.
///
/// # Errors
/// If stdout cannot be written to, or the good end cannot be run.
pub(super) fn dry_run(
    target: &mut dyn Target,
    logs: Option<&Path>,
    oracle: Option<&String>,
    format: ReportFormat,
) -> Result<(), Failure> {
    let expected = expected_runs(target.plan(), target.noise());
    let pace = if target.plan().changes.is_empty() {
        Pace { seconds: 0.0, source: "nothing to run".to_owned() }
    } else {
        match logs.and_then(|logs| earlier(logs, oracle?)) {
            Some(pace) => pace,
            None => {
                let outcome = target.measure(&Arm::new())?;
                Pace { seconds: outcome.seconds, source: "one run of the good end".to_owned() }
            }
        }
    };
    let plan = target.plan();
    let minutes = expected as f64 * pace.seconds / 60.0;
    if format == ReportFormat::Json {
        let mut value = serde_json::to_value(plan)?;
        value["expected_runs"] = json!(expected);
        value["seconds_per_run"] = json!(pace.seconds);
        value["expected_minutes"] = json!(minutes);
        return Ok(terminal::json(&value)?);
    }
    let mut text = listing(plan);
    text +=
        &format!("about {expected} runs of {:.1} s ({}): {minutes:.1} minutes\n", pace.seconds, pace.source);
    Ok(terminal::data(&text)?)
}

fn listing(plan: &Plan) -> String {
    let mut text = String::new();
    for change in &plan.changes {
        let layers = report::ranges(&change.layers());
        text += &format!("{}\n    {}", change.place(), change.delta);
        if !layers.is_empty() {
            text += &format!("  (layers {layers})");
        }
        text.push('\n');
    }
    for note in &plan.notes {
        text += &format!("note: {note}\n");
    }
    text
}

/// The pace of the latest search with the same oracle among the logs in a directory.
fn earlier(dir: &Path, oracle: &String) -> Option<Pace> {
    let mut paths: Vec<_> =
        std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    // Names end in the time.
    paths.sort();
    paths.iter().rev().find_map(|path| {
        let log = Log::read(&std::fs::read(path).ok()?).ok()?;
        (log.header.facts.get("oracle") == Some(oracle)).then_some(())?;
        let seconds: Vec<f64> = log
            .lines
            .iter()
            .filter_map(|line| match line {
                Line::End { answer: Answer::Outcome(outcome), .. } => Some(outcome.seconds),
                _ => None,
            })
            .collect();
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        (!seconds.is_empty()).then(|| Pace { seconds: mean, source: format!("mean of {}", path.display()) })
    })
}
