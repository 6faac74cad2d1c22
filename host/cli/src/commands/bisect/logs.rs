//! Commands that need a log and no model.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context as _, anyhow};
use hotseam_bisect::log::{Journal, Log, Recorder, listing};
use hotseam_bisect::{Observer, Options, Report};

use super::form;
use super::search::Talk;
use crate::args::{BisectLogArgs, BisectReplayArgs, BisectReportArgs, BisectUndoArgs, ReportFormat};
use crate::failure::Failure;
use crate::host;
use crate::terminal;

/// `hotseam bisect replay`: the runs as they were, then the report.
pub(super) fn replay(args: &BisectReplayArgs) -> Result<u8, Failure> {
    form::check(&args.form.output)?;
    let log = read(&args.log)?;
    let bar = host::spinner("replaying");
    let report = again(&log, &args.log, &mut Talk::new(&bar, Journal::silent()))?;
    bar.finish();
    terminal::talk("");
    form::deliver(&report, &form::about(&log.header, Some(&args.log)), &args.form)?;
    Ok(report.exit_code)
}

/// `hotseam bisect report`: the report alone.
pub(super) fn report(args: &BisectReportArgs) -> Result<u8, Failure> {
    let format = match (args.format, &args.output) {
        (Some(format), _) => format,
        (None, Some(path)) => form::ending(path)?,
        (None, None) => ReportFormat::Text,
    };
    let log = read(&args.log)?;
    let report = again(&log, &args.log, &mut ())?;
    let about = form::about(&log.header, Some(&args.log));
    match &args.output {
        Some(path) => form::write(&report, &about, format, path)?,
        None => terminal::data(&form::draw(&report, &about, format, terminal::stdout_style())?)?,
    }
    // The report was written; what it says is not the success of this command.
    Ok(0)
}

/// `hotseam bisect log`.
pub(super) fn list(args: &BisectLogArgs) -> Result<u8, Failure> {
    terminal::data(&listing(&read(&args.log)?))?;
    Ok(0)
}

/// `hotseam bisect undo`.
pub(super) fn undo(args: &BisectUndoArgs) -> Result<u8, Failure> {
    let (file, log) = open(&args.log)?;
    let line = log.undo(args.run).map_err(Failure::usage)?;
    let journal = Journal::after(&log.lines, file);
    journal.write(std::slice::from_ref(&line));
    if let Some(error) = journal.take_error() {
        return Err(Failure::usage(anyhow!(error).context(format!("cannot write {}", args.log.display()))));
    }
    if let hotseam_bisect::log::Line::Undo { number } = line {
        terminal::data(&format!(
            "run {number} undone; `hotseam bisect resume {}` asks it again",
            args.log.display()
        ))?;
    }
    Ok(0)
}

/// The search of `log` over its own answers.
///
/// # Errors
/// Usage, if the log does not hold all answers.
pub(super) fn again(log: &Log, path: &Path, observer: &mut dyn Observer) -> Result<Report, Failure> {
    let options: Options = serde_json::from_value(log.options().clone())
        .with_context(|| format!("{} has bounds that this version does not know", path.display()))
        .map_err(Failure::usage)?;
    let mut target = Recorder::replay(log);
    let mut observer = (observer, target.journal());
    let report = hotseam_bisect::run(&mut target, &options, &mut observer);
    if let Some(what) = target.missing() {
        return Err(Failure::usage(anyhow!(
            "{} holds no answer for {what}: the search did not come to its end. `hotseam bisect resume {}` goes on with it",
            path.display(),
            path.display()
        )));
    }
    Ok(report)
}

/// Reads a log.
///
/// # Errors
/// Usage, naming the file.
fn read(path: &Path) -> Result<Log, Failure> {
    let bytes = std::fs::read(path)
        .with_context(|| format!("cannot read the log {}", path.display()))
        .map_err(Failure::usage)?;
    Log::read(&bytes).with_context(|| path.display().to_string()).map_err(Failure::usage)
}

/// Opens a log to write at its end; the torn rest of a last line is cut off.
///
/// # Errors
/// Usage, naming the file; also if another search writes to it.
pub(super) fn open(path: &Path) -> Result<(File, Log), Failure> {
    let log = read(path)?;
    let cannot = || format!("cannot write the log {}", path.display());
    let mut file = OpenOptions::new().write(true).open(path).with_context(cannot).map_err(Failure::usage)?;
    lock(&file, path)?;
    file.set_len(log.whole as u64).with_context(cannot)?;
    file.seek(SeekFrom::End(0)).with_context(cannot)?;
    Ok((file, log))
}

/// Makes this process the only one that writes to a log.
///
/// # Errors
/// Usage, if another one does.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), Failure> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(std::fs::TryLockError::WouldBlock) => Err(Failure::usage(anyhow!(
            "another search writes to {}: wait for it, or end it",
            path.display()
        ))),
        // Some file systems have no locks; one writer is the usual case.
        Err(std::fs::TryLockError::Error(_)) => Ok(()),
    }
}
