//! Stages of swaps in words.

use hotseam_slots::{MemberStep, SwapEvent, SwapRecord, SwapStage};

use super::short;

/// A stage with its swap, as one line.
pub(super) fn event(event: &SwapEvent) -> String {
    format!("swap {} {}: {}", event.id, event.assignment, words(&event.stage))
}

/// A swap, past or running, as one line.
pub(super) fn record(record: &SwapRecord) -> String {
    let stage = record.end.as_ref().or(record.stage.as_ref());
    let stage = stage.map_or_else(|| "being planned".to_owned(), words);
    let probation = match (&record.end, &record.stage) {
        (None, Some(SwapStage::Committed { .. })) => "; in probation",
        _ => "",
    };
    format!("{} {}: {} ({}): {stage}{probation}", record.id, record.assignment, record.change, record.who)
}

/// What a stage says.
pub(super) fn words(stage: &SwapStage) -> String {
    match stage {
        SwapStage::Planned { cells, layouts, ms } => {
            let moved = match layouts {
                0 => String::new(),
                count => format!(", {}", counted(*count, "layout", "layouts")),
            };
            format!("planned in {ms} ms: {} to change{moved}", counted(*cells, "cell", "cells"))
        }
        SwapStage::Conformed { variant, hash, cached: true, .. } => {
            format!("conforms, as is remembered of {}: {variant}", short(hash))
        }
        SwapStage::Conformed { variant, cases, ms, .. } => {
            format!("conforms in {} ({ms} ms): {variant}", counted(*cases, "case", "cases"))
        }
        SwapStage::Shadowed { steps, calls, worst, cell } => {
            let place = cell.map_or_else(String::new, |cell| format!(" at {cell}"));
            let steps = counted(*steps as usize, "step", "steps");
            format!("ran beside the old for {steps}, {calls} calls; largest difference {worst:.1e}{place}")
        }
        SwapStage::Member { worker, reached, message } => {
            let message = message.as_ref().map_or_else(String::new, |message| format!(": {message}"));
            format!("worker {worker} {}{message}", member(*reached))
        }
        SwapStage::Draining { left } => format!("draining, {} left", counted(*left, "sequence", "sequences")),
        SwapStage::Committed { cells, micros } => {
            format!(
                "in force, {} changed; the table was put in place in {micros} us",
                counted(*cells, "cell", "cells")
            )
        }
        SwapStage::Retried { message, .. } => {
            format!("a step failed and was repeated on the old variants: {message}")
        }
        SwapStage::Kept { steps, recomputed, latency } => {
            let latency = latency.map_or_else(String::new, |factor| format!(", step time x{factor:.2}"));
            let again = match recomputed {
                0 => String::new(),
                count => format!(", {} prefilled again", counted(*count, "sequence", "sequences")),
            };
            format!("kept, after {} in probation{latency}{again}", counted(*steps as usize, "step", "steps"))
        }
        SwapStage::AlreadyActive => "already so".to_owned(),
        SwapStage::Refused { message, .. } => format!("refused: {message}"),
        SwapStage::RolledBack { message, .. } => format!("rolled back: {message}"),
        SwapStage::Retired { ms } => format!("what nobody can go back to any more has ended, after {ms} ms"),
        SwapStage::RetireStuck { holders, ms } => {
            format!(
                "E-PLUG-503 the old variants are still in use after {ms} ms, by {}",
                counted(*holders, "holder", "holders")
            )
        }
        SwapStage::MappedOverLimit { mapped, limit } => format!(
            "E-PLUG-504 {mapped} plugin files are mapped, the limit is {limit}; code is never unmapped, restart soon"
        ),
    }
}

fn member(step: MemberStep) -> &'static str {
    match step {
        MemberStep::Asked => "is asked",
        MemberStep::Prepared => "is ready",
        MemberStep::Quiet => "has nothing of the old layout on the way",
        MemberStep::Committed => "has committed",
        MemberStep::Well => "is well",
        MemberStep::Kept => "keeps it",
        MemberStep::Back => "is back",
        MemberStep::Failed => "does not go along",
        MemberStep::Gone => "is gone",
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
