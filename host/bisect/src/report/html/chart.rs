//! Curves as inline SVG.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::{Culprit, Report, layers};
use super::escape;
use super::heat::percent;

/// The drawing: its box, and the part of it that curves are drawn in.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 234.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 468.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 192.0;
/// Curves that are told apart by colour.
const COLORS: usize = 8;

/// What was believed about the likeliest suspects after each run.
pub(super) fn posterior(out: &mut String, report: &Report) {
    let steps: Vec<(usize, &crate::Posterior)> = report
        .trials
        .iter()
        .filter_map(|trial| trial.after.posterior.as_ref().map(|posterior| (trial.number, posterior)))
        .collect();
    if steps.len() < 2 {
        return;
    }
    let mut curves: BTreeMap<&str, Vec<(usize, f64)>> = BTreeMap::new();
    for (number, posterior) in &steps {
        for belief in &posterior.top {
            curves.entry(&belief.change).or_default().push((*number, belief.probability));
        }
    }
    let last = |points: &[(usize, f64)]| points.last().map_or(0.0, |point| point.1);
    let highest = |points: &[(usize, f64)]| points.iter().map(|point| point.1).fold(0.0, f64::max);
    let end = steps.last().map_or(0, |step| step.0);
    let mut ranked: Vec<(&str, Vec<(usize, f64)>)> = curves.into_iter().collect();
    // Those that are likely in the end first, then those that once were.
    ranked.sort_by(|a, b| {
        let rank = |points: &[(usize, f64)]| {
            if points.last().is_some_and(|point| point.0 == end) { last(points) } else { 0.0 }
        };
        (rank(&b.1), highest(&b.1))
            .partial_cmp(&(rank(&a.1), highest(&a.1)))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    ranked.truncate(COLORS);
    let first = steps[0].0 as f64;
    let span = (end as f64 - first).max(1.0);
    let x = |number: usize| LEFT + (number as f64 - first) / span * (RIGHT - LEFT);
    let y = |probability: f64| BOTTOM - probability * (BOTTOM - TOP);
    let most = steps.iter().map(|step| step.1.entropy).fold(1e-9, f64::max);

    out.push_str("<section>\n<h2>Belief after each run</h2>\n");
    let said = format!(
        "Probability of the likeliest suspects after each run; uncertainty fell from {:.1} to {:.1} bits.",
        steps[0].1.entropy,
        steps.last().map_or(0.0, |step| step.1.entropy)
    );
    let _ = write!(out, "<p class=\"soft\">{said}</p>\n<div class=\"card\">");
    frame(out, &said, &["0", "50 %", "100 %"]);
    let marks: Vec<usize> = steps.iter().map(|step| step.0).collect();
    ticks(out, &marks, x);
    let _ =
        write!(out, "<text x=\"{}\" y=\"228\" text-anchor=\"middle\">run</text>", f64::midpoint(LEFT, RIGHT));
    let entropy: Vec<(f64, f64)> = steps.iter().map(|(n, p)| (x(*n), y(p.entropy / most))).collect();
    line(out, &entropy, "line dash", "var(--soft)");
    for (rank, (_, points)) in ranked.iter().enumerate().rev() {
        // A suspect that falls out of the top is drawn to the ground at the next run.
        let mut path: Vec<(f64, f64)> = Vec::new();
        for (number, _) in &steps {
            let known = points.iter().find(|point| point.0 == *number);
            path.push((x(*number), y(known.map_or(0.0, |point| point.1))));
        }
        line(out, &path, "line", &format!("var(--c{rank})"));
    }
    out.push_str("</svg>\n<ul class=\"key\">");
    for (rank, (name, points)) in ranked.iter().enumerate() {
        let now = if points.last().is_some_and(|point| point.0 == end) { last(points) } else { 0.0 };
        let _ = write!(
            out,
            "<li><i style=\"border-color: var(--c{rank})\"></i>{} <strong>{}</strong></li>",
            escape(name),
            percent(now)
        );
    }
    let _ = write!(
        out,
        "<li><i style=\"border-color: var(--soft); border-top-style: dashed\"></i>uncertainty, of {most:.1} bits</li></ul>\
         </div>\n</section>\n"
    );
}

/// Failures against the number of layers.
pub(super) fn dose(out: &mut String, culprit: &Culprit) {
    if culprit.dose.len() < 2 {
        return;
    }
    let most = culprit.dose.iter().map(|point| point.layers.len()).max().unwrap_or(1).max(1);
    let x = |count: usize| LEFT + 20.0 + count as f64 / most as f64 * (RIGHT - LEFT - 40.0);
    let rate = |fail: u32, total: u32| if total == 0 { 0.0 } else { f64::from(fail) / f64::from(total) };
    let y = |rate: f64| BOTTOM - rate * (BOTTOM - TOP);
    let said = "Share of failures against the number of layers that the patch is switched on";
    let _ = writeln!(out, "<h3>Dose</h3><p class=\"soft\">{said}; each dot is one choice of layers.</p>");
    frame(out, said, &["0", "50 %", "100 %"]);
    let counts: Vec<usize> = (0..=most).collect();
    ticks(out, &counts, x);
    let _ = write!(
        out,
        "<text x=\"{}\" y=\"228\" text-anchor=\"middle\">layers switched</text>",
        f64::midpoint(LEFT, RIGHT)
    );
    // The curve goes through the mean of each number of layers.
    let mut means: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
    for point in &culprit.dose {
        let mean = means.entry(point.layers.len()).or_default();
        mean.0 += point.counts.fail;
        mean.1 += point.counts.total;
    }
    let path: Vec<(f64, f64)> =
        means.iter().map(|(n, (fail, total))| (x(*n), y(rate(*fail, *total)))).collect();
    line(out, &path, "line", "var(--c1)");
    for point in &culprit.dose {
        let on = if point.layers.is_empty() { "no layer".to_owned() } else { layers(&point.layers) };
        let fill = if point.bad > 0 { "var(--bad)" } else { "var(--good)" };
        let _ = write!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{fill}\"><title>{}: {} failed</title></circle>",
            x(point.layers.len()),
            y(rate(point.counts.fail, point.counts.total)),
            escape(&on),
            point.counts
        );
    }
    out.push_str("</svg>\n<ul class=\"key\">");
    for point in &culprit.dose {
        let on = if point.layers.is_empty() { "no layer".to_owned() } else { layers(&point.layers) };
        let verdict =
            if point.bad > 0 { "<span class=\"bad\">bad</span>" } else { "<span class=\"good\">good</span>" };
        let _ = write!(out, "<li>{}: {verdict}, {} failed</li>", escape(&on), point.counts);
    }
    out.push_str("</ul>\n");
}

/// Opens a drawing with its horizontal lines, which are labelled from the bottom up.
fn frame(out: &mut String, title: &str, labels: &[&str]) {
    let _ =
        writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escape(title));
    let gaps = labels.len().saturating_sub(1).max(1) as f64;
    for (index, label) in labels.iter().enumerate() {
        let at = BOTTOM - index as f64 / gaps * (BOTTOM - TOP);
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
}

/// Numbers below the axis, at most about a dozen.
fn ticks(out: &mut String, numbers: &[usize], x: impl Fn(usize) -> f64) {
    let every = numbers.len().div_ceil(12).max(1);
    for (index, number) in numbers.iter().enumerate() {
        let last = index + 1 == numbers.len();
        let crowded = numbers.len() - 1 - index < every && !last;
        if (index % every == 0 && !crowded) || last {
            let _ =
                write!(out, "<text x=\"{:.1}\" y=\"210\" text-anchor=\"middle\">{number}</text>", x(*number));
        }
    }
}

fn line(out: &mut String, points: &[(f64, f64)], class: &str, color: &str) {
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        "<polyline class=\"{class}\" style=\"stroke: {color}\" points=\"{}\"/>",
        path.join(" ")
    );
}
