//! `hotseam plugin`.

use std::fmt::Write as _;

use hotseam_evidence::conform::{self, CheckLevel};
use hotseam_loader::{Loader, Manifest, Plugin};
use hotseam_slots::{Geometry, LayerClass, Registry, Topology, VariantSpec};
use serde::Serialize;
use serde_json::Value;

use crate::args::{Format, PluginArgs, PluginCheckArgs, PluginCommand, PluginDirs};
use crate::failure::Failure;
use crate::host::plugin_dirs;
use crate::terminal;

/// Dimensions of entries for checks outside a model: the cases bring their own tensors, of these sizes.
pub(super) const HEAD_DIM: u32 = 64;
const INDEX_HEAD_DIM: u32 = 32;

/// Lists, shows or checks plugins.
pub(crate) fn run(args: &PluginArgs) -> Result<u8, Failure> {
    match &args.command {
        PluginCommand::List { dirs, format } => list(dirs, *format),
        PluginCommand::Inspect { plugin, dirs, format } => inspect(plugin, dirs, *format),
        PluginCommand::Check(args) => check(args),
    }
}

#[derive(Serialize)]
struct Listed {
    name: String,
    /// Absent if the plugin was refused.
    manifest: Option<Manifest>,
    sha256: Option<String>,
    error: Option<String>,
}

fn list(dirs: &PluginDirs, format: Format) -> Result<u8, Failure> {
    let loader = loader(dirs)?;
    let listed: Vec<Listed> = loader
        .names()
        .into_iter()
        .map(|name| match loader.open(&name) {
            Ok(plugin) => Listed {
                name,
                manifest: Some(plugin.manifest().clone()),
                sha256: Some(plugin.sha256().to_owned()),
                error: None,
            },
            Err(error) => Listed { name, manifest: None, sha256: None, error: Some(error.to_string()) },
        })
        .collect();
    match format {
        Format::Json => terminal::json(&listed)?,
        Format::Text => {
            let width = listed.iter().map(|plugin| plugin.name.len()).max().unwrap_or(0);
            let mut text = String::new();
            for plugin in &listed {
                let what = match (&plugin.manifest, &plugin.error) {
                    (Some(manifest), _) => manifest.description.clone(),
                    (None, error) => format!("refused: {}", error.as_deref().unwrap_or_default()),
                };
                let _ = writeln!(text, "{:<width$}  {what}", plugin.name);
            }
            terminal::data(&text)?;
        }
    }
    if listed.is_empty() {
        terminal::talk("no plugins found; name their directory with --dir");
    }
    Ok(0)
}

fn inspect(name: &str, dirs: &PluginDirs, format: Format) -> Result<u8, Failure> {
    let plugin = loader(dirs)?.open(name)?;
    match format {
        Format::Json => terminal::json(&Listed {
            name: plugin.name().to_owned(),
            manifest: Some(plugin.manifest().clone()),
            sha256: Some(plugin.sha256().to_owned()),
            error: None,
        })?,
        Format::Text => terminal::data(&describe(&plugin))?,
    }
    Ok(0)
}

fn describe(plugin: &Plugin) -> String {
    let manifest = plugin.manifest();
    let mut text = format!("{} {}\n  {}\n", manifest.name, manifest.version, manifest.description);
    let _ = writeln!(text, "  file    {}\n  sha256  {}", plugin.path().display(), plugin.sha256());
    if let Some(base) = &manifest.base {
        let _ = writeln!(text, "  base    {base}");
    }
    if !manifest.requires.cpu.is_empty() {
        let _ = writeln!(text, "  cpu     {}", manifest.requires.cpu.join(", "));
    }
    for (name, option) in &manifest.options {
        let values: Vec<String> = option.values.iter().map(plain).collect();
        let kind = if values.is_empty() { option.kind.name().to_owned() } else { values.join(" | ") };
        let _ = writeln!(
            text,
            "  option  {name}: {kind}, default {}\n          {}",
            plain(&option.default),
            option.help
        );
    }
    text
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn check(args: &PluginCheckArgs) -> Result<u8, Failure> {
    if let Some(file) = &args.replay {
        return super::capture::replay(args, file);
    }
    let spec: VariantSpec = args.variant.parse().map_err(Failure::usage)?;
    let geometry = Geometry {
        classes: vec![LayerClass::Csa],
        hash: vec![false],
        head_dim: HEAD_DIM,
        index_head_dim: INDEX_HEAD_DIM,
        topology: Topology::Paired,
    };
    let registry = Registry::new(loader(&args.dirs)?, geometry);
    let generation = registry.generation(&spec).map_err(Failure::usage)?;
    let level = if args.quick { CheckLevel::Quick } else { CheckLevel::Full };
    let report = conform::check(&generation, level).map_err(Failure::usage)?;
    match args.format {
        Format::Text => terminal::data(&report.to_string())?,
        Format::Json => {
            let mut value = serde_json::to_value(&report)?;
            value["passed"] = report.passed().into();
            terminal::json(&value)?;
        }
    }
    if report.cases.is_empty() {
        terminal::talk("the variant serves no op of its own; its base does");
    }
    Ok(u8::from(!report.passed()))
}

pub(super) fn loader(dirs: &PluginDirs) -> Result<Loader, Failure> {
    Loader::new(plugin_dirs(&dirs.dirs)?).map_err(Failure::usage)
}
