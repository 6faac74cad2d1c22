//! The report for a terminal.

use std::fmt::Write as _;

use hotseam_target::Verdict;

use super::tree::{Leaf, Mark, tree};
use super::{End, Report, Word, layers};
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

/// One line for one run.
pub fn trial_line(trial: &Trial, left: Option<usize>, style: Style) -> String {
    let outcome = &trial.outcome;
    let mut line = format!(
        "#{:<2} {:<34} {} {:<18} {:>5.1} s",
        trial.number,
        shorten(&trial.why, 34),
        style.verdict(outcome.verdict),
        outcome.summary,
        outcome.seconds,
    );
    if let Some(left) = left {
        line += &style.dim(&format!("  {left} left"));
    }
    line
}

/// The whole report. Runs are not listed: they were printed as they happened; see [`trial_line`].
pub fn text(report: &Report, style: Style) -> String {
    let mut out = String::new();
    let color = match report.verdict {
        Word::Found => "31;1",
        Word::SameCode | Word::OracleAgrees => "32;1",
        _ => "33;1",
    };
    let _ = writeln!(
        out,
        "{} after {} oracle runs (budget {})",
        style.paint(color, report.verdict.as_str()),
        report.runs,
        report.budget_runs
    );
    let _ = writeln!(out, "{}", style.dim(&format!("oracle  {}", report.oracle)));
    end(&mut out, "good", &report.ends.good, style);
    end(&mut out, "bad", &report.ends.bad, style);

    for culprit in &report.culprits {
        let at =
            if culprit.layers.is_empty() { String::new() } else { format!("  {}", layers(&culprit.layers)) };
        let head = format!("{}  phase {}  class {}{at}", culprit.seam, culprit.phase, culprit.class);
        let _ = writeln!(out, "\n{} {}", style.mark(Mark::Guilty), style.bold(&head));
        wrap(&mut out, 4, &culprit.change, style);
        for other in &culprit.interacts_with {
            wrap(&mut out, 4, &format!("only together with {other}"), style);
        }
        for line in &culprit.evidence {
            wrap(&mut out, 4, &format!("- {line}"), style);
        }
    }

    let seams = tree(report);
    if !seams.is_empty() {
        out.push('\n');
    }
    for (seam, leaves) in seams {
        let _ = writeln!(out, "{}", style.bold(&seam));
        for Leaf { mark, place, delta, reason } in leaves {
            let subject = [place, delta].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(": ");
            let (subject, reason) = match (mark, subject.is_empty()) {
                // What makes a culprit one stands above.
                (Mark::Guilty, _) => (subject, None),
                (_, true) => (reason, None),
                (_, false) => (subject, Some(reason)),
            };
            // The mark takes the place of two columns of the first line's indent.
            let mut lines = String::new();
            wrap(&mut lines, 4, &subject, style);
            let _ = write!(out, "  {} {}", style.mark(mark), lines.trim_start());
            if let Some(reason) = reason {
                wrap(&mut out, 6, &reason, style);
            }
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

/// What to do next, for verdicts without a culprit.
pub(super) fn advice(report: &Report) -> Option<String> {
    let flagged = report.conformance.iter().any(|check| !check.passed);
    Some(match report.verdict {
        Word::Found => return None,
        Word::SameCode => {
            "Both ends resolve to the same code and options in every cell: nothing to test. Compare configuration \
             instead (`hotseam config print --effective`)."
                .to_owned()
        }
        Word::OracleAgrees if flagged => {
            "The oracle cannot tell the ends apart, but conformance flags variants above: some faults leave recall \
             whole. Try `oracle: {kind: kl}` or longer prompts."
                .to_owned()
        }
        Word::OracleAgrees => {
            "The oracle cannot tell the ends apart and every variant passes conformance. If users still see a fault, \
             it may be no patch: try the what-if axes (`--set engine.index_topk=...`, `engine.topology`, `engine.chunk`), \
             longer prompts, or `oracle: {kind: kl}`."
                .to_owned()
        }
        Word::GoodFails => {
            "The good end fails by itself, so no change can be blamed. Try the what-if axes: \
             `--set engine.index_topk=...`, key dtype, `engine.topology`, `engine.chunk`. The answer may be no patch."
                .to_owned()
        }
        Word::Inconclusive => {
            "No single answer. Open changes are marked `?`; narrow the bad end to them and run again.".to_owned()
        }
        Word::BudgetSpent => "Runs are used up: raise `bisect.budget_runs`.".to_owned(),
        Word::OracleBroken => "The oracle gave no verdict; see the note above.".to_owned(),
        Word::SecondSignature => {
            "The culprit fails in another way than the bad end: a second fault may hide behind it. Take it out of the \
             bad end and run again."
                .to_owned()
        }
    })
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
