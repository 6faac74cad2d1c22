//! The report for a terminal.

use std::fmt::Write as _;

use hotseam_target::Verdict;

use super::tree::{Leaf, Mark, tree};
use super::{Culprit, End, Report, Word, advice, duration, headline, layers};
use crate::event::Trial;

/// How text is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Colours by ANSI escapes.
    pub color: bool,
    /// Columns; longer lines are wrapped.
    pub width: usize,
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn verdict(self, verdict: Verdict) -> String {
        match verdict {
            Verdict::Good => self.paint("32", "good"),
            Verdict::Bad => self.paint("31;1", "BAD "),
            Verdict::Skip => self.paint("33", "skip"),
        }
    }

    fn mark(self, mark: Mark) -> String {
        match mark {
            Mark::Guilty => self.paint("31;1", "✗"),
            Mark::Clear => self.paint("32", "✓"),
            Mark::Open => self.paint("33", "?"),
        }
    }

    fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }
}

/// One line for one run: what was asked, what came of it, and how the search stands then.
pub fn trial_line(trial: &Trial, style: Style) -> String {
    let outcome = &trial.outcome;
    let result = format!("{:<16} {:>5.1} s", outcome.summary, outcome.seconds);
    let mut stands = Vec::new();
    if let Some(left) = trial.after.left {
        stands.push(format!("{left} left"));
    }
    if let Some(runs) = trial.after.runs_left {
        stands.push(format!("~{:.0} runs", runs.max(0.0)));
    }
    if let Some(top) = trial.after.posterior.as_ref().and_then(|posterior| posterior.top.first()) {
        stands.push(format!("P(top) {:.2}", top.probability));
    }
    let stands = if stands.is_empty() { String::new() } else { format!("  {}", stands.join(", ")) };
    // The number, the verdict and the spaces between take 10 columns.
    let taken = 10 + result.chars().count() + stands.chars().count();
    let room = style.width.saturating_sub(taken).clamp(12, 40);
    format!(
        "#{:<2} {:<room$} {} {result}{}",
        trial.number,
        shorten(&trial.why, room),
        style.verdict(outcome.verdict),
        style.dim(&stands)
    )
}

/// The whole report. Runs are not listed: they were printed as they happened; see [`trial_line`].
pub fn text(report: &Report, style: Style) -> String {
    let mut out = String::new();
    let color = match report.verdict {
        Word::Found | Word::SecondSignature | Word::OracleBroken => "31;1",
        Word::SameCode | Word::OracleAgrees | Word::NoPatch => "32;1",
        _ => "33;1",
    };
    let verdict = format!("verdict: {}", report.verdict.as_str());
    let _ = writeln!(
        out,
        "{}, {} oracle runs of {}, {}",
        style.paint(color, &verdict),
        report.runs,
        report.budget_runs,
        duration(report.seconds)
    );
    wrap(&mut out, 0, &headline(report), style);
    wrap(&mut out, 0, &format!("oracle {}", report.oracle), style);
    end(&mut out, "good", &report.ends.good, style);
    end(&mut out, "bad", &report.ends.bad, style);
    rates(&mut out, report, style);

    for culprit in &report.culprits {
        guilty(&mut out, culprit, style);
    }
    settings(&mut out, report, style);
    handoff(&mut out, report, style);

    let seams = tree(report);
    if !seams.is_empty() {
        out.push('\n');
    }
    for (seam, leaves) in seams {
        let _ = writeln!(out, "{}", style.bold(&seam));
        let last = leaves.len().saturating_sub(1);
        for (index, leaf) in leaves.iter().enumerate() {
            branch(&mut out, leaf, index == last, style);
        }
    }

    let failed: Vec<_> = report.conformance.iter().filter(|c| !c.passed).collect();
    if !report.conformance.is_empty() {
        let passed = report.conformance.len() - failed.len();
        let _ = writeln!(
            out,
            "\n{}  {passed} of {} variants pass",
            style.bold("conformance"),
            report.conformance.len()
        );
        for check in failed {
            let _ = writeln!(out, "  {} {}", style.mark(Mark::Guilty), check.variant);
            wrap(&mut out, 6, &check.detail, style);
        }
    }
    for note in &report.notes {
        wrap(&mut out, 0, &format!("note: {note}"), style);
    }
    if let Some(advice) = advice(report) {
        out.push('\n');
        wrap(&mut out, 0, &advice, style);
    }
    out
}

fn guilty(out: &mut String, culprit: &Culprit, style: Style) {
    let at = if culprit.layers.is_empty() { String::new() } else { format!("  {}", layers(&culprit.layers)) };
    let head = format!("{}  phase {}  class {}{at}", culprit.seam, culprit.phase, culprit.class);
    let _ = writeln!(out, "\n{} {}", style.mark(Mark::Guilty), style.bold(&head));
    wrap(out, 4, &culprit.change, style);
    for other in &culprit.interacts_with {
        wrap(out, 4, &format!("only together with {other}"), style);
    }
    if !culprit.selector.is_empty() {
        wrap(out, 4, &format!("selector {}", culprit.selector), style);
    }
    if let Some(phases) = &culprit.phases {
        wrap(out, 4, &format!("written in {}, read in {}", phases.writer, phases.reader), style);
    }
    if let Some(probability) = culprit.probability {
        wrap(out, 4, &format!("probability {probability:.3}"), style);
    }
    for line in &culprit.evidence {
        wrap(out, 4, &format!("- {line}"), style);
    }
    for point in &culprit.dose {
        let on = if point.layers.is_empty() { "no layer".to_owned() } else { layers(&point.layers) };
        let verdict = if point.bad > 0 { Verdict::Bad } else { Verdict::Good };
        let _ = writeln!(
            out,
            "    dose {:<2} {} {} failed, {on}",
            point.layers.len(),
            style.verdict(verdict),
            point.counts
        );
    }
}

