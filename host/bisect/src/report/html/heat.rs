//! Cells against steps of evidence.

use std::fmt::Write as _;

use hotseam_target::Evidence;

use super::super::{Points, Report, Standing, Suspect, layers};
use super::escape;

const STEPS: [(Evidence, &str, &str); 6] = [
    (Evidence::E0, "E0", "configurations compared"),
    (Evidence::E1, "E1", "called in the failing run (receipts)"),
    (Evidence::E2, "E2", "the same call repeated"),
    (Evidence::E3, "E3", "compared with stock and truth on the same inputs"),
    (Evidence::E4, "E4", "output replaced by the good side's (by hand: hotseam graft)"),
    (Evidence::E5, "E5", "swapped, and judged by the oracle"),
];

/// One row a change, one column a step; with the findings in words below.
pub(super) fn table(out: &mut String, report: &Report) {
    if report.suspects.is_empty() {
        return;
    }
    let beliefs = report.suspects.iter().any(|suspect| suspect.posterior.is_some());
    out.push_str("<section class=\"long\">\n<h2>Evidence by change</h2>\n<ul class=\"key\">");
    for (points, said) in [
        (Points::Convicts, "convicts"),
        (Points::Accuses, "accuses"),
        (Points::Neutral, "looked at, says little"),
        (Points::Clears, "clears"),
    ] {
        let (class, sign) = look(points);
        let _ = write!(out, "<li><b class=\"{class}\">{sign}</b>{said}</li>");
    }
    out.push_str("<li>empty: not looked at</li></ul>\n<div class=\"wide\"><table class=\"heat\"><thead><tr><th scope=\"col\">change</th>");
    for (_, name, meaning) in STEPS {
        let _ = write!(out, "<th scope=\"col\" class=\"h\" title=\"{meaning}\">{name}</th>");
    }
    out.push_str("<th scope=\"col\" class=\"stand\">stands</th>");
    if beliefs {
        out.push_str(
            "<th scope=\"col\" class=\"n before\">before</th><th scope=\"col\" class=\"n\">after</th>",
        );
    }
    out.push_str("</tr></thead><tbody>\n");
    let columns = 8 + if beliefs { 2 } else { 0 };
    for seam in seams(report) {
        let _ = writeln!(
            out,
            "<tr class=\"seam\"><th colspan=\"{columns}\" scope=\"rowgroup\">{}</th></tr>",
            escape(seam)
        );
        let mut rows: Vec<&Suspect> = report.suspects.iter().filter(|s| s.place.seam == seam).collect();
        rows.sort_by_key(|suspect| match suspect.standing {
            Standing::Guilty => 0,
            Standing::Open => 1,
            Standing::Cleared => 2,
        });
        for suspect in rows {
            row(out, suspect, beliefs);
        }
    }
    out.push_str("</tbody></table></div>\n<ul class=\"key\">");
    for (_, name, meaning) in STEPS {
        let _ = write!(out, "<li>{name} {meaning}</li>");
    }
    out.push_str("</ul>\n<details><summary>Findings in words</summary>\n");
    for suspect in &report.suspects {
        let _ = write!(out, "<p><strong>{}</strong></p><ul>", escape(&suspect.change));
        for finding in &suspect.findings {
            let _ = write!(out, "<li>{:?}: {}</li>", finding.step, escape(&finding.text));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</details>\n</section>\n");
}

fn row(out: &mut String, suspect: &Suspect, beliefs: bool) {
    let place = [suspect.place.phase.as_str(), suspect.place.class.as_str(), &layers(&suspect.layers)]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let _ = write!(
        out,
        "<tr><td>{}<br><span class=\"soft\">{}</span></td>",
        escape(&place),
        escape(&suspect.place.delta)
    );
    for (step, name, _) in STEPS {
        let found: Vec<_> = suspect.findings.iter().filter(|finding| finding.step == step).collect();
        let Some(points) = found.iter().map(|finding| finding.points).max() else {
            out.push_str("<td class=\"h\"></td>");
            continue;
        };
        let texts: Vec<&str> = found.iter().map(|finding| finding.text.as_str()).collect();
        let (class, sign) = look(points);
        let _ = write!(
            out,
            "<td class=\"h\"><span class=\"{class}\" title=\"{name}: {}\">{sign}</span></td>",
            escape(&texts.join("; "))
        );
    }
    let (class, word) = match suspect.standing {
        Standing::Guilty => ("bad", "culprit"),
        Standing::Cleared => ("good", "cleared"),
        Standing::Open => ("warn", "open"),
    };
    let _ = write!(out, "<td class=\"k stand {class}\">{word}</td>");
    if beliefs {
        let after = suspect.posterior.map_or("–".to_owned(), percent);
        let _ =
            write!(out, "<td class=\"n before\">{}</td><td class=\"n\">{after}</td>", percent(suspect.prior));
    }
    out.push_str("</tr>\n");
}

/// Seams in order of their worst standing, then as they come.
fn seams(report: &Report) -> Vec<&str> {
    let mut seams: Vec<&str> = Vec::new();
    for standing in [Standing::Guilty, Standing::Open, Standing::Cleared] {
        for suspect in report.suspects.iter().filter(|suspect| suspect.standing == standing) {
            if !seams.contains(&suspect.place.seam.as_str()) {
                seams.push(&suspect.place.seam);
            }
        }
    }
    seams
}

fn look(points: Points) -> (&'static str, &'static str) {
    match points {
        Points::Clears => ("pass", "✓"),
        Points::Neutral => ("same", "·"),
        Points::Accuses => ("part", "!"),
        Points::Convicts => ("fail", "✗"),
    }
}

/// A probability as people read it, as HTML; the sign stays with its number.
pub(super) fn percent(probability: f64) -> String {
    let percent = probability * 100.0;
    match percent {
        p if p >= 99.95 => "100&nbsp;%".to_owned(),
        p if p >= 10.0 => format!("{p:.0}&nbsp;%"),
        p if p >= 0.1 => format!("{p:.1}&nbsp;%"),
        p if p > 0.0 => "&lt;0.1&nbsp;%".to_owned(),
        _ => "0&nbsp;%".to_owned(),
    }
}
