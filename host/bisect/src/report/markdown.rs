//! The report as Markdown, to paste into an issue.

use std::fmt::Write as _;

use hotseam_target::Verdict;

use super::text::advice;
use super::tree::{Mark, tree};
use super::{Report, layers};

/// The report as Markdown. `command` reproduces it.
pub fn markdown(report: &Report, command: &str) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "### Hotseam bisect: {}\n", report.verdict.as_str());
    for culprit in &report.culprits {
        let at =
            if culprit.layers.is_empty() { String::new() } else { format!(", {}", layers(&culprit.layers)) };
        let _ = writeln!(
            out,
            "**Culprit**: `{}`, phase {}, class {}{at}: {}\n",
            culprit.seam,
            culprit.phase,
            culprit.class,
            code(&culprit.change)
        );
        for other in &culprit.interacts_with {
            let _ = writeln!(out, "- only together with {}", code(other));
        }
        for line in &culprit.evidence {
            let _ = writeln!(out, "- {}", plain(line));
        }
        out.push('\n');
    }
    let _ = writeln!(out, "| end | assignment | digest | oracle |\n| --- | --- | --- | --- |");
    for (side, end) in [("good", &report.ends.good), ("bad", &report.ends.bad)] {
        let digest = end.digest.as_deref().map_or("", |digest| &digest[..digest.len().min(12)]);
        let result = end
            .outcome
            .as_ref()
            .map_or("not run".to_owned(), |o| format!("{} {}", word(o.verdict), o.summary));
        let _ = writeln!(out, "| {side} | {} | {digest} | {} |", code(&end.assignment), cell(&result));
    }
    let _ = writeln!(out, "\nOracle: {}. {} runs.\n", plain(&report.oracle), report.runs);

    let seams = tree(report);
    if !seams.is_empty() {
        let _ = writeln!(out, "| | seam | where | change | evidence |\n| --- | --- | --- | --- | --- |");
    }
    for (seam, leaves) in seams {
        for leaf in leaves {
            let mark = match leaf.mark {
                Mark::Guilty => "✗",
                Mark::Clear => "✓",
                Mark::Open => "?",
            };
            let delta = if leaf.delta.is_empty() { String::new() } else { code(&leaf.delta) };
            let _ = writeln!(out, "| {mark} | {seam} | {} | {delta} | {} |", leaf.place, cell(&leaf.reason));
        }
    }
    let failed: Vec<_> = report.conformance.iter().filter(|check| !check.passed).collect();
    if !failed.is_empty() {
        let _ = writeln!(out, "\nConformance fails for:\n");
        for check in failed {
            let _ = writeln!(out, "- {}: {}", code(&check.variant), plain(&check.detail));
        }
    }
    for note in &report.notes {
        let _ = writeln!(out, "\nNote: {}", plain(note));
    }
    if let Some(advice) = advice(report) {
        let _ = writeln!(out, "\n{advice}");
    }
    let _ = writeln!(out, "\n<details><summary>{} runs</summary>\n", report.trials.len());
    let _ = writeln!(out, "| # | arm | verdict | measured | seconds |\n| --- | --- | --- | --- | --- |");
    for trial in &report.trials {
        let outcome = &trial.outcome;
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {:.1} |",
            trial.number,
            cell(&trial.why),
            word(outcome.verdict),
            cell(&outcome.summary),
            outcome.seconds
        );
    }
    let _ = writeln!(out, "\n</details>\n\nReproduce: {}", code(command));
    out
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "good",
        Verdict::Bad => "BAD",
    }
}

/// Inline code; a backtick inside would end it.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "'").replace('|', "\\|").replace('\n', " "))
}

fn cell(text: &str) -> String {
    plain(text).replace('|', "\\|")
}

fn plain(text: &str) -> String {
    text.replace('\n', " ")
}
