//! `hotseam plugin bench`.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::anyhow;
use hotseam_evidence::conform::{self, TimedOp, Timing};
use hotseam_loader::did_you_mean;
use hotseam_slots::Generation;
use serde::Serialize;

use super::files;
use crate::args::{Format, PluginBenchArgs};
use crate::failure::Failure;
use crate::terminal;

/// Times of the variants, in the order in which timings number them.
#[derive(Serialize)]
struct Timed {
    variants: Vec<String>,
    timings: Vec<Timing>,
}

/// Times a variant, beside another one if asked.
pub(super) fn run(args: &PluginBenchArgs) -> Result<u8, Failure> {
    let op = args.op.as_deref().map(parse_op).transpose()?;
    let registry = files::registry(&args.files)?;
    let mut generations = vec![files::generation(&registry, &args.variant)?];
    if let Some(other) = &args.against {
        let other = files::generation(&registry, other)?;
        if other.seam != generations[0].seam {
            let (found, expected) = (other.seam, generations[0].seam);
            let name = &args.variant;
            return Err(Failure::usage(anyhow!(
                "--against: expected a variant of {expected}, as {name} is, found one of {found}"
            )));
        }
        generations.push(other);
    }
    let borrowed: Vec<&Generation> = generations.iter().map(AsRef::as_ref).collect();
    let time = Duration::from_millis(args.milliseconds);
    let timed = Timed {
        variants: generations.iter().map(|generation| generation.spec.to_string()).collect(),
        timings: conform::bench(&borrowed, op, time)?,
    };
    match args.format {
        Format::Json => terminal::json(&timed)?,
        Format::Text => terminal::data(&timed.text())?,
    }
    if timed.timings.is_empty() {
        terminal::talk("no call was timed: the variant serves no such op of its own, or is a transport");
    }
    Ok(0)
}

fn parse_op(text: &str) -> Result<TimedOp, Failure> {
    let found = TimedOp::ALL.into_iter().find(|op| op.name() == text);
    found.ok_or_else(|| {
        let hint = did_you_mean(text, TimedOp::ALL.iter().map(|op| op.name()));
        Failure::usage(anyhow!("--op: unknown op `{text}`. {hint}"))
    })
}

impl Timed {
    fn text(&self) -> String {
        let mut text = String::new();
        let mut case = None;
        for timing in &self.timings {
            if case != Some((timing.op, &timing.case)) {
                case = Some((timing.op, &timing.case));
                let _ = writeln!(text, "{} {} ({} rows)", timing.op, timing.case, timing.rows);
            }
            let first =
                self.timings.iter().find(|t| t.subject == 0 && (t.op, &t.case) == (timing.op, &timing.case));
            let ratio = match first {
                Some(first) if timing.subject > 0 && first.median_ns > 0 => {
                    format!("  {:.2} times", timing.median_ns as f64 / first.median_ns as f64)
                }
                _ => String::new(),
            };
            let us = |ns: u64| ns as f64 / 1000.0;
            let _ = writeln!(
                text,
                "  {:>10.2} us  [{:.2}, {:.2}]  {} calls  {}{ratio}",
                us(timing.median_ns),
                us(timing.low_ns),
                us(timing.high_ns),
                timing.calls,
                self.variants[timing.subject],
            );
        }
        text
    }
}
