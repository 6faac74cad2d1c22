//! The request on which evidence is taken.

use anyhow::anyhow;
use hotseam_config::Config;
use hotseam_evidence::compare::Workload;
use hotseam_evidence::divergence::Passage;
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::{NeedlePlan, Probe};

use super::{Host, announce, named, start};
use crate::args::WorkloadArgs;
use crate::failure::Failure;

/// Checks what can be checked before the model is loaded.
///
/// # Errors
/// Usage, naming the argument and what would work.
fn check(config: &Config, args: &WorkloadArgs) -> Result<(), Failure> {
    let (name, tokens) = match args.needle {
        Some(tokens) => ("--needle", tokens),
        None => ("--prompt-tokens", args.prompt_tokens as usize),
    };
    let limit = config.engine.max_context;
    if tokens > limit {
        return Err(Failure::usage(anyhow!(
            "{name} {tokens} is over engine.max_context, {limit}; raise it with --set engine.max_context={}",
            tokens.saturating_add(64)
        )));
    }
    let probes = config.needle.probes;
    if args.needle.is_some() && args.probe >= probes {
        let last = probes.saturating_sub(1);
        return Err(Failure::usage(anyhow!(
            "--probe {} is none of the file's needle.probes; give 0 to {last}",
            args.probe
        )));
    }
    Ok(())
}

/// Starts the host on which evidence is taken of assignments, and makes the request. What can be checked before the model is
/// loaded is checked first, so that a misspelt name costs no time.
///
/// # Errors
/// Usage, or what the start fails with.
pub(crate) fn prepare<'a>(
    config: &Config,
    assignments: impl IntoIterator<Item = &'a String>,
    args: &WorkloadArgs,
) -> Result<(Host, Workload), Failure> {
    for name in assignments {
        named(config, name)?;
    }
    check(config, args)?;
    let host = start(config)?;
    announce(config, &host);
    let workload = workload(config, &host, args)?;
    Ok((host, workload))
}

/// Makes the request.
///
/// # Errors
/// Usage, if the text does not make such a request.
fn workload(config: &Config, host: &Host, args: &WorkloadArgs) -> Result<Workload, Failure> {
    if let Some(length) = args.needle {
        let probe = probe(config, host, length, args.probe)?;
        return Ok(Workload::probe(&host.tokenizer, &probe));
    }
    let haystack = Haystack::read(&host.tokenizer, &config.needle.haystack).map_err(Failure::usage)?;
    let (tokens, decode) = (args.prompt_tokens as usize, args.decode_tokens as usize);
    let passage = Passage::new(&host.tokenizer, &haystack, tokens, decode).map_err(Failure::usage)?;
    Ok(Workload::passage(&passage))
}

/// The file's needle number `index` at a length.
///
/// # Errors
/// Usage, if there is none.
fn probe(config: &Config, host: &Host, length: usize, index: usize) -> Result<Probe, Failure> {
    let haystack = Haystack::read(&host.tokenizer, &config.needle.haystack).map_err(Failure::usage)?;
    let plan = NeedlePlan { lengths: vec![length], probes: config.needle.probes, seed: config.needle.seed };
    let probes = plan.probes(&host.tokenizer, &haystack).map_err(Failure::usage)?;
    let count = probes.len();
    let probe = probes.into_iter().nth(index);
    probe.ok_or_else(|| {
        Failure::usage(anyhow!("there are {count} needles at {length} tokens, none with number {index}"))
    })
}
