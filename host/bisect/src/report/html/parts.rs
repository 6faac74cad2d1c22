//! The sections that are text and tables.

use std::fmt::Write as _;

use hotseam_target::{Noise, Verdict};

use super::super::{About, Culprit, Grade, Rate, Report, advice, duration, layers};
use super::heat::percent;
use super::{chart, escape, lead, tone};

pub(super) fn verdict_badge(verdict: Verdict) -> String {
    let (class, word) = verdict_look(verdict);
    format!("<span class=\"badge {class}\">{word}</span>")
}

fn verdict_look(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Good => ("good", "good"),
        Verdict::Bad => ("bad", "bad"),
        Verdict::Skip => ("warn", "skip"),
    }
}

/// Verdict, sentence and numbers.
pub(super) fn head(out: &mut String, report: &Report) {
    let _ = write!(
        out,
        "<header>\n<span class=\"badge {}\">{}</span>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>\n",
        tone(report.verdict),
        report.verdict.as_str(),
        capital(report.verdict.title()),
        lead(report)
    );
    if let Some(advice) = advice(report) {
        let _ = writeln!(out, "<p>{}</p>", code_marked(&advice));
    }
    out.push_str("<dl class=\"facts\">");
    let mut fact = |name: &str, value: &str| {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
    };
    fact("oracle runs", &format!("{} of {} allowed", report.runs, report.budget_runs));
    if report.expected_runs > 0 {
        fact("expected at the start", &format!("{} runs", report.expected_runs));
    }
    fact("time in the oracle", &duration(report.seconds));
    fact("changes", &changes(report));
    if report.noise == Noise::Counted {
        fact("launches", &report.launches.to_string());
        fact("confidence asked for", &format!("{:.0} %", report.confidence * 100.0));
    }
    let _ =
        write!(out, "</dl>\n<p class=\"soft oracle\">Oracle: {}</p>\n</header>\n", escape(&report.oracle));
}

/// Text with the code in it, which stands between backticks, as such.
fn code_marked(text: &str) -> String {
    escape(text).split('`').enumerate().fold(String::new(), |mut out, (index, part)| {
        if index % 2 == 1 {
            let _ = write!(out, "<code>{part}</code>");
        } else {
            out.push_str(part);
        }
        out
    })
}

