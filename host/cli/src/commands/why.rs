//! `hotseam needle --why`.

use anyhow::anyhow;
use hotseam_evidence::needle::Probe;
use hotseam_evidence::why;

use crate::args::{Format, NeedleArgs};
use crate::failure::Failure;
use crate::host::{self, Host};
use crate::terminal;

/// Explains the needle that was asked for, or the first of the first length that is lost. 1 if none is.
pub(crate) fn run(args: &NeedleArgs, host: &Host, probes: &[Probe]) -> Result<u8, Failure> {
    let length = probes.first().map_or(0, |probe| probe.length);
    let probes: Vec<&Probe> = probes.iter().filter(|probe| probe.length == length).collect();
    let chosen = match args.probe {
        None => &probes[..],
        Some(index) => probes.get(index..=index).ok_or_else(|| {
            let count = probes.len();
            Failure::usage(anyhow!("--probe {index} is none of the {count} needles at {length} tokens"))
        })?,
    };
    let bar = host::spinner("needles");
    let mut explained = None;
    for (done, probe) in chosen.iter().enumerate() {
        bar.tick(done, chosen.len());
        let report =
            why::explain(&host.engine, &host.tokenizer, &args.assignment, probe).map_err(Failure::usage)?;
        let lost = !report.recalled;
        explained = Some(report);
        if lost {
            break;
        }
    }
    bar.finish();
    host::guarded(&host.engine);
    host.engine.shutdown();
    let Some(report) = explained.filter(|report| args.probe.is_some() || !report.recalled) else {
        terminal::talk(&format!(
            "all {} needles of {length} tokens were recalled; name one with --probe, or give other --lengths",
            chosen.len()
        ));
        return Ok(1);
    };
    match args.format {
        Format::Text => terminal::data(&report.to_string())?,
        Format::Json => terminal::json(&report)?,
    }
    Ok(0)
}
