//! Both ends side by side: needle grids, or what else the oracle measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use hotseam_target::{Outcome, Probe};

use super::super::Report;
use super::escape;
use super::parts::verdict_badge;

/// Grids of the two ends and, if a culprit was taken out, of the healed end.
pub(super) fn ends(out: &mut String, report: &Report) {
    let mut columns: Vec<(String, Option<&Outcome>, Option<&str>)> = vec![
        (
            format!("good end: {}", report.ends.good.assignment),
            report.ends.good.outcome.as_ref(),
            report.ends.good.digest.as_deref(),
        ),
        (
            format!("bad end: {}", report.ends.bad.assignment),
            report.ends.bad.outcome.as_ref(),
            report.ends.bad.digest.as_deref(),
        ),
    ];
    let healed = report.culprits.iter().rev().find_map(|culprit| culprit.necessary);
    if let Some(trial) = healed.and_then(|number| report.trials.iter().find(|trial| trial.number == number)) {
        let what = if report.culprits.len() > 1 { "culprits" } else { "culprit" };
        columns.push((format!("bad end without the {what}"), Some(&trial.outcome), Some(&trial.digest)));
    }
    if let Some(answer) = report.what_if.iter().find(|tried| tried.heals) {
        let settings: Vec<String> = answer.settings.iter().map(|s| format!("{} {}", s.name, s.to)).collect();
        columns.push((format!("good end with {}", settings.join(", ")), Some(&answer.outcome), None));
    }
    out.push_str("<section>\n<h2>Both ends</h2>\n");
    let shared = columns.iter().any(|(_, outcome, _)| outcome.is_some_and(|o| !o.grid.is_empty()));
    if shared {
        out.push_str(
            "<p class=\"soft\">One cell is one needle: how deep it stood in the text, and how long the text was. \
             ✓ recalled, ✗ lost.</p>\n",
        );
    }
    out.push_str("<div class=\"pair\">\n");
    for (name, outcome, digest) in columns {
        let _ = writeln!(out, "<div class=\"card\"><h3>{}</h3>", escape(&name));
        match outcome {
            Some(outcome) => {
                let _ =
                    writeln!(out, "<p>{} {}</p>", verdict_badge(outcome.verdict), escape(&outcome.summary));
                if outcome.grid.is_empty() {
                    if !outcome.detail.is_empty() {
                        let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(&outcome.detail));
                    }
                } else {
                    grid(out, &outcome.grid);
                }
            }
            None => out.push_str("<p class=\"soft\">not run</p>\n"),
        }
        if let Some(digest) = digest.filter(|digest| !digest.is_empty()) {
            let short: String = digest.chars().take(12).collect();
            let _ = writeln!(out, "<p class=\"soft\">digest <code>{}</code></p>", escape(&short));
        }
        out.push_str("</div>\n");
    }
    out.push_str("</div>\n</section>\n");
}

/// Depth down, length across.
fn grid(out: &mut String, probes: &[Probe]) {
    // Depths are shares; as thousandths they compare exactly.
    let depth = |probe: &Probe| (probe.depth * 1000.0).round() as i64;
    let lengths: BTreeSet<usize> = probes.iter().map(|probe| probe.length).collect();
    let depths: BTreeSet<i64> = probes.iter().map(depth).collect();
    let mut cells: BTreeMap<(i64, usize), (u32, u32)> = BTreeMap::new();
    for probe in probes {
        let cell = cells.entry((depth(probe), probe.length)).or_default();
        cell.0 += u32::from(probe.passed);
        cell.1 += 1;
    }
    out.push_str("<div class=\"wide\"><table class=\"grid\"><thead><tr><th scope=\"col\">depth</th>");
    for length in &lengths {
        let _ = write!(out, "<th scope=\"col\">{length}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &depths {
        let _ = write!(out, "<tr><th scope=\"row\">{:.0} %</th>", *row as f64 / 10.0);
        for length in &lengths {
            match cells.get(&(*row, *length)) {
                None => out.push_str("<td></td>"),
                Some((1, 1)) => out.push_str("<td class=\"pass\" title=\"recalled\">✓</td>"),
                Some((0, 1)) => out.push_str("<td class=\"fail\" title=\"lost\">✗</td>"),
                Some((passed, total)) => {
                    let class = match passed {
                        0 => "fail",
                        p if p == total => "pass",
                        _ => "part",
                    };
                    let _ = write!(out, "<td class=\"{class}\" title=\"recalled\">{passed}/{total}</td>");
                }
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}
