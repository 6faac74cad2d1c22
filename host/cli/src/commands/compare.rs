//! `hotseam compare`.

use anyhow::anyhow;
use hotseam_evidence::EvidenceError;
use hotseam_evidence::compare::{self, Comparison};
use hotseam_evidence::determinism::{self, Determinism};
use serde::Serialize;

use crate::args::{CompareArgs, Format};
use crate::failure::Failure;
use crate::host;
use crate::terminal;

#[derive(Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    comparison: &'a Comparison,
    #[serde(skip_serializing_if = "Option::is_none")]
    determinism: Option<&'a Determinism>,
}

/// Holds two assignments against truth on the same inputs.
pub(crate) fn run(args: &CompareArgs) -> Result<u8, Failure> {
    let config = host::config(&args.file)?;
    let ends = config.bisect.as_ref().map(|section| (section.good.clone(), section.bad.clone()));
    let (default_good, default_bad) = ends.map_or(("live".to_owned(), None), |(good, bad)| (good, Some(bad)));
    let good = args.good.clone().unwrap_or(default_good);
    let bad = args.bad.clone().or(default_bad).ok_or_else(|| {
        Failure::usage(anyhow!("the file has no `bisect` section; name the assignment to compare with --bad"))
    })?;
    let (host, workload) = host::prepare(&config, [&good, &bad], &args.workload)?;
    let total = workload.prompt.len() + workload.max_tokens;
    let bar = host::spinner("rows");
    bar.tick(0, total);
    let progress = {
        let bar = bar.clone();
        Box::new(move |rows| bar.tick(rows, total))
    };
    let comparison = compare::compare(&host.engine, &good, &bad, &workload, progress).map_err(failure)?;
    let determinism = match args.repeat {
        true => {
            bar.message("repeats");
            let cells: Vec<_> = comparison.cells.iter().map(|tally| tally.cell).collect();
            let repeats = determinism::REPEATS;
            let (engine, good, bad) = (&host.engine, good.as_str(), bad.as_str());
            Some(determinism::repeat(engine, good, bad, &cells, &workload, repeats).map_err(failure)?)
        }
        false => None,
    };
    bar.finish();
    host.engine.shutdown();
    match args.format {
        Format::Text => {
            let repeats = determinism.as_ref().map_or(String::new(), |d| format!("\n{d}"));
            terminal::data(&format!("{comparison}{repeats}"))?;
        }
        Format::Json => {
            terminal::json(&Output { comparison: &comparison, determinism: determinism.as_ref() })?;
        }
    }
    let races = determinism.is_some_and(|d| d.races().next().is_some());
    Ok(u8::from(comparison.diverges() || races))
}

/// A request that cannot be made is a matter of the arguments; one that failed in the model is neither 0 nor 1.
fn failure(error: EvidenceError) -> Failure {
    Failure::usage(error)
}