fn settings(out: &mut String, report: &Report, style: Style) {
    if report.what_if.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", style.bold("what if: the good end with other settings"));
    for tried in &report.what_if {
        let names: Vec<String> =
            tried.settings.iter().map(|s| format!("{} {} -> {}", s.name, s.from, s.to)).collect();
        let heals = if tried.heals { style.bold("  heals") } else { String::new() };
        let _ = writeln!(
            out,
            "  {:<34} {} {}{heals}  (run {})",
            names.join(", "),
            style.verdict(tried.outcome.verdict),
            tried.outcome.summary,
            tried.trial
        );
    }
}

/// What hand-offs of the bad end brought, a line a component.
fn handoff(out: &mut String, report: &Report, style: Style) {
    let Some(handoff) = &report.handoff else { return };
    let head = format!("hand-off of the bad end, audited over {} requests", handoff.requests);
    let _ = writeln!(out, "\n{}  {}", style.bold(&head), style.dim(&handoff.transport));
    for own in &handoff.components {
        let mark = if own.changed() { Mark::Guilty } else { Mark::Clear };
        let on: Vec<usize> = own.layers.iter().map(|layer| *layer as usize).collect();
        let _ = writeln!(
            out,
            "  {} {:<12} {:<14} {} of {} items as sent",
            style.mark(mark),
            own.component,
            layers(&on),
            own.whole,
            own.items
        );
        for damage in &own.damage {
            wrap(out, 6, &damage.what, style);
        }
    }
}

fn rates(out: &mut String, report: &Report, style: Style) {
    let Some(rates) = &report.rates else { return };
    for (name, rate) in [("without the culprit", &rates.good), ("with it", &rates.bad)] {
        let text = format!(
            "rate {name}: {:.3} ({:.3} to {:.3} at 95 %), {} failed",
            rate.mean, rate.low, rate.high, rate.counts
        );
        wrap(out, 0, &text, style);
    }
    let text = format!("Fisher's exact p {:.2e}, {} launches", rates.fisher, report.launches);
    wrap(out, 0, &text, style);
}

/// One leaf of the tree with its evidence.
fn branch(out: &mut String, leaf: &Leaf, last: bool, style: Style) {
    let (fork, bar) = if last { ("└─", "  ") } else { ("├─", "│ ") };
    let subject = [&leaf.place, &leaf.delta]
        .into_iter()
        .filter(|s| !s.is_empty())
        .cloned()
        .collect::<Vec<_>>()
        .join(": ");
    let grade = leaf.grade.map_or(String::new(), |step| format!("{step:?} "));
    let reason = format!("{grade}{}", leaf.reason);
    let (subject, reason) = match (leaf.mark, subject.is_empty()) {
        // What makes a culprit one stands above.
        (Mark::Guilty, _) => (subject, None),
        (_, true) => (reason, None),
        (_, false) => (subject, Some(reason)),
    };
    let inner = Style { width: style.width.saturating_sub(5), ..style };
    let mut text = String::new();
    wrap(&mut text, 0, &subject, inner);
    let mut lines = text.lines();
    let _ = writeln!(out, "{fork} {} {}", style.mark(leaf.mark), lines.next().unwrap_or_default());
    let mut rest: Vec<String> = lines.map(str::to_owned).collect();
    if let Some(reason) = reason {
        let mut text = String::new();
        wrap(&mut text, 2, &reason, inner);
        rest.extend(text.lines().map(|line| style.dim(line)));
    }
    for line in rest {
        let _ = writeln!(out, "{bar}   {line}");
    }
}

fn end(out: &mut String, side: &str, end: &End, style: Style) {
    let name = &end.assignment;
    let digest = end.digest.as_ref().map_or(String::new(), |d| format!(" {}", &d[..d.len().min(12)]));
    let result = match &end.outcome {
        Some(outcome) => format!("{} {}", style.verdict(outcome.verdict), outcome.summary),
        None => "not run".to_owned(),
    };
    let _ = writeln!(out, "{side:<5} {name}{}  {result}", style.dim(&digest));
}

fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

/// `text` in lines of at most the style's width, indented; a word longer than a line stands alone.
fn wrap(out: &mut String, indent: usize, text: &str, style: Style) {
    let pad = " ".repeat(indent);
    let mut line = pad.clone();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > style.width {
            let _ = writeln!(out, "{line}");
            line.clone_from(&pad);
            line += if text.starts_with("- ") { "  " } else { "" };
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line += word;
        empty = false;
    }
    let _ = writeln!(out, "{line}");
}
