//! `hotseam config`.

use anyhow::Context as _;

use crate::args::{ConfigArgs, ConfigCommand, ConfigFile, Format};
use crate::failure::Failure;
use crate::host;
use crate::terminal;

/// Checks or prints a configuration.
pub(crate) fn run(args: &ConfigArgs) -> Result<u8, Failure> {
    match &args.command {
        ConfigCommand::Validate { file } => validate(file),
        ConfigCommand::Print { effective, file, format } => print(*effective, file, *format),
    }
}

fn validate(file: &ConfigFile) -> Result<u8, Failure> {
    let config = host::config(file)?;
    let model = hotseam_checkpoint::read_config(&config.model.path).map_err(Failure::usage)?;
    let slots = host::slots(&config, &model)?;
    terminal::data(&format!(
        "{}: valid; assignments {}; {} plugins",
        file.config.display(),
        slots.names().join(", "),
        slots.registry().loaded().len()
    ))?;
    Ok(0)
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
