//! The report as Markdown, to paste into an issue.

use std::fmt::Write as _;

use hotseam_target::{Noise, Verdict};

use super::tree::{Mark, tree};
use super::{About, Culprit, Rate, Report, advice, duration, headline, layers};

/// The report as Markdown.
pub fn markdown(report: &Report, about: &About) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "### hotseam bisect: {}\n", report.verdict.title());
    let _ = writeln!(out, "`verdict: {}`: {}\n", report.verdict.as_str(), plain(&headline(report)));
    for culprit in &report.culprits {
        guilty(&mut out, report, culprit);
    }
    settings(&mut out, report);
    handoff(&mut out, report);
    let _ = writeln!(out, "| end | assignment | digest | oracle |\n| --- | --- | --- | --- |");
    for (side, end) in [("good", &report.ends.good), ("bad", &report.ends.bad)] {
        let digest: String = end.digest.iter().flat_map(|digest| digest.chars()).take(12).collect();
        let result = end
            .outcome
            .as_ref()
            .map_or("not run".to_owned(), |o| format!("{} {}", word(o.verdict), o.summary));
        let _ = writeln!(out, "| {side} | {} | {digest} | {} |", code(&end.assignment), cell(&result));
    }
    let _ = writeln!(
        out,
        "\nOracle: {}. {} runs in {}.\n",
        plain(&report.oracle),
        report.runs,
        duration(report.seconds)
    );
    if let Some(rates) = &report.rates {
        let rate = |Rate { counts, mean, low, high }: &Rate| {
            format!("{counts} failed, rate {mean:.3} ({low:.3} to {high:.3} at 95 %)")
        };
        let _ = writeln!(
            out,
            "- without the culprit: {}\n- with it: {}\n- Fisher's exact p: {:.2e}, {} launches\n",
            rate(&rates.good),
            rate(&rates.bad),
            rates.fisher,
            report.launches
        );
    }
    changes(&mut out, report);
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
    runs(&mut out, report);
    let _ = writeln!(out, "\n<details><summary>Versions</summary>\n\n- hotseam {}", plain(&about.version));
    for (name, fact) in &about.facts {
        let _ = writeln!(out, "- {}: {}", plain(name), code(fact));
    }
    let _ = writeln!(out, "\n</details>\n\nReproduce: {}", code(&about.command));
    out
}

fn guilty(out: &mut String, report: &Report, culprit: &Culprit) {
    let at = if culprit.layers.is_empty() { String::new() } else { format!(", {}", layers(&culprit.layers)) };
    let _ = writeln!(
        out,
        "**Culprit**: {}, phase {}, class {}{at}: {}\n",
        code(&culprit.seam),
        plain(&culprit.phase),
        plain(&culprit.class),
        code(&culprit.change)
    );
    if !culprit.selector.is_empty() {
        let _ =
            writeln!(out, "- smallest selector {} with {}", code(&culprit.selector), code(&culprit.variant));
    }
    for other in &culprit.interacts_with {
        let _ = writeln!(out, "- only together with {}", code(other));
    }
    for (what, number) in
        [("good end with it", Some(culprit.sufficient)), ("bad end without it", culprit.necessary)]
    {
        let trial = number.and_then(|number| report.trials.iter().find(|trial| trial.number == number));
        if let Some(trial) = trial {
            let _ = writeln!(
                out,
                "- {what}: {} {} (run {})",
                word(trial.outcome.verdict),
                plain(&trial.outcome.summary),
                trial.number
            );
        }
    }
    if let Some(probability) = culprit.probability {
        let _ = writeln!(out, "- probability {probability:.3}");
    }
    for line in &culprit.evidence {
        let _ = writeln!(out, "- {}", plain(line));
    }
    out.push('\n');
}

fn settings(out: &mut String, report: &Report) {
    if report.what_if.is_empty() {
        return;
    }
    let _ =
        writeln!(out, "| setting | configured | tried | good end | run |\n| --- | --- | --- | --- | --- |");
    for tried in &report.what_if {
        let join = |part: fn(&super::Setting) -> &str| {
            cell(&tried.settings.iter().map(part).collect::<Vec<_>>().join(", "))
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} {}{} | {} |",
            join(|s| &s.name),
            join(|s| &s.from),
            join(|s| &s.to),
            word(tried.outcome.verdict),
            cell(&tried.outcome.summary),
            if tried.heals { ", **heals**" } else { "" },
            tried.trial
        );
    }
    out.push('\n');
}

/// What hand-offs of the bad end brought.
fn handoff(out: &mut String, report: &Report) {
    let Some(handoff) = &report.handoff else { return };
    let _ = writeln!(
        out,
        "Hand-off of the bad end through {}, audited over {} requests:\n\n\
         | | component | layers | items | as sent | first damage |\n| --- | --- | --- | --- | --- | --- |",
        code(&handoff.transport),
        handoff.requests
    );
    for own in &handoff.components {
        let on: Vec<usize> = own.layers.iter().map(|layer| *layer as usize).collect();
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} |",
            if own.changed() { "✗" } else { "✓" },
            cell(&own.component),
            super::ranges(&on),
            own.items,
            own.whole,
            cell(own.damage.first().map_or("", |damage| &damage.what))
        );
    }
    out.push('\n');
}

/// Every change with its mark and the grade of its evidence.
fn changes(out: &mut String, report: &Report) {
    let seams = tree(report);
    if seams.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "| | seam | where | change | grade | evidence |\n| --- | --- | --- | --- | --- | --- |"
    );
    for (seam, leaves) in seams {
        for leaf in leaves {
            let mark = match leaf.mark {
                Mark::Guilty => "✗",
                Mark::Clear => "✓",
                Mark::Open => "?",
            };
            let delta = if leaf.delta.is_empty() { String::new() } else { code(&leaf.delta) };
            let grade = leaf.grade.map_or(String::new(), |step| format!("{step:?}"));
            let _ = writeln!(
                out,
                "| {mark} | {} | {} | {delta} | {grade} | {} |",
                cell(&seam),
                cell(&leaf.place),
                cell(&leaf.reason)
            );
        }
    }
}

fn runs(out: &mut String, report: &Report) {
    let counted = report.noise == Noise::Counted;
    let _ = writeln!(out, "\n<details><summary>{} runs</summary>\n", report.trials.len());
    let (head, rule) = if counted { (" failed | launch |", " --- | --- |") } else { ("", "") };
    let _ = writeln!(
        out,
        "| # | arm | verdict | measured |{head} seconds |\n| --- | --- | --- | --- |{rule} --- |"
    );
    for trial in &report.trials {
        let outcome = &trial.outcome;
        let draws =
            if counted { format!(" {} | {} |", outcome.counts, outcome.launch) } else { String::new() };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} |{draws} {:.1} |",
            trial.number,
            cell(&trial.why),
            word(outcome.verdict),
            cell(&outcome.summary),
            outcome.seconds
        );
    }
    let _ = writeln!(out, "\n</details>");
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "good",
        Verdict::Bad => "BAD",
        Verdict::Skip => "skip",
    }
}

/// Inline code; a backtick inside would end it.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "'").replace('|', "\\|").replace(['\n', '\r'], " "))
}

fn cell(text: &str) -> String {
    plain(text).replace('|', "\\|")
}

/// Text on one line that makes no tags, no code and no links. Issue trackers render HTML.
fn plain(text: &str) -> String {
    text.replace(['\n', '\r'], " ").replace('<', "&lt;").replace('`', "\\`").replace("](", "]\\(")
}
