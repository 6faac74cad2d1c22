//! The ranks of a tensor-parallel group: what the leader tells the others, and what they make of it.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use hotseam_config::{Collective, Config, PluginsSection, WeightMemory};
use hotseam_engine::{Carrier, Device, EngineConfig, RankEnds, RankParts, RankSettings, follow};
use hotseam_model::Model;
use hotseam_slots::{Geometry, Registry, Slots, Topology};
use serde::{Deserialize, Serialize};

use super::plugins;
use crate::failure::Failure;

/// What a rank needs to know of the configuration.
#[derive(Serialize, Deserialize)]
struct Spec {
    /// Directory of the checkpoint.
    model: PathBuf,
    plugins: PluginsSection,
    threads: usize,
}

/// The group that a configuration asks for; `None` for one rank.
///
/// # Errors
/// Usage, if its weights are to be copied; or if this program does not know where it is.
pub(super) fn settings(config: &Config) -> Result<Option<RankSettings>, Failure> {
    let world = config.engine.tp_size;
    if world == 1 {
        return Ok(None);
    }
    if config.model.memory == WeightMemory::Copied {
        let text = "expected mapped where engine.tp_size is above 1, found copied: each rank reads its part of the files";
        return Err(Failure::usage(config.error_at("model.memory", text.to_owned())));
    }
    let (model, plugins) = (config.model.path.clone(), config.plugins.clone());
    let spec = Spec { model, plugins, threads: config.engine.threads };
    Ok(Some(RankSettings {
        world,
        program: plugins::this_program()?,
        args: vec!["rank".to_owned()],
        spec: serde_json::to_string(&spec).context("the configuration has no text")?,
        carrier: match config.engine.collective {
            Collective::Auto => Carrier::Auto,
            Collective::Shared => Carrier::Shared,
            Collective::Nccl => Carrier::Nccl,
        },
    }))
}

/// Threads of the arithmetic of one process: those asked for, or its share of the cores.
pub(crate) fn threads(asked: usize, ranks: u32) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    hotseam_loader::init_threads(match (asked, ranks) {
        (0, 2..) => (cores / ranks as usize).max(1),
        _ => asked,
    })
}

/// Runs one rank until its leader is gone.
///
/// # Errors
/// If it cannot run; the leader has been told why.
pub(crate) fn run(ends: RankEnds) -> anyhow::Result<()> {
    follow(ends, |spec, place, sizes| parts(spec, place, sizes).map_err(|error| format!("{error:#}")))
        .map_err(|message| anyhow!(message))
}

fn parts(spec: &str, (rank, world): (u32, u32), sizes: &EngineConfig) -> anyhow::Result<RankParts> {
    let spec: Spec = serde_json::from_str(spec).context("what the leader says of the model")?;
    threads(spec.threads, world);
    let loaded = hotseam_checkpoint::read(&spec.model, |_, _| {})?;
    let loader = plugins::loader(&spec.plugins).map_err(|unusable| unusable.error)?;
    if let Device::Cuda(ordinal) = sizes.device {
        hotseam_loader::init_device(ordinal);
    }
    let geometry = Geometry::new(&loaded.config, Topology::Single).of_rank(rank, world);
    let slots = Slots::new(Registry::new(loader, geometry).on(sizes.device.of_variants()));
    let model = Model::new(loaded.config, loaded.weights, sizes.max_context);
    Ok(RankParts { model, slots })
}
