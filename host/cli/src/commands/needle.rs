//! `hotseam needle`.

use std::path::Path;

use anyhow::anyhow;
use hotseam_engine::GuardReport;
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::{self, NEEDLES, NeedlePlan, NeedleReport, Probe, Sweep, TURNS, Task};
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

/// The task of the arguments. A number that it would not read is refused.
fn task(args: &NeedleArgs) -> Result<Task, Failure> {
    let number = |given: Option<u32>, usual| given.map_or(usual, |given| given as usize);
    let (task, idle) = match args.task {
        NeedleTask::Single => (Task::Single, args.needles.or(args.turns)),
        NeedleTask::Multi => (Task::Multi { needles: number(args.needles, NEEDLES) }, args.turns),
        NeedleTask::MultiTurn => (Task::MultiTurn { turns: number(args.turns, TURNS) }, args.needles),
        NeedleTask::Passphrase => (Task::Passphrase, args.needles.or(args.turns)),
    };
    match idle {
        Some(_) => Err(Failure::usage(anyhow!(
            "--needles is read with --task multi only, --turns with --task multi-turn only"
        ))),
        None => Ok(task),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parsed(more: &str) -> Result<Task, String> {
        let line = format!("hotseam needle -c file.yaml {more}");
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Needle(args) => task(&args).map_err(|failure| failure.error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tasks_have_their_usual_numbers() {
        assert_eq!(parsed(""), Ok(Task::Single));
        assert_eq!(parsed("--task multi"), Ok(Task::Multi { needles: 4 }));
        assert_eq!(parsed("--task multi --needles 7"), Ok(Task::Multi { needles: 7 }));
        assert_eq!(parsed("--task multi-turn"), Ok(Task::MultiTurn { turns: 6 }));
        assert_eq!(parsed("--task passphrase"), Ok(Task::Passphrase));
    }

    #[test]
    fn numbers_that_a_task_would_not_read_are_refused() {
        for more in [
            "--needles 5",
            "--task multi --turns 5",
            "--task multi-turn --needles 5",
            "--task passphrase --turns 3",
        ] {
            assert!(parsed(more).is_err_and(|error| error.contains("is read with")), "{more}");
        }
        assert!(parsed("--task multi --needles 33").is_err_and(|error| error.contains("2..=32")));
        assert!(parsed("--why --turns 3").is_err_and(|error| error.contains("cannot be used with")));
    }
}
