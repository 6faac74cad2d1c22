//! `hotseam bisect run`.

use std::fs::{File, OpenOptions};
use std::io::BufWriter;

use anyhow::{Context as _, anyhow};
use hotseam_bisect::report::{self, Style};
use hotseam_bisect::{Event, JsonLog, Observer, Options, Report, expected_runs};
use hotseam_config::{BisectSection, Config};
use hotseam_slots::Rule;
use hotseam_target::{InProcess, Plan, Setup, Target as _};

use crate::args::{BisectArgs, BisectCommand, BisectRunArgs, ReportFormat};
use crate::failure::{Failure, USAGE};
use crate::host::{self, Bar};
use crate::terminal;

/// Exit code if the oracle could not be asked.
const ORACLE_BROKEN: u8 = 5;

/// Runs a bisection in this process.
pub(crate) fn run(args: &BisectArgs) -> Result<u8, Failure> {
    let BisectCommand::Run(args) = &args.command;
    // 1 says that the ends agree, so no error may end with it.
    search(args).map_err(|failure| match failure.code {
        USAGE => failure,
        _ => Failure { code: ORACLE_BROKEN, ..failure },
    })
}

fn search(args: &BisectRunArgs) -> Result<u8, Failure> {
    let config = host::load_config(&args.config, &args.set)?;
    let section = config.bisect.clone().ok_or_else(|| {
        let text = "has no `bisect` section: add one with good, bad and oracle";
        Failure::usage(anyhow!("{} {text}", args.config.display()))
    })?;
    let good = host::named(&config, &section.good)?;
    let bad = plant(host::named(&config, &section.bad)?, &args.plant).map_err(Failure::usage)?;
    let log = args.log.as_ref().map(open_log).transpose()?;

    let bar = host::spinner("loading");
    let mut target = target(&config, &section, good, bad, &bar)?;
    let plan = target.plan().clone();
    let options = Options {
        budget_runs: args.budget.map_or(section.budget_runs, |runs| runs as usize),
        max_culprits: args.max_culprits as usize,
        ..Options::default()
    };
    bar.line(&overview(&plan, &target.oracle(), options.budget_runs));
    if args.dry_run {
        bar.finish();
        dry_run(&plan, args.format)?;
        return Ok(0);
    }
    let talk = Talk { bar: bar.clone(), style: terminal::stderr_style() };
    let mut observer = (talk, log.map(JsonLog::new));
    let report = hotseam_bisect::run(&mut target, &options, &mut observer);
    bar.finish();
    if let Some(error) = observer.1.as_ref().and_then(JsonLog::error) {
        terminal::talk(&format!("warning: the log is incomplete: {error}"));
    }
    terminal::talk("");
    print(&report, args)?;
    Ok(report.exit_code)
}

fn target(
    config: &Config,
    section: &BisectSection,
    good: Vec<Rule>,
    bad: Vec<Rule>,
    bar: &Bar,
) -> Result<InProcess, Failure> {
    let host = host::start(config)?;
    host::announce(config, &host);
    let ticking = bar.clone();
    let setup = Setup {
        engine: host.engine,
        tokenizer: host.tokenizer,
        good: (section.good.clone(), good),
        bad: (section.bad.clone(), bad),
        oracle: section.oracle.clone(),
        haystack: config.needle.haystack.clone(),
        seed: config.needle.seed,
        progress: Box::new(move |progress| ticking.tick(progress.done, progress.total)),
    };
    InProcess::new(setup).map_err(Failure::usage)
}

/// The bad end with `plants` in place of its rules that use `faulty/` plugins; without plants as it stands.
fn plant(mut rules: Vec<Rule>, plants: &[String]) -> anyhow::Result<Vec<Rule>> {
    if plants.is_empty() {
        return Ok(rules);
    }
    rules.retain(|rule| !rule.variant().is_some_and(|variant| variant.name.starts_with("faulty/")));
    for text in plants.iter().filter(|text| *text != "none") {
        // The selector may hold `=` itself (layers=2-4), the variant's name begins after the last one before `{`.
        let head = text.find('{').unwrap_or(text.len());
        let at = text[..head].rfind('=');
        let (select, variant) = at.map(|at| (&text[..at], &text[at + 1..])).ok_or_else(|| {
            anyhow!("--plant `{text}`: expected SELECTOR=VARIANT, such as moe=faulty/moe{{fault: scale-twice}}, or `none`")
        })?;
        rules.push(host::parse_rule(select, Some(variant)).with_context(|| format!("--plant `{text}`"))?);
    }
    Ok(rules)
}

