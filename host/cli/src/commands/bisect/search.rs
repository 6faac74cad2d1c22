//! `hotseam bisect run` and `hotseam bisect resume`.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use hotseam_bisect::log::{Cache, Header, Journal, Line, Log, Recorded, Recorder};
use hotseam_bisect::report::{self, Style};
use hotseam_bisect::{Event, Observer, Options};
use hotseam_target::Target;

use super::invocation::{Ends, Invocation, facts};
use super::{form, logs, plan};
use crate::args::{BisectResumeArgs, BisectRunArgs, Bounds, Form};
use crate::failure::Failure;
use crate::host::{self, Bar, Plugins};
use crate::terminal;

/// Directory of logs, beside the configuration.
const RUNS: &str = "hotseam-runs";

/// `hotseam bisect run`.
pub(super) fn run(args: &BisectRunArgs) -> Result<u8, Failure> {
    form::check(&args.form.output)?;
    let invocation = Invocation::new(&args.config, &args.set, &args.plant).map_err(Failure::usage)?;
    let ends = invocation.load()?;
    let cache = args.cache.as_ref().map(|dir| {
        Cache::open(dir.clone())
            .with_context(|| format!("cannot make the cache {}", dir.display()))
            .map_err(Failure::usage)
    });
    let cache = cache.transpose()?;
    let mut options = Options { budget_runs: ends.section.budget(), ..Options::default() };
    bound(&mut options, &args.bounds);
    options.confidence = args.confidence.unwrap_or(options.confidence);
    options.max_set = args.max_set.map_or(options.max_set, |most| most as usize);
    options.seed = args.seed.unwrap_or(options.seed);

    let bar = host::spinner("loading");
    let (mut target, plugins) = make(&ends, &bar)?;
    let facts = facts(&ends, &plugins).map_err(Failure::usage)?;
    bar.line(&plan::overview(&*target, options.budget_runs));
    if args.dry_run {
        let runs = invocation.config().with_file_name(RUNS);
        let result = plan::dry_run(&mut *target, Some(&runs), facts.get("oracle"), args.form.format);
        bar.finish();
        return result.map(|()| 0);
    }
    let header = Header::of(
        &*target,
        env!("CARGO_PKG_VERSION"),
        facts,
        serde_json::to_value(&invocation)?,
        serde_json::to_value(options)?,
    );
    let log = if args.no_log { None } else { new_log(args.log.as_deref(), invocation.config(), &bar)? };
    let (journal, path) = match log {
        Some((file, path)) => {
            let journal = Journal::new(file);
            journal.write(&[Line::Header(Box::new(header.clone()))]);
            (journal, Some(path))
        }
        None => (Journal::silent(), None),
    };
    let mut recorder = Recorder::new(&mut *target, header.clone(), journal, Recorded::default());
    if let Some(cache) = cache {
        recorder = recorder.share(cache);
    }
    search(recorder, &options, &header, path.as_deref(), &args.form, &bar)
}

/// `hotseam bisect resume`.
pub(super) fn resume(args: &BisectResumeArgs) -> Result<u8, Failure> {
    form::check(&args.form.output)?;
    // The working directory may change below.
    let path = std::path::absolute(&args.log).map_err(Failure::usage)?;
    let (file, log) = logs::open(&path)?;
    let mut options: Options = serde_json::from_value(log.options().clone())
        .with_context(|| format!("{} has bounds that this version does not know", path.display()))
        .map_err(Failure::usage)?;
    let before = options;
    bound(&mut options, &args.bounds);
    if let Some(verdict) = log.verdict().filter(|verdict| !matches!(*verdict, "oracle_broken" | "budget"))
        && options == before
    {
        terminal::talk(&format!("the search came to its end ({verdict}); this is its report"));
        let report = logs::again(&log, &path, &mut ())?;
        form::deliver(&report, &form::about(&log.header, Some(&path)), &args.form)?;
        return Ok(report.exit_code);
    }
    let invocation: Invocation = serde_json::from_value(log.header.invocation.clone())
        .with_context(|| format!("{} does not say how it was called", path.display()))
        .map_err(Failure::usage)?;
    let outputs: Vec<PathBuf> =
        args.form.output.iter().map(std::path::absolute).collect::<Result<_, _>>().map_err(Failure::usage)?;
    let form = Form { format: args.form.format, output: outputs };
    let ends = invocation.load()?;
    let bar = host::spinner("loading");
    let (mut target, plugins) = make(&ends, &bar)?;
    let facts = facts(&ends, &plugins).map_err(Failure::usage)?;
    let now = Header::of(
        &*target,
        env!("CARGO_PKG_VERSION"),
        facts,
        log.header.invocation.clone(),
        log.header.options.clone(),
    );
    refuse_other(&log, &now, &path)?;
    let recorded = log.recorded(false);
    bar.line(&format!("{}: {} answers", path.display(), recorded.runs()));
    bar.line(&plan::overview(&*target, options.budget_runs));
    let journal = Journal::after(&log.lines, file);
    journal.write(&[Line::Resume { options: serde_json::to_value(options)? }]);
    let recorder = Recorder::new(&mut *target, log.header.clone(), journal, recorded);
    search(recorder, &options, &log.header, Some(&path), &form, &bar)
}

