//! The report as JUnit XML: one test case a change.

use std::fmt::Write as _;

use super::escape::escape;
use super::{About, Points, Report, Standing, Suspect, headline};

/// The report for a CI server: a guilty change is a failure, a cleared one passes, one that is neither is skipped. A
/// search that came to no answer is an error of its own case, `verdict`.
pub fn junit(report: &Report, about: &About) -> String {
    let same: Vec<_> = report.exonerated.iter().filter(|cleared| cleared.place.delta.is_empty()).collect();
    let count = |standing: Standing| report.suspects.iter().filter(|s| s.standing == standing).count();
    let answered = matches!(report.verdict.exit_code(), 0 | 1);
    let errors = usize::from(!answered);
    let tests = report.suspects.len() + same.len() + 1;
    let (failures, skipped) = (count(Standing::Guilty), count(Standing::Open));
    let suite = format!("hotseam bisect {} -> {}", report.ends.good.assignment, report.ends.bad.assignment);
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let totals = format!(
        "tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\" time=\"{:.3}\"",
        report.seconds
    );
    let _ = writeln!(out, "<testsuites {totals}>");
    let _ = writeln!(out, "  <testsuite name=\"{}\" {totals}>", escape(&suite));
    let _ = writeln!(out, "    <properties>");
    let numbers = [("verdict", report.verdict.as_str().to_owned()), ("runs", report.runs.to_string())];
    let texts = [
        ("version", about.version.clone()),
        ("command", about.command.clone()),
        ("oracle", report.oracle.clone()),
    ];
    for (name, value) in numbers.iter().chain(&texts) {
        let _ = writeln!(out, "      <property name=\"{name}\" value=\"{}\"/>", escape(value));
    }
    let _ = writeln!(out, "    </properties>");
    case(
        &mut out,
        "bisect",
        "verdict",
        &if answered {
            format!("<system-out>{}</system-out>", escape(&headline(report)))
        } else {
            format!("<error type=\"{}\" message=\"{}\"/>", report.verdict.as_str(), escape(&headline(report)))
        },
    );
    for suspect in &report.suspects {
        case(&mut out, &suspect.place.seam, &suspect.change, &body(suspect));
    }
    for cleared in same {
        let evidence =
            format!("<system-out>{:?}: {}</system-out>", cleared.grade.step(), escape(&cleared.reason));
        case(&mut out, &cleared.place.seam, &cleared.change, &evidence);
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

fn body(suspect: &Suspect) -> String {
    let lines: Vec<String> =
        suspect.findings.iter().map(|finding| format!("{:?}: {}", finding.step, finding.text)).collect();
    let evidence = format!("<system-out>{}</system-out>", escape(&lines.join("\n")));
    match suspect.standing {
        Standing::Cleared => evidence,
        Standing::Open => format!("<skipped message=\"neither blamed nor cleared\"/>{evidence}"),
        Standing::Guilty => {
            let convicting = suspect.findings.iter().rev().find(|finding| finding.points == Points::Convicts);
            let message = convicting.map_or("culprit", |finding| finding.text.as_str());
            format!("<failure type=\"culprit\" message=\"{}\"/>{evidence}", escape(message))
        }
    }
}

fn case(out: &mut String, class: &str, name: &str, body: &str) {
    let _ = writeln!(
        out,
        "    <testcase classname=\"hotseam.{}\" name=\"{}\">{body}</testcase>",
        escape(class),
        escape(name)
    );
}
