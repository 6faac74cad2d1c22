//! `hotseam config`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use hotseam_config::Config;
use hotseam_encoding::Tokenizer;
use hotseam_slots::Loaded;
use serde::Serialize;

use crate::args::{ConfigArgs, ConfigCommand, ConfigFile, Format};
use crate::failure::Failure;
use crate::host;
use crate::terminal;

/// Checks or prints a configuration.
pub(crate) fn run(args: &ConfigArgs) -> Result<u8, Failure> {
    match &args.command {
        ConfigCommand::Validate { file, format } => validate(file, *format),
        ConfigCommand::Print { effective, file, format } => print(*effective, file, *format),
        ConfigCommand::Schema => {
            terminal::json(&hotseam_config::json_schema())?;
            Ok(0)
        }
    }
}

/// What was found to be sound.
#[derive(Serialize)]
struct Valid {
    file: String,
    model: String,
    /// Digest of all cells, by assignment.
    assignments: BTreeMap<String, String>,
    plugins: Vec<Loaded>,
}

fn validate(file: &ConfigFile, format: Format) -> Result<u8, Failure> {
    let config = host::config(file)?;
    let no_model = |error: String| Failure::usage(config.error_at("model.path", error));
    let model = hotseam_checkpoint::read_config(&config.model.path).map_err(|e| no_model(e.to_string()))?;
    Tokenizer::load(&config.model.path).map_err(|e| no_model(e.to_string()))?;
    host::engine_sizes(&config, &model)?;
    files_exist(&config)?;
    let slots = host::slots(&config, &model)?;
    let digest = |name: &String| slots.snapshot(name).map(|cells| cells.digest().to_string());
    let valid = Valid {
        file: file.config.display().to_string(),
        model: host::model_name(&config),
        assignments: slots
            .names()
            .into_iter()
            .filter_map(|name| Some((name.clone(), digest(&name)?)))
            .collect(),
        plugins: slots.registry().loaded(),
    };
    match format {
        Format::Json => terminal::json(&valid)?,
        Format::Text => terminal::data(&valid.text())?,
    }
    Ok(0)
}

/// Refuses a file of the configuration that a later command would miss.
fn files_exist(config: &Config) -> Result<(), Failure> {
    for (index, path) in config.needle.haystack.iter().enumerate() {
        if let Err(error) = std::fs::File::open(path) {
            let path = path.display();
            let field = format!("needle.haystack[{index}]");
            return Err(Failure::usage(config.error_at(&field, format!("cannot read {path}: {error}"))));
        }
    }
    Ok(())
}

impl Valid {
    fn text(&self) -> String {
        let mut text = format!("{}: valid\n", self.file);
        let _ = writeln!(text, "  model        {}", self.model);
        let width = self.assignments.keys().map(String::len).max().unwrap_or(0);
        for (index, (name, digest)) in self.assignments.iter().enumerate() {
            let label = if index == 0 { "assignments" } else { "" };
            let digest = digest.get(..12).unwrap_or(digest);
            let _ = writeln!(text, "  {label:<11}  {name:<width$}  {digest}");
        }
        let width = self.plugins.iter().map(|plugin| plugin.name.len()).max().unwrap_or(0);
        for (index, plugin) in self.plugins.iter().enumerate() {
            let label = if index == 0 { "plugins" } else { "" };
            let hash = plugin.sha256.get(..12).unwrap_or(&plugin.sha256);
            let _ = writeln!(text, "  {label:<11}  {:<width$}  {hash}", plugin.name);
        }
        text
    }
}

fn print(effective: bool, file: &ConfigFile, format: Format) -> Result<u8, Failure> {
    let config = host::config(file)?;
    if !effective && file.set.is_empty() && format == Format::Text {
        let text = std::fs::read_to_string(&file.config)
            .with_context(|| format!("cannot read {}", file.config.display()))?;
        terminal::data(&text)?;
        return Ok(0);
    }
    match format {
        Format::Json => terminal::json(&config)?,
        Format::Text => terminal::data(&serde_yaml::to_string(&config)?)?,
    }
    Ok(0)
}
