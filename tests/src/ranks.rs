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

/// The first child of a process.
pub fn child_of(parent: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok();
    let of_thread = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("children")).ok();
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).ok()?;
    let all = children.into_iter().chain(threads.flatten().filter_map(of_thread));
    all.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .next()
}

/// Ends a process with SIGKILL.
///
/// # Panics
/// If it is not there.
pub fn kill(pid: u32) {
    let done = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill");
    assert!(done.success());
}
