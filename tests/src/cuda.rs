//! The CUDA device of tests that run in this process.

use crate::{rule, slots};
use hotseam_engine::{Device, Engine, EngineConfig, Topology};
use hotseam_model::Model;
use hotseam_slots::Rule;
use std::sync::Arc;

pub use hotseam_cuda_emulator::{device, directory, is_real};

/// Rules that give every seam to its stock variant for a device.
pub fn stock(kv: &str, keys: &str) -> Vec<Rule> {
    vec![
        rule("attention", &format!("attention/cuda-stock{{kv: {kv}}}")),
        rule("indexer", &format!("indexer/cuda-stock{{keys: {keys}}}")),
        rule("moe", "moe/cuda-stock"),
        rule("mhc", "mhc/cuda-stock"),
    ]
}

/// An engine on device 0.
pub fn engine(model: &Arc<Model>, rules: Vec<Rule>, config: EngineConfig) -> Engine {
    let config = EngineConfig { device: Device::Cuda(0), topology: Topology::Single, ..config };
    let slots = slots(model, &config, rules);
    Engine::start(Arc::clone(model), slots, config).unwrap_or_else(|e| panic!("{e}"))
}
