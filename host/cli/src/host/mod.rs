//! From a configuration to a running engine.

mod expose;
mod progress;
mod rules;
mod target;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use hotseam_config::Config;
use hotseam_encoding::Tokenizer;
use hotseam_engine::{Engine, EngineConfig, GuardReport};
use hotseam_loader::Loader;
use hotseam_model::{Model, ModelConfig};
use hotseam_slots::{Geometry, Registry, Slots, Topology};

use crate::args::{ConfigFile, GuardedFile};
use crate::failure::Failure;
use crate::terminal;

pub(crate) use expose::expose;
pub(crate) use progress::{Bar, spinner};
pub(crate) use rules::{named, parse as parse_rule};
pub(crate) use target::{Plugins, target};
pub(crate) use workload::{check as check_workload, workload};

/// More threads than any machine that this runs on has cores.
const MAX_THREADS: usize = 1024;

/// A model in memory, its tokenizer and an engine that runs it.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Tokenizer,
}

/// Reads a configuration file with its changes.
///
/// # Errors
/// Usage, naming the place.
pub(crate) fn config(file: &ConfigFile) -> Result<Config, Failure> {
    load_config(&file.config, &file.set)
}

/// As [`config`], with the guard on if it was asked for.
///
/// # Errors
/// Usage, naming the place.
pub(crate) fn guarded_config(args: &GuardedFile) -> Result<Config, Failure> {
    let guard = args.guard.then(|| "engine.guard=true".to_owned());
    let set: Vec<String> = args.file.set.iter().cloned().chain(guard).collect();
    load_config(&args.file.config, &set)
}

/// What the guard of an engine found, told on stderr; `None` if calls were not guarded.
pub(crate) fn guarded(engine: &Engine) -> Option<GuardReport> {
    let report = engine.guard();
    if !report.on {
        return None;
    }
    terminal::talk(hotseam_evidence::guard::Table(&report).to_string().trim_end());
    Some(report)
}

/// As [`config`].
pub(crate) fn load_config(path: &Path, set: &[String]) -> Result<Config, Failure> {
    hotseam_config::load(path, set).map_err(Failure::usage)
}

/// Plugin directories: those given, or the directory of this program.
///
/// # Errors
/// If this program does not know where it is.
pub(crate) fn plugin_dirs(given: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let program = std::env::current_exe().context("cannot find the directory of this program")?;
    let dir = program.parent().ok_or_else(|| anyhow!("{} has no directory", program.display()))?;
    Ok(vec![dir.to_owned()])
}

/// The slots of a model, with every assignment of `config` defined.
///
/// # Errors
/// Usage, naming the assignment, if a rule or plugin is refused.
pub(crate) fn slots(config: &Config, model: &ModelConfig) -> Result<Slots, Failure> {
    let loader = Loader::new(plugin_dirs(&config.plugins.dirs)?).map_err(Failure::usage)?;
    let geometry = Geometry::new(model, topology(config));
    let slots = Slots::new(Registry::new(loader, geometry));
    for (name, _) in config.assignments.iter() {
        let rules = named(config, name)?;
        slots
            .define(name, rules)
            .map_err(|error| Failure::usage(anyhow!(error).context(format!("assignment `{name}`"))))?;
    }
    Ok(slots)
}

/// Loads the model, the plugins and the tokenizer, and starts an engine.
///
/// # Errors
/// Usage for what the configuration names wrongly; otherwise what failed.
pub(crate) fn start(config: &Config) -> Result<Host, Failure> {
    let path = &config.model.path;
    let spinner = spinner(&format!("loading {}", path.display()));
    if config.engine.threads > MAX_THREADS {
        let found = config.engine.threads;
        return Err(Failure::usage(anyhow!(
            "engine.threads is {found}, expected 0 (one a core) to {MAX_THREADS}"
        )));
    }
    let threads = hotseam_loader::init_threads(config.engine.threads);
    let loaded =
        hotseam_checkpoint::read(path, |done, total| spinner.tick(done, total)).map_err(Failure::usage)?;
    for note in &loaded.notes {
        tracing::info!("{note}");
    }
    let tokenizer = Tokenizer::load(path).map_err(Failure::usage)?;
    let slots = slots(config, &loaded.config)?;
    let sizes = sizes(config);
    sizes.validate(&loaded.config).map_err(Failure::usage)?;
    // Compressed entries are roped at positions of the text, so the context is all that is asked for.
    let model = Model::new(loaded.config, loaded.weights, config.engine.max_context);
    let engine = Engine::start(Arc::new(model), Arc::new(slots), sizes).map_err(Failure::usage)?;
    spinner.finish();
    tracing::info!(model = %path.display(), threads, "model loaded");
    Ok(Host { engine, tokenizer })
}

fn topology(config: &Config) -> Topology {
    match config.engine.topology {
        hotseam_config::Topology::Single => Topology::Single,
        hotseam_config::Topology::Paired => Topology::Paired,
    }
}

fn sizes(config: &Config) -> EngineConfig {
    let section = &config.engine;
    EngineConfig {
        max_seqs: section.max_seqs,
        max_context: section.max_context,
        chunk: section.chunk,
        pages: section.pages,
        topology: topology(config),
        index_topk: section.index_topk,
        prefix_cache_bytes: section.prefix_cache_bytes,
        guard: section.guard,
    }
}

/// A sentence about the engine that a command runs in this process.
pub(crate) fn announce(config: &Config, host: &Host) {
    let model = &host.engine.model().config;
    terminal::talk(&format!(
        "{}: {} layers, topology {}, chunks of {}",
        model_name(config),
        model.num_hidden_layers,
        topology(config),
        config.engine.chunk,
    ));
}

/// Name of the model: that of the checkpoint directory.
pub(crate) fn model_name(config: &Config) -> String {
    config
        .model
        .path
        .file_name()
        .map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}