fn changes(report: &Report) -> String {
    let count = |number: usize, word: &str| (number > 0).then(|| format!("{number} {word}"));
    let parts: Vec<String> = [
        count(report.culprits.len(), "guilty"),
        count(report.exonerated.len(), "cleared"),
        count(report.open.len(), "open"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    escape(&(first + chars.as_str()))
}

/// A card each.
pub(super) fn culprits(out: &mut String, report: &Report) {
    if report.culprits.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "<section>\n<h2>{}</h2>\n",
        if report.culprits.len() == 1 {
            "Culprit".to_owned()
        } else {
            format!("{} culprits", report.culprits.len())
        }
    );
    for culprit in &report.culprits {
        card(out, report, culprit);
    }
    out.push_str("</section>\n");
}

fn card(out: &mut String, report: &Report, culprit: &Culprit) {
    let mut at = format!("{}, {}, class {}", culprit.seam, culprit.phase, culprit.class);
    if !culprit.layers.is_empty() {
        at += &format!(", {}", layers(&culprit.layers));
    }
    let _ = write!(
        out,
        "<div class=\"card guilty\">\n<h3>{}</h3>\n<p><code>{}</code></p>\n",
        escape(&at),
        escape(&culprit.change)
    );
    if !culprit.interacts_with.is_empty() {
        out.push_str("<p>Fails only together with:</p><ul>");
        for other in &culprit.interacts_with {
            let _ = write!(out, "<li><code>{}</code></li>", escape(other));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<div class=\"wide\"><table><thead><tr><th scope=\"col\">confirmation</th><th scope=\"col\">expected</th><th scope=\"col\">measured</th><th scope=\"col\">run</th></tr></thead><tbody>\n");
    confirmation(out, report, "good end with it", Verdict::Bad, Some(culprit.sufficient), culprit.with);
    match culprit.masked {
        Some(trial) => {
            confirmation(
                out,
                report,
                "bad end with it, the others out (masked)",
                Verdict::Good,
                Some(trial),
                culprit.without,
            );
        }
        None => {
            confirmation(out, report, "bad end without it", Verdict::Good, culprit.necessary, culprit.without)
        }
    }
    out.push_str("</tbody></table></div>\n");
    if let Some(probability) = culprit.probability {
        let _ = writeln!(
            out,
            "<p>Probability that it is a culprit: <strong>{}</strong></p>",
            percent(probability)
        );
    }
    if let Some(phases) = &culprit.phases {
        let _ = writeln!(
            out,
            "<p>State is written in <strong>{}</strong> and read in <strong>{}</strong>.</p>",
            escape(&phases.writer),
            escape(&phases.reader)
        );
    }
    if !culprit.selector.is_empty() {
        let _ = writeln!(out, "<p>Smallest selector: <code>{}</code></p>", escape(&culprit.selector));
    }
    let _ =
        write!(out, "<p>Runs when it alone is switched: <code>{}</code></p>\n<ul>", escape(&culprit.variant));
    for line in &culprit.evidence {
        let _ = write!(out, "<li>{}</li>", escape(line));
    }
    out.push_str("</ul>\n");
    chart::dose(out, culprit);
    out.push_str("</div>\n");
}

fn confirmation(
    out: &mut String,
    report: &Report,
    what: &str,
    expected: Verdict,
    number: Option<usize>,
    counts: hotseam_target::Counts,
) {
    let trial = number.and_then(|number| report.trials.iter().find(|trial| trial.number == number));
    let mut measured = match trial {
        Some(trial) => format!("{} {}", verdict_badge(trial.outcome.verdict), escape(&trial.outcome.summary)),
        None => "<span class=\"soft\">not shown</span>".to_owned(),
    };
    if report.noise == Noise::Counted && counts.total > 0 {
        measured += &format!(" <span class=\"soft\">all runs: {counts} failed</span>");
    }
    let run = trial.map_or("–".to_owned(), |trial| format!("<a href=\"#run-{0}\">{0}</a>", trial.number));
    let (class, word) = verdict_look(expected);
    let _ = writeln!(
        out,
        "<tr><td>{}</td><td class=\"{class}\">{word}</td><td>{measured}</td><td>{run}</td></tr>",
        escape(what)
    );
}

/// Settings that were tried.
pub(super) fn what_if(out: &mut String, report: &Report) {
    if report.what_if.is_empty() {
        return;
    }
    out.push_str(
        "<section>\n<h2>Settings tried in place of a patch</h2>\n<div class=\"wide\"><table><thead><tr>\
         <th scope=\"col\">setting</th><th scope=\"col\">configured</th><th scope=\"col\">tried</th>\
         <th scope=\"col\">good end</th><th scope=\"col\"></th><th scope=\"col\">run</th></tr></thead><tbody>\n",
    );
    for tried in &report.what_if {
        let join = |part: fn(&super::super::Setting) -> &str| {
            escape(&tried.settings.iter().map(part).collect::<Vec<_>>().join(", "))
        };
        let _ = writeln!(
            out,
            "<tr><td class=\"k\"><code>{}</code></td><td>{}</td><td>{}</td><td>{} {}</td><td>{}</td><td>{}</td></tr>",
            join(|s| &s.name),
            join(|s| &s.from),
            join(|s| &s.to),
            verdict_badge(tried.outcome.verdict),
            escape(&tried.outcome.summary),
            if tried.heals { "<strong class=\"good\">heals</strong>" } else { "" },
            format_args!("<a href=\"#run-{0}\">{0}</a>", tried.trial)
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

/// Failure rates with intervals.
pub(super) fn rates(out: &mut String, report: &Report) {
    let Some(rates) = &report.rates else { return };
    out.push_str(
        "<section>\n<h2>Failure rates</h2>\n<div class=\"card\"><div class=\"wide\"><table><thead><tr>\
         <th scope=\"col\"></th><th scope=\"col\" class=\"n\">failed</th><th scope=\"col\" class=\"n\">rate</th>\
         <th scope=\"col\" class=\"n\">95 % interval</th><th scope=\"col\"></th></tr></thead><tbody>\n",
    );
    for (name, rate, color) in
        [("without the culprit", &rates.good, "var(--good)"), ("with it", &rates.bad, "var(--bad)")]
    {
        let Rate { counts, mean, low, high } = rate;
        let _ = writeln!(
            out,
            "<tr><td>{name}</td><td class=\"n\">{counts}</td><td class=\"n\">{}</td><td class=\"n\">{} to {}</td>\
             <td style=\"min-width: 130px\"><svg viewBox=\"-6 0 212 16\" role=\"img\" aria-label=\"interval\">\
             <line class=\"axis\" x1=\"0\" x2=\"200\" y1=\"8\" y2=\"8\"/>\
             <rect x=\"{:.1}\" y=\"4\" width=\"{:.1}\" height=\"8\" rx=\"2\" fill=\"{color}\" opacity=\"0.45\"/>\
             <circle cx=\"{:.1}\" cy=\"8\" r=\"4\" fill=\"{color}\"/></svg></td></tr>",
            percent(*mean),
            percent(*low),
            percent(*high),
            low * 200.0,
            ((high - low) * 200.0).max(2.0),
            mean * 200.0
        );
    }
    let p = if rates.fisher < 1e-4 { "p &lt; 0.0001".to_owned() } else { format!("p = {:.4}", rates.fisher) };
    let _ = write!(
        out,
        "</tbody></table></div>\n<p class=\"soft\">Jeffreys intervals. Fisher's exact test that both are one rate: {p}. {} {}.</p></div>\n</section>\n",
        report.launches,
        if report.launches == 1 { "launch" } else { "launches" }
    );
}

/// Who is cleared, with the kind of evidence.
pub(super) fn exonerated(out: &mut String, report: &Report) {
    if report.exonerated.is_empty() {
        return;
    }
    out.push_str(
        "<section class=\"long\">\n<h2>Cleared</h2>\n<div class=\"wide\"><table class=\"stack\"><thead><tr>\
         <th scope=\"col\">where</th><th scope=\"col\">change</th><th scope=\"col\">grade</th>\
         <th scope=\"col\">evidence</th></tr></thead><tbody>\n",
    );
    let mut rows: Vec<_> = report.exonerated.iter().collect();
    rows.sort_by_key(|row| row.grade.step());
    for row in rows {
        let place = [row.place.seam.as_str(), row.place.phase.as_str(), row.place.class.as_str()];
        let place: Vec<&str> = place.into_iter().filter(|part| !part.is_empty()).collect();
        let delta = if row.place.delta.is_empty() { "whole seam" } else { &row.place.delta };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"delta\">{}</td><td class=\"k\"><span class=\"badge good\">{:?}</span> {}</td><td>{}</td></tr>",
            escape(&place.join(" ")),
            escape(delta),
            row.grade.step(),
            grade(row.grade),
            escape(&row.reason)
        );
    }
    out.push_str("</tbody></table></div>\n<p class=\"soft\">Grades: E0 identical code is never guilty; E1 code that was not called cannot be, in that run; E5 is as good as the oracle that judged it.</p>\n</section>\n");
}

fn grade(grade: Grade) -> &'static str {
    match grade {
        Grade::SameCode => "same code",
        Grade::DidNotRun => "did not run",
        Grade::Passes => "passes",
        Grade::Improbable => "improbable",
    }
}

pub(super) fn open(out: &mut String, report: &Report) {
    if report.open.is_empty() {
        return;
    }
    out.push_str("<section class=\"long\">\n<h2>Open</h2>\n<p class=\"soft\">Neither blamed nor cleared.</p>\n<div class=\"wide\"><table class=\"stack\"><thead><tr><th scope=\"col\">change</th><th scope=\"col\">why it is open</th></tr></thead><tbody>\n");
    for row in &report.open {
        let _ = writeln!(
            out,
            "<tr><td class=\"delta\">{}</td><td>{}</td></tr>",
            escape(&row.change),
            escape(&row.reason)
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

pub(super) fn conformance(out: &mut String, report: &Report) {
    if report.conformance.is_empty() {
        return;
    }
    out.push_str("<section class=\"long\">\n<h2>Conformance of the variants</h2>\n<div class=\"wide\"><table class=\"stack\"><thead><tr><th scope=\"col\">variant</th><th scope=\"col\"></th><th scope=\"col\">against the truth</th></tr></thead><tbody>\n");
    for check in &report.conformance {
        let (class, word) = if check.passed { ("good", "passes") } else { ("bad", "fails") };
        let _ = writeln!(
            out,
            "<tr><td class=\"delta\"><code>{}</code></td><td class=\"k {class}\">{word}</td><td>{}</td></tr>",
            escape(&check.variant),
            escape(&check.detail)
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

pub(super) fn notes(out: &mut String, report: &Report) {
    if report.notes.is_empty() {
        return;
    }
    out.push_str("<section>\n<h2>Notes</h2>\n<ul>");
    for note in &report.notes {
        let _ = write!(out, "<li>{}</li>", escape(note));
    }
    out.push_str("</ul>\n</section>\n");
}

/// Every run.
pub(super) fn trials(out: &mut String, report: &Report) {
    if report.trials.is_empty() {
        return;
    }
    let counted = report.noise == Noise::Counted;
    let beliefs = report.trials.iter().any(|trial| trial.after.posterior.is_some());
    let left = report.trials.iter().any(|trial| trial.after.left.is_some());
    out.push_str("<section class=\"long\">\n<h2>Runs</h2>\n<div class=\"wide\"><table class=\"trials\"><thead><tr><th scope=\"col\" class=\"n\">#</th><th scope=\"col\">arm</th><th scope=\"col\">verdict</th><th scope=\"col\">measured</th>");
    if counted {
        out.push_str("<th scope=\"col\" class=\"n\">failed</th><th scope=\"col\" class=\"n\">launch</th>");
    }
    out.push_str("<th scope=\"col\" class=\"n\">seconds</th>");
    if left {
        out.push_str("<th scope=\"col\" class=\"n\">suspects left</th>");
    }
    if beliefs {
        out.push_str("<th scope=\"col\" class=\"n\">P(top)</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    for trial in &report.trials {
        let outcome = &trial.outcome;
        let _ = write!(
            out,
            "<tr id=\"run-{0}\"><td class=\"n\">{0}</td><td>{1}",
            trial.number,
            escape(&trial.why)
        );
        if !trial.changes.is_empty() {
            let _ =
                write!(out, "<details><summary>{} on</summary><ul>", plural(trial.changes.len(), "change"));
            for change in &trial.changes {
                let _ = write!(out, "<li>{}</li>", escape(change));
            }
            out.push_str("</ul></details>");
        }
        let _ = write!(
            out,
            "</td><td>{}</td><td>{}</td>",
            verdict_badge(outcome.verdict),
            escape(&outcome.summary)
        );
        if counted {
            let _ =
                write!(out, "<td class=\"n\">{}</td><td class=\"n\">{}</td>", outcome.counts, outcome.launch);
        }
        let _ = write!(out, "<td class=\"n\">{:.1}</td>", outcome.seconds);
        if left {
            let _ = write!(
                out,
                "<td class=\"n\">{}</td>",
                trial.after.left.map(|left| left.to_string()).unwrap_or_default()
            );
        }
        if beliefs {
            let top = trial.after.posterior.as_ref().and_then(|posterior| posterior.top.first());
            let _ = write!(
                out,
                "<td class=\"n\">{}</td>",
                top.map(|top| percent(top.probability)).unwrap_or_default()
            );
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// How to run it again, and what it depends on.
pub(super) fn reproduce(out: &mut String, about: &About) {
    let _ = write!(out, "<section>\n<h2>Reproduce</h2>\n<pre>{}</pre>\n", escape(&about.command));
    if let Some(log) = &about.log {
        let _ = write!(
            out,
            "<p class=\"soft\">The same report from the log, without a model:</p>\n<pre>hotseam bisect replay {}</pre>\n",
            escape(log)
        );
    }
    out.push_str("<div class=\"wide\"><table class=\"stack\"><tbody>\n");
    let version = [("hotseam".to_owned(), about.version.clone())];
    for (name, fact) in version.iter().chain(&about.facts) {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"delta\"><code>{}</code></td></tr>",
            escape(name),
            escape(fact)
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

/// The report for programs, in the page.
pub(super) fn data(out: &mut String, report: &Report) {
    // In a script element only `<` could end it; as an escape it is the same JSON.
    let json = serde_json::to_string(report).unwrap_or_default().replace('<', "\\u003c");
    let _ = writeln!(out, "<script type=\"application/json\" id=\"report\">{json}</script>");
}
