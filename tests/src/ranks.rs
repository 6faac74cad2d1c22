//! Engines of several tensor-parallel ranks, whose other ranks are processes of the built `hotseam`.

use crate::{plugins, root};
use hotseam_engine::{Carrier, Engine, EngineConfig, EngineError, Leader, RankSettings};
use hotseam_loader::Loader;
use hotseam_model::Model;
use hotseam_slots::{Geometry, Registry, Rule, Slots};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// The directory of the embedded checkpoint.
pub fn nano() -> std::path::PathBuf {
    root().join("assets/nano-v4")
}

/// Settings of `world` ranks that read the checkpoint in `dir`.
pub fn settings(dir: &Path, world: u32) -> RankSettings {
    let found = json!({ "dirs": [plugins()], "probe": { "enabled": false } });
    RankSettings {
        world,
        program: plugins().join("hotseam"),
        args: vec!["rank".to_owned()],
        spec: json!({ "model": dir, "plugins": found, "threads": 1 }).to_string(),
        carrier: Carrier::Shared,
    }
}

/// An engine of `world` ranks over the checkpoint in `dir`, which is `model`'s.
///
/// # Errors
/// If the group does not start, or the engine.
pub fn start(
    model: &Arc<Model>,
    dir: &Path,
    rules: Vec<Rule>,
    config: EngineConfig,
    world: u32,
) -> Result<Engine, EngineError> {
    let config = EngineConfig { ranks: (world > 1).then(|| settings(dir, world)), ..config };
    let leader = Leader::start(&config, model.config.hidden_size)?;
    let loader = Loader::new(vec![plugins()]).expect("a plugin directory");
    let geometry = Geometry::new(&model.config, config.topology).of_rank(0, world);
    let slots =
        Slots::new(Registry::new(loader, geometry).on(config.device.of_variants())).with_peers(leader);
    slots.define("live", rules).map_err(|error| EngineError::Ranks(error.to_string()))?;
    Engine::start(Arc::clone(model), Arc::new(slots), config)
}