/// Answers of another configuration are not answers.
fn refuse_other(log: &Log, now: &Header, path: &Path) -> Result<(), Failure> {
    let differences = log.header.differences(now);
    if differences.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(anyhow!(
        "{} was written for something else:\n  {}\nput that back, or start a new search with `hotseam bisect run`",
        path.display(),
        differences.join("\n  ")
    )))
}

fn search(
    mut recorder: Recorder<'_>,
    options: &Options,
    header: &Header,
    log: Option<&Path>,
    form: &Form,
    bar: &Bar,
) -> Result<u8, Failure> {
    let journal = recorder.journal();
    let mut observer = (Talk::new(bar, journal.clone()), journal.clone());
    let report = hotseam_bisect::run(&mut recorder, options, &mut observer);
    journal.write(&[Line::Done { verdict: report.verdict.as_str().to_owned() }]);
    bar.finish();
    if let Some(error) = journal.take_error() {
        terminal::talk(&format!("warning: the log is incomplete: {error}"));
    }
    terminal::talk("");
    form::deliver(&report, &form::about(header, log), form)?;
    Ok(report.exit_code)
}

fn bound(options: &mut Options, bounds: &Bounds) {
    if let Some(runs) = bounds.budget_runs {
        options.budget_runs = runs as usize;
    }
    if let Some(minutes) = bounds.budget_minutes {
        options.budget_seconds = Some(u64::from(minutes) * 60);
    }
    if let Some(most) = bounds.max_culprits {
        options.max_culprits = most as usize;
    }
    if let Some(jobs) = bounds.jobs {
        options.jobs = jobs as usize;
    }
}

fn make(ends: &Ends, bar: &Bar) -> Result<(Box<dyn Target>, Plugins), Failure> {
    host::target(&ends.config, &ends.section, ends.good.clone(), ends.bad.clone(), bar)
}

/// A new log: the one asked for, or one beside the configuration. A place of our own choice that cannot be written to
/// is no reason not to search.
fn new_log(asked: Option<&Path>, config: &Path, bar: &Bar) -> Result<Option<(File, PathBuf)>, Failure> {
    let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    if let Some(path) = asked {
        let file = create(path).map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    format!(": `hotseam bisect resume {}` goes on with it", path.display())
                }
                _ => String::new(),
            };
            Failure::usage(anyhow!(error).context(format!("cannot make the log {}{hint}", path.display())))
        })?;
        logs::lock(&file, path)?;
        return Ok(Some((file, path.to_owned())));
    }
    let dir = config.with_file_name(RUNS);
    let stem = config.file_stem().unwrap_or_default().to_string_lossy();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let made = std::fs::create_dir_all(&dir).and_then(|()| {
        // Two searches may start in one second.
        let mut attempt = 0;
        loop {
            let more = if attempt == 0 { String::new() } else { format!("-{attempt}") };
            let path = dir.join(format!("{stem}-{}{more}.jsonl", stamp(now)));
            match create(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < 100 => {
                    attempt += 1
                }
                made => return made.map(|file| (file, path)),
            }
        }
    });
    match made {
        Ok((file, path)) => {
            logs::lock(&file, &path)?;
            bar.line(&format!("log: {}", path.display()));
            Ok(Some((file, path)))
        }
        Err(error) => {
            bar.line(&format!(
                "no log, {} cannot be written ({error}); --log FILE chooses another place",
                dir.display()
            ));
            Ok(None)
        }
    }
}

/// A time of day in UTC as part of a file name: `20261130-021500`.
fn stamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Civil date of a day since 1970-01-01, counted in eras of 400 years from March.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + carry;
    format!("{year:04}{month:02}{date:02}-{:02}{:02}{:02}", second / 3600, second % 3600 / 60, second % 60)
}

/// Tells what happens, one line a run.
pub(super) struct Talk<'a> {
    bar: Bar,
    style: Style,
    journal: Journal<'a>,
}

impl<'a> Talk<'a> {
    /// Talks above `bar`; `journal` knows which answers were in the log.
    pub(super) fn new(bar: &Bar, journal: Journal<'a>) -> Self {
        Self { bar: bar.clone(), style: terminal::stderr_style(), journal }
    }
}

impl Observer for Talk<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Note(text) => self.bar.line(&format!("    {text}")),
            Event::Start { number, why, .. } => self.bar.message(&format!("#{number} {why}")),
            Event::End { trial } => {
                let mark = if self.journal.was_recorded(trial.number) { "  (log)" } else { "" };
                self.bar.line(&format!("{}{mark}", report::trial_line(trial, self.style)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::stamp;

    #[test]
    fn stamps_are_dates() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_399), "20000228-235959");
        assert_eq!(stamp(951_782_400), "20000229-000000");
        assert_eq!(stamp(951_868_800), "20000301-000000");
        assert_eq!(stamp(1_796_004_905), "20261130-021505");
    }
}
