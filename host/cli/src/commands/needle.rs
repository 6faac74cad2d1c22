//! `hotseam needle`.

use std::path::Path;

use anyhow::anyhow;
use hotseam_engine::GuardReport;
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::{self, NeedlePlan, NeedleReport, Probe, Sweep, Task};
use serde::Serialize;

use crate::args::{Format, NeedleArgs, NeedleTask};
use crate::failure::Failure;
use crate::host;
use crate::terminal;

#[derive(Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    report: &'a NeedleReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<&'a GuardReport>,
}

/// Sweeps needles in this process.
pub(crate) fn run(args: &NeedleArgs) -> Result<u8, Failure> {
    let config = host::guarded_config(&args.file)?;
    // Before the model is loaded, so that a misspelt name costs no time.
    host::named(&config, &args.assignment)?;
    let plan = NeedlePlan {
        lengths: args.lengths.clone().unwrap_or_else(|| config.needle.lengths.clone()),
        probes: args.probes.map_or(config.needle.probes, |probes| probes as usize),
        seed: args.seed.unwrap_or(config.needle.seed),
    };
    if let Some(length) = plan.lengths.iter().find(|length| **length > config.engine.max_context) {
        return Err(Failure::usage(anyhow!(
            "--lengths {length} is over engine.max_context, {}; raise it with --set engine.max_context={}",
            config.engine.max_context,
            length + 64
        )));
    }
    let task = task(args)?;
    let host = host::start(&config)?;
    let haystack = Haystack::read(&host.tokenizer, &config.needle.haystack).map_err(Failure::usage)?;
    let probes = plan.probes_of(task, &host.tokenizer, &haystack).map_err(Failure::usage)?;
    let most = probes.iter().map(|probe| probe.length + probe.max_tokens).max().unwrap_or(0);
    if most > config.engine.max_context {
        return Err(Failure::usage(anyhow!(
            "prompt and answer take {most} tokens, engine.max_context is {}; raise it with --set engine.max_context={most}",
            config.engine.max_context
        )));
    }
    if let Some(path) = &args.save_prompts {
        save(&probes, path)?;
    }
    if args.why {
        return super::why::run(args, &host, &probes);
    }
    let sweep = Sweep {
        assignment: args.assignment.clone(),
        in_flight: config.engine.max_seqs,
        reuse_prefill: false,
    };
    let bar = host::spinner("needles");
    bar.tick(0, probes.len());
    let report = needle::run(&host.engine, &host.tokenizer, &probes, &sweep, |done, result| {
        bar.tick(done, probes.len());
        if !terminal::interactive() {
            let word = if result.hit { "recalled" } else { "missed" };
            tracing::info!(done, total = probes.len(), length = result.length, depth = result.depth, word);
        }
    })?;
    bar.finish();
    let guard = host::guarded(&host.engine);
    host.engine.shutdown();
    match args.format {
        Format::Text => terminal::data(&report.to_string())?,
        Format::Json => terminal::json(&Output { report: &report, guard: guard.as_ref() })?,
    }
    let violated = guard.is_some_and(|guard| guard.violations > 0);
    Ok(u8::from(violated || args.least.is_some_and(|least| report.recall < least)))
}

/// The task of the arguments.
fn task(args: &NeedleArgs) -> Result<Task, Failure> {
    let idle = match args.task {
        NeedleTask::Multi => args.turns.map(|_| "--turns is read with --task multi-turn only"),
        NeedleTask::MultiTurn => args.needles.map(|_| "--needles is read with --task multi only"),
        NeedleTask::Single | NeedleTask::Passphrase => args
            .needles
            .or(args.turns)
            .map(|_| "--needles is read with --task multi only, --turns with --task multi-turn only"),
    };
    if let Some(idle) = idle {
        return Err(Failure::usage(anyhow!(idle)));
    }
    Ok(match args.task {
        NeedleTask::Single => Task::Single,
        NeedleTask::Multi => Task::Multi { needles: args.needles.unwrap_or(4) as usize },
        NeedleTask::MultiTurn => Task::MultiTurn { turns: args.turns.unwrap_or(6) as usize },
        NeedleTask::Passphrase => Task::Passphrase,
    })
}

/// The prompts and what is expected, for another engine.
fn save(probes: &[Probe], path: &Path) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Saved<'a> {
        length: usize,
        name: &'a str,
        value: &'a str,
        prompt: &'a [u32],
    }
    let saved: Vec<Saved<'_>> = probes
        .iter()
        .map(|p| Saved { length: p.length, name: &p.name, value: &p.value, prompt: &p.prompt })
        .collect();
    let text = serde_json::to_string(&saved).map_err(Failure::usage)?;
    std::fs::write(path, text).map_err(|e| {
        Failure::usage(anyhow!("cannot write {}: {e}; give another --save-prompts", path.display()))
    })
}
