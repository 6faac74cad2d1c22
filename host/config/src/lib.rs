//! The YAML configuration of Hotseam.
//!
//! [`load`] reads a file, applies `--set a.b=c` overrides, checks every key and every reference, and makes
//! paths absolute. Nothing is silently defaulted: an unknown key, a duplicate key, a value of the wrong type
//! and an assignment that extends a missing one are errors, and each error names the file, line, column,
//! field path and, where a name is misspelt, the nearest known one.
//!
//! Selectors and variants stay text here ([`RuleText`]); `hotseam-slots` gives them meaning.

mod admin;
mod assignments;
mod disaggregation;
mod document;
mod engine;
mod error;
mod json_schema;
mod names;
mod oracle;
mod origin;
mod overrides;
mod plugins;
mod schema;
mod target;

use std::path::Path;

use origin::Origin;

pub use admin::AdminTcpSection;
pub use assignments::{Assignment, Assignments, DEFAULT_ASSIGNMENT, RuleText, valid_assignment_name};
pub use disaggregation::{DisaggregationSection, Role};
pub use document::quoted;
pub use engine::{Collective, CublasLt, Device, EngineSection, Topology};
pub use error::{ConfigError, InvalidValue, Place};
pub use json_schema::json_schema;
pub use names::cut_quotations;
pub use oracle::{
    AuditOracle, CommandOracle, ExactOracle, ExactPrompt, KlOracle, NeedleOracle, NeedleTask, NoiseKind,
    Oracle, OracleKind, PerplexityOracle, RepeatOracle,
};
pub use plugins::{PluginPolicy, PluginsSection, ProbeSection, user_state_dir};
pub use schema::{BisectSection, Config, ModelSection, NeedleSection, ServerSection, WeightMemory};
pub use target::{Endpoint, EndpointPlace, TargetSection, WorkerSection};

/// Reads the configuration at `path` and applies `overrides`, each of the form `a.b=value` with a YAML value.
///
/// Relative paths in the file resolve against the file's directory; relative paths given by an override
/// resolve against the current directory, because they are typed there.
///
/// # Errors
/// [`ConfigError::Read`] if the file cannot be read, [`ConfigError::Invalid`] with a position in the file or
/// the name of the override for everything else.
pub fn load(path: &Path, overrides: &[String]) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    // The parser takes a byte order mark for the end of a document.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let file =
        std::path::absolute(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let directory = file.parent().unwrap_or(Path::new("/"));
    parse(text, &path.display().to_string(), directory, overrides)
}

/// As [`load`], for a text already in memory. `name` stands for the file in messages, `directory` is what
/// relative paths in the text resolve against.
///
/// # Errors
/// [`ConfigError::Invalid`], as for [`load`].
pub fn parse(text: &str, name: &str, directory: &Path, overrides: &[String]) -> Result<Config, ConfigError> {
    let mut value = document::Source { name, text }.value()?;
    let origin = Origin::new(name, text, overrides::parse_all(overrides)?);
    for entry in origin.overrides() {
        entry.apply(&mut value)?;
    }
    let mut config = document::typed(&value).map_err(|fault| origin.error(fault))?;
    config.check_references().map_err(|fault| origin.error(fault))?;
    let here = std::env::current_dir()
        .map_err(|error| ConfigError::Read { path: Path::new(".").to_owned(), source: error })?;
    config.resolve_paths(|field| {
        let typed = origin.overrides().iter().any(|entry| entry.sets(field));
        if typed { here.as_path() } else { directory }
    });
    config.origin = origin;
    Ok(config)
}
