//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::PathBuf;

/// Where a bad value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A position in the configuration file, counted from 1.
    File {
        /// The file as it was named by the caller.
        name: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The text of that line, for display.
        source_line: String,
    },
    /// A `--set` argument, as it was typed.
    Override(String),
}

/// Failure to obtain a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read configuration {}: {source}", .path.display())]
    Read {
        /// The file as it was named by the caller.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The configuration is malformed, or one of its values is not allowed.
    #[error(transparent)]
    Invalid(Box<InvalidValue>),
}

/// A value that is not allowed, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidValue {
    /// Where the value stands.
    pub place: Place,
    /// Field path such as `assignments.live[0].use`; empty at the root.
    pub path: String,
    /// What was expected and what was found.
    pub message: String,
    /// The nearest known name or another next step, if there is one.
    pub hint: Option<String>,
}

impl std::error::Error for InvalidValue {}

impl fmt::Display for InvalidValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, path, message, hint } = self;
        match place {
            Place::File { name, line, column, source_line } => {
                writeln!(out, "{name}:{line}:{column}: {message}")?;
                let number = line.to_string();
                let gutter = " ".repeat(number.len());
                // Tabs keep their width in the caret line so that the caret stands under its column.
                let indent: String = source_line
                    .chars()
                    .take(column - 1)
                    .map(|c| if c == '\t' { '\t' } else { ' ' })
                    .collect();
                write!(out, "{gutter} |\n{number} | {source_line}\n{gutter} | {indent}^")?;
            }
            Place::Override(argument) => write!(out, "--set {argument}: {message}")?,
        }
        if !path.is_empty() {
            write!(out, "\n  field: {path}")?;
        }
        if let Some(hint) = hint {
            write!(out, "\n  help: {hint}")?;
        }
        Ok(())
    }
}
