//! What recorded answers depend on.

use hotseam_engine::EngineConfig;
use hotseam_model::{Model, Tensor};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// Bytes of each tensor that are read: a checkpoint may have hundreds of gigabytes, and two that agree in the begin of
/// every tensor and in every shape are taken as one.
const READ: usize = 4096;

/// Identity of a checkpoint: its geometry and its weights.
pub(super) fn model(model: &Model) -> String {
    let (mut hash, mut global) = (Sha256::new(), Vec::new());
    hash.update(format!("{:?}", model.config));
    let mut add = |tensor: &Tensor| {
        hash.update(format!("{:?}{}", tensor.shape, tensor.dtype));
        let bytes = tensor.bytes();
        hash.update(&bytes[..bytes.len().min(READ)]);
    };
    let weights = &model.weights;
    [&weights.embed, &weights.norm, &weights.head].into_iter().for_each(&mut add);
    for layer in &weights.layers {
        [&layer.attn_norm, &layer.ffn_norm, &layer.attn_sink, &layer.gate].into_iter().for_each(&mut add);
        let attention = [&layer.wq_a, &layer.wq_b, &layer.wkv, &layer.wo_a, &layer.wo_b];
        let experts = layer.experts.iter().chain([&layer.shared]).flat_map(|e| [&e.w1, &e.w2, &e.w3]);
        for matrix in attention.into_iter().chain(experts) {
            add(&matrix.data);
            matrix.scales.iter().for_each(&mut add);
            global.extend(matrix.global_scale.to_le_bytes());
        }
    }
    hash.update(global);
    hex(&hash.finalize())
}

/// Identity of a target: whatever its answers depend on besides the arm.
pub(super) fn target(
    model: &str,
    sizes: &EngineConfig,
    oracle: &impl Serialize,
    text: (&[std::path::PathBuf], u64),
    digests: [&str; 2],
) -> String {
    let mut hash = Sha256::new();
    let oracle = serde_json::to_string(oracle).unwrap_or_default();
    for part in [model, &format!("{sizes:?}"), &oracle, &format!("{text:?}"), digests[0], digests[1]] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
