//! A log for people.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use hotseam_target::Verdict;

use super::line::{Answer, Begun, Line};
use super::reader::Log;

/// The log as lines of text: what was asked, what came of it, what was undone.
pub fn listing(log: &Log) -> String {
    let header = &log.header;
    let mut out = String::new();
    let _ =
        writeln!(out, "{} -> {}: {} changes", header.plan.good, header.plan.bad, header.plan.changes.len());
    let _ = writeln!(out, "oracle   {}", header.oracle);
    let _ = writeln!(out, "version  hotseam {}", header.version);
    for (name, fact) in &header.facts {
        let _ = writeln!(out, "{name:<8} {fact}");
    }
    out.push('\n');
    let undone = undone(&log.lines);
    let mut begun: HashMap<usize, &Begun> = HashMap::new();
    for (index, line) in log.lines.iter().enumerate() {
        match line {
            Line::Start(start) => {
                if let Some(lost) = begun.insert(start.number, start) {
                    let _ = writeln!(out, "{}", run(lost, "crashed", "the program ended in this run"));
                }
            }
            Line::End { number, answer, .. } => {
                let Some(start) = begun.remove(number) else { continue };
                let (verdict, said) = describe(answer);
                let mut text = run(start, verdict, &said);
                if undone.contains(&index) {
                    text += "  (undone)";
                }
                let _ = writeln!(out, "{text}");
            }
            Line::Resume { .. } => {
                for (_, lost) in begun.drain() {
                    let _ = writeln!(out, "{}", run(lost, "crashed", "the program ended in this run"));
                }
                let _ = writeln!(out, "    resumed");
            }
            Line::Note { text } => {
                let _ = writeln!(out, "    {text}");
            }
            Line::Launch { id } => {
                let _ = writeln!(out, "    launch {id}");
            }
            Line::Bar { answer } => {
                let (verdict, said) = describe(answer);
                let _ = writeln!(out, "    good end again, for the bar: {verdict} {said}");
            }
            Line::Undo { number } => {
                let _ = writeln!(out, "    run {number} undone");
            }
            Line::Done { verdict } => {
                let _ = writeln!(out, "    verdict: {verdict}");
            }
            Line::Header(_)
            | Line::Digest { .. }
            | Line::Conformance { .. }
            | Line::Suspicions { .. }
            | Line::Handoff { .. } => {}
        }
    }
    let mut lost: Vec<&Begun> = begun.into_values().collect();
    lost.sort_by_key(|start| start.number);
    for start in lost {
        let _ = writeln!(out, "{}", run(start, "open", "no end: it runs now, or the program ended in it"));
    }
    out
}

fn run(start: &Begun, verdict: &str, said: &str) -> String {
    let axes: Vec<String> = start.axes.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    format!("#{:<3} {:<40} {verdict:<7} {said}", start.number, format!("{}{}", start.why, axes.concat()))
}

fn describe(answer: &Answer) -> (&'static str, String) {
    match answer {
        Answer::Outcome(outcome) => {
            let verdict = match outcome.verdict {
                Verdict::Good => "good",
                Verdict::Bad => "BAD",
                Verdict::Skip => "skip",
            };
            (verdict, format!("{} ({:.1} s)", outcome.summary, outcome.seconds))
        }
        Answer::Failed(failed) => ("none", hotseam_target::TargetError::from(failed.clone()).to_string()),
    }
}

/// Indices of the `end` lines that were undone.
fn undone(lines: &[Line]) -> HashSet<usize> {
    let mut standing: Vec<(usize, usize)> = Vec::new();
    let mut gone = HashSet::new();
    for (index, line) in lines.iter().enumerate() {
        match line {
            Line::End { number, .. } => standing.push((*number, index)),
            Line::Undo { number } => {
                if let Some(at) = standing.iter().rposition(|(known, _)| known == number) {
                    gone.insert(standing.remove(at).1);
                }
            }
            _ => {}
        }
    }
    gone
}
