//! From a configuration to a running engine.

mod crash;
mod expose;
mod plugins;
mod progress;
mod ranks;
mod reload;
mod rules;
mod target;
mod workload;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hotseam_config::{Config, DisaggregationSection, WeightMemory};
use hotseam_encoding::Tokenizer;
use hotseam_engine::{
    CublasLt, Device, Engine, EngineConfig, EngineError, GuardReport, Leader, PdSettings, Role, SwapSettings,
};
use hotseam_model::{Model, ModelConfig};
use hotseam_slots::{Geometry, Registry, Slots, Topology};

use crate::args::{ConfigFile, GuardedFile};
use crate::failure::Failure;
use crate::terminal;

pub(crate) use expose::expose;
pub(crate) use plugins::{loader, plugin_dirs};
pub(crate) use progress::{Bar, spinner};
pub(crate) use ranks::run as run_rank;
use ranks::threads;
pub(crate) use reload::ConfigSource;
pub(crate) use rules::{named, parse as parse_rule};
pub(crate) use target::{Plugins, target};
pub(crate) use workload::prepare;

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
    config(&guarded_file(args))
}

/// The file with the changes that are asked for, the guard among them.
pub(crate) fn guarded_file(args: &GuardedFile) -> ConfigFile {
    let guard = args.guard.then(|| "engine.guard=true".to_owned());
    let set = args.file.set.iter().cloned().chain(guard).collect();
    ConfigFile { config: args.file.config.clone(), set }
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

/// The slots of a model, with every assignment of `config` defined.
///
/// # Errors
/// Usage, naming the assignment, if a rule or plugin is refused.
pub(crate) fn slots(config: &Config, model: &ModelConfig) -> Result<Slots, Failure> {
    slots_after(config, model, false, None)
}

/// As [`slots`]; for a `server`, what a crash in the middle of a swap left behind is made good first.
fn slots_after(
    config: &Config,
    model: &ModelConfig,
    server: bool,
    leader: Option<Arc<Leader>>,
) -> Result<Slots, Failure> {
    let loader = loader(&config.plugins)
        .map_err(|unusable| Failure::usage(config.error_at(&unusable.field, unusable.error.to_string())))?;
    let marker = if server { crash::recovered(&loader, &owner(config)) } else { None };
    let geometry = Geometry::new(model, topology(config)).of_rank(0, config.engine.tp_size);
    let device = device(config);
    if let Device::Cuda(ordinal) = device {
        hotseam_loader::init_device(ordinal);
    }
    let slots = Slots::new(Registry::new(loader, geometry).on(device.of_variants())).with_peers(leader);
    for (name, _) in config.assignments.iter() {
        if crash::restored(marker.as_ref(), &slots, name) {
            continue;
        }
        let rules = named(config, name)?;
        slots
            .define(name, rules.clone())
            .map_err(|error| rules::refused(config, name, &rules, slots.registry(), &error))?;
    }
    Ok(slots)
}

/// What tells servers apart that share a state directory.
fn owner(config: &Config) -> String {
    config.server.listen.to_string()
}

/// Loads the model, the plugins and the tokenizer, and starts an engine.
///
/// # Errors
/// Usage for what the configuration names wrongly; otherwise what failed.
pub(crate) fn start(config: &Config) -> Result<Host, Failure> {
    launch(config, false)
}

/// As [`start`], for a server, which outlives swaps: after a crash in the middle of one it starts on what was before.
///
/// # Errors
/// As [`start`].
pub(crate) fn start_server(config: &Config) -> Result<Host, Failure> {
    launch(config, true)
}

fn launch(config: &Config, server: bool) -> Result<Host, Failure> {
    let path = &config.model.path;
    let spinner = spinner(&format!("loading {}", path.display()));
    check_threads(config)?;
    let threads = threads(config.engine.threads, config.engine.tp_size);
    // A command that runs the model in its own process is both ends of a pair.
    let role = if server { role(config) } else { Role::Single };
    let dimensions = hotseam_checkpoint::read_config(path).map_err(Failure::usage)?;
    let sizes = EngineConfig { role, ..engine_sizes(config, &dimensions)? };
    // The other ranks load their parts meanwhile.
    let leader = Leader::start(&sizes, dimensions.hidden_size).map_err(Failure::usage)?;
    let mut loaded =
        hotseam_checkpoint::read(path, |done, total| spinner.tick(done, total)).map_err(Failure::usage)?;
    if config.model.memory == WeightMemory::Copied {
        let copied = hotseam_checkpoint::copy_resident(&mut loaded.weights);
        copied.with_context(|| format!("model.memory: no room to copy the weights of {}", path.display()))?;
    }
    for note in &loaded.notes {
        tracing::info!("{note}");
    }
    let tokenizer = Tokenizer::load(path).map_err(Failure::usage)?;
    let slots = slots_after(config, &loaded.config, server, leader)?;
    // Compressed entries are roped at positions of the text, so the context is all that is asked for.
    let model = Model::new(loaded.config, loaded.weights, config.engine.max_context);
    let engine = Engine::start(Arc::new(model), Arc::new(slots), sizes).map_err(Failure::usage)?;
    spinner.finish();
    tracing::info!(model = %path.display(), threads, "model loaded");
    Ok(Host { engine, tokenizer })
}

/// An engine of another topology over the model of `host`, with the assignments of the file.
///
/// # Errors
/// As [`start`].
pub(crate) fn beside(
    config: &Config,
    host: &Host,
    topology: hotseam_config::Topology,
) -> Result<Engine, Failure> {
    let mut config = config.clone();
    config.engine.topology = topology;
    let model = host.engine.model();
    let sizes = engine_sizes(&config, &model.config)?;
    let leader = Leader::start(&sizes, model.config.hidden_size).map_err(Failure::usage)?;
    let slots = slots_after(&config, &model.config, false, leader)?;
    Engine::start(model.clone(), Arc::new(slots), sizes).map_err(Failure::usage)
}

fn topology(config: &Config) -> Topology {
    match config.engine.topology {
        hotseam_config::Topology::Single => Topology::Single,
        hotseam_config::Topology::Paired => Topology::Paired,
    }
}

fn role(config: &Config) -> Role {
    match config.disaggregation.role {
        hotseam_config::Role::Single => Role::Single,
        hotseam_config::Role::Prefill => Role::Prefill,
        hotseam_config::Role::Decode => Role::Decode,
    }
}

fn pd(section: &DisaggregationSection) -> PdSettings {
    PdSettings {
        listen: section.listen,
        advertise: section.advertise.clone(),
        bootstrap_timeout: Duration::from_secs_f64(section.bootstrap_timeout_seconds),
        waiting_timeout: Duration::from_secs_f64(section.waiting_timeout_seconds),
        hosts: section.hosts.clone(),
        swap_group: section.swap_group.clone(),
        prefill_workers: section.prefill_places(),
        // Until the audit log is there.
        peers_wait: true,
        audit: section.audit,
    }
}

fn check_threads(config: &Config) -> Result<(), Failure> {
    match config.engine.threads {
        0..=MAX_THREADS => Ok(()),
        found => {
            let text = format!("expected 0 (one a core) to {MAX_THREADS}, found {found}");
            Err(Failure::usage(config.error_at("engine.threads", text)))
        }
    }
}

/// Where steps run.
fn device(config: &Config) -> Device {
    match config.engine.device {
        hotseam_config::Device::Cpu => Device::Cpu,
        hotseam_config::Device::Cuda(ordinal) => Device::Cuda(ordinal),
    }
}

/// The sizes of an engine for a model.
///
/// # Errors
/// Usage, naming the field that does not fit the model.
pub(crate) fn engine_sizes(config: &Config, model: &ModelConfig) -> Result<EngineConfig, Failure> {
    check_threads(config)?;
    let section = &config.engine;
    let sizes = EngineConfig {
        device: device(config),
        graphs: section.graphs,
        cublaslt: match section.cublaslt {
            hotseam_config::CublasLt::Auto => CublasLt::Auto,
            hotseam_config::CublasLt::Off => CublasLt::Off,
            hotseam_config::CublasLt::Required => CublasLt::Required,
        },
        max_seqs: section.max_seqs,
        max_context: section.max_context,
        chunk: section.chunk,
        pages: section.pages,
        topology: topology(config),
        pd: pd(&config.disaggregation),
        index_topk: section.index_topk,
        prefix_cache_bytes: section.prefix_cache_bytes,
        guard: section.guard,
        amx: section.amx,
        ranks: ranks::settings(config)?,
        swap: SwapSettings { owner: owner(config), exit_on_hang: true, ..SwapSettings::default() },
        ..EngineConfig::default()
    };
    sizes.validate(model).map_err(|error| match error {
        EngineError::Config { field, expected, found } => {
            Failure::usage(config.error_at(field, format!("expected {expected}, found {found}")))
        }
        other => Failure::usage(other),
    })?;
    Ok(sizes)
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
