//! The forms of a report, on stdout and in files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use hotseam_bisect::Report;
use hotseam_bisect::log::Header;
use hotseam_bisect::report::{self, About, Style};

use super::invocation::Invocation;
use crate::args::{Form, ReportFormat};
use crate::failure::Failure;
use crate::terminal;

/// Columns of a text report in a file.
const WIDTH: usize = 100;

/// The forms by the end of a file's name.
const ENDINGS: [(&str, ReportFormat); 7] = [
    ("html", ReportFormat::Html),
    ("htm", ReportFormat::Html),
    ("md", ReportFormat::Markdown),
    ("json", ReportFormat::Json),
    ("xml", ReportFormat::Junit),
    ("txt", ReportFormat::Text),
    ("text", ReportFormat::Text),
];

/// What a report says about where it comes from.
pub(super) fn about(header: &Header, log: Option<&Path>) -> About {
    let invocation = serde_json::from_value::<Invocation>(header.invocation.clone());
    let facts = header.facts.iter().map(|(name, fact)| (name.clone(), fact.clone())).collect();
    About {
        version: header.version.clone(),
        command: invocation.map(|invocation| invocation.command()).unwrap_or_default(),
        log: log.map(|log| log.display().to_string()),
        facts,
    }
}

/// The form that the name of `path` ends with.
///
/// # Errors
/// Usage, with the endings there are.
pub(super) fn ending(path: &Path) -> Result<ReportFormat, Failure> {
    let end = path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let known = ENDINGS.iter().find(|(known, _)| *known == end);
    known.map(|(_, format)| *format).ok_or_else(|| {
        let text = "expected a name that ends in .html, .md, .json, .xml (JUnit) or .txt, or --format";
        Failure::usage(anyhow!("cannot tell the form of {}: {text}", path.display()))
    })
}

/// Refuses outputs whose form is unknown, before a search of minutes.
///
/// # Errors
/// As [`ending`].
pub(super) fn check(outputs: &[PathBuf]) -> Result<(), Failure> {
    outputs.iter().try_for_each(|path| ending(path).map(drop))
}

/// Prints a report, and writes it to the files asked for.
///
/// # Errors
/// What could not be written.
pub(super) fn deliver(report: &Report, about: &About, form: &Form) -> Result<(), Failure> {
    for path in &form.output {
        write(report, about, ending(path)?, path)?;
    }
    terminal::data(&draw(report, about, form.format, terminal::stdout_style())?)?;
    Ok(())
}

/// Writes a report to a file.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write(
    report: &Report,
    about: &About,
    format: ReportFormat,
    path: &Path,
) -> Result<(), Failure> {
    let text = draw(report, about, format, Style { color: false, width: WIDTH })?;
    std::fs::write(path, text)
        .with_context(|| format!("cannot write {}", path.display()))
        .map_err(Failure::usage)?;
    terminal::talk(&format!("wrote {}", path.display()));
    Ok(())
}

/// A report in one of its forms.
///
/// # Errors
/// None that a report can cause.
pub(super) fn draw(
    report: &Report,
    about: &About,
    format: ReportFormat,
    style: Style,
) -> anyhow::Result<String> {
    Ok(match format {
        ReportFormat::Text => report::text(report, style),
        ReportFormat::Json => serde_json::to_string_pretty(report)? + "\n",
        ReportFormat::Markdown => report::markdown(report, about),
        ReportFormat::Html => report::html(report, about),
        ReportFormat::Junit => report::junit(report, about),
    })
}
