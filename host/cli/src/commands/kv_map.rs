//! `hotseam trace --kv`.

use anyhow::anyhow;
use hotseam_evidence::kv_map::{Table, hand_off};

use crate::args::{ConfigFile, Format, TraceArgs};
use crate::failure::Failure;
use crate::host;
use crate::terminal;

/// Runs a request with an audited hand-off in this process and shows what arrived.
pub(crate) fn run(args: &TraceArgs) -> Result<u8, Failure> {
    let Some(file) = &args.server.config else {
        return Err(Failure::usage(anyhow!("--kv needs -c FILE")));
    };
    let two_stores = ["engine.topology=paired", "disaggregation.audit=true"].map(str::to_owned);
    let set = args.server.set.iter().cloned().chain(two_stores).collect();
    let config = host::config(&ConfigFile { config: file.clone(), set })?;
    let assignment = &args.assignment.name;
    let (host, workload) = host::prepare(&config, [assignment], &args.capture.workload)?;
    let bar = host::spinner("running the request");
    let moved = hand_off(&host.engine, assignment, &workload).map_err(Failure::usage)?;
    bar.finish();
    host.engine.shutdown();
    match args.server.format {
        Format::Json => terminal::json(&moved.map)?,
        Format::Text => terminal::data(Table(&moved.map).to_string().trim_end())?,
    }
    if let Some((code, message)) = &moved.failure {
        terminal::talk(&format!("the request failed: {code}: {message}"));
    }
    Ok(u8::from(!moved.map.findings.is_empty() || moved.failure.is_some()))
}