fn open_log(path: &std::path::PathBuf) -> Result<BufWriter<File>, Failure> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map(BufWriter::new)
        .with_context(|| format!("cannot write the log {}", path.display()))
        .map_err(Failure::usage)
}

fn overview(plan: &Plan, oracle: &str, budget: usize) -> String {
    let changes = plan.changes.len();
    let mut patches: Vec<_> = plan.changes.iter().map(|change| (&change.seam, &change.delta)).collect();
    patches.sort();
    patches.dedup();
    format!(
        "{} -> {}: {changes} changes of {} patches\noracle: {oracle}\nup to {} oracle runs for one culprit, {budget} allowed",
        plan.good,
        plan.bad,
        patches.len(),
        expected_runs(plan),
    )
}

fn dry_run(plan: &Plan, format: ReportFormat) -> Result<(), Failure> {
    if format == ReportFormat::Json {
        return Ok(terminal::json(plan)?);
    }
    let mut text = String::new();
    for change in &plan.changes {
        let layers = report::ranges(&change.layers());
        text += &format!("{}\n    {}", change.place(), change.delta);
        if !layers.is_empty() {
            text += &format!("  (layers {layers})");
        }
        text.push('\n');
    }
    for note in &plan.notes {
        text += &format!("note: {note}\n");
    }
    Ok(terminal::data(&text)?)
}

fn print(report: &Report, args: &BisectRunArgs) -> Result<(), Failure> {
    match args.format {
        ReportFormat::Text => terminal::data(&report::text(report, terminal::stdout_style()))?,
        ReportFormat::Json => terminal::json(report)?,
        ReportFormat::Markdown => terminal::data(&report::markdown(report, &command(args)))?,
    }
    Ok(())
}

/// The command line that reproduces a report.
fn command(args: &BisectRunArgs) -> String {
    let mut words = vec!["hotseam bisect run".to_owned(), args.config.display().to_string()];
    words.extend(args.set.iter().map(|set| format!("--set '{set}'")));
    words.extend(args.plant.iter().map(|plant| format!("--plant '{plant}'")));
    words.join(" ")
}

/// Tells what happens, one line a run.
struct Talk {
    bar: Bar,
    style: Style,
}

impl Observer for Talk {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Note(text) => self.bar.line(&format!("    {text}")),
            Event::Start { number, why, .. } => self.bar.message(&format!("#{number} {why}")),
            Event::End { trial, left } => self.bar.line(&report::trial_line(trial, *left, self.style)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(select: &str, variant: &str) -> Rule {
        host::parse_rule(select, Some(variant)).unwrap()
    }

    fn bad() -> Vec<Rule> {
        vec![
            rule("moe", "moe/cpu-fused-scale"),
            rule("indexer@decode", "faulty/indexer{fault: one-page, keys: bf16}"),
        ]
    }

    #[test]
    fn planting_replaces_faulty_rules() {
        assert_eq!(plant(bad(), &[]).unwrap(), bad());
        assert_eq!(plant(bad(), &["none".into()]).unwrap(), bad()[..1]);
        let planted =
            plant(bad(), &["attention@decode:layers=2-4=faulty/attention{fault: half-scale}".into()])
                .unwrap();
        assert_eq!(
            planted,
            [bad()[0].clone(), rule("attention@decode:layers=2-4", "faulty/attention{fault: half-scale}")]
        );
        let path = plant(bad(), &["moe=./x.so".into()]).unwrap();
        assert_eq!(path[1], rule("moe", "./x.so"));
    }

    #[test]
    fn a_bad_plant_says_what_is_expected() {
        for (text, part) in
            [("moe", "expected SELECTOR=VARIANT"), ("mo=faulty/moe", "--plant `mo=faulty/moe`")]
        {
            let error = format!("{:#}", plant(bad(), &[text.to_owned()]).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
