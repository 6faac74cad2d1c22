//! Keys, values and states that a sequence needs, in the layouts of DeepSeek-V4.

use hotseam_model::{LayerClass, ModelConfig};
use serde::Serialize;

/// Storage of keys and values, or of index keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvFormat {
    /// E2M1 with a scale for each 16 values (32 of index keys); the rotated channels bf16.
    Fp4,
    /// E4M3 with a UE8M0 scale for each 64 values (one f32 of index keys); the rotated channels bf16.
    Fp8,
    /// bf16.
    Bf16,
    /// f32.
    F32,
}

impl KvFormat {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp4 => "fp4",
            Self::Fp8 => "fp8",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of one entry: 584 in fp8 and 384 in fp4 for heads of 512 with 64 rotated channels.
    pub fn entry(self, cfg: &ModelConfig) -> u64 {
        let (rope, plain) = (cfg.qk_rope_head_dim as u64, (cfg.head_dim - cfg.qk_rope_head_dim) as u64);
        match self {
            Self::Fp4 => (plain.div_ceil(2) + plain.div_ceil(16) + 2 * rope).next_multiple_of(16),
            Self::Fp8 => (plain + 2 * rope + plain.div_ceil(64)).next_multiple_of(8),
            Self::Bf16 => 2 * (plain + rope),
            Self::F32 => 4 * (plain + rope),
        }
    }

    /// Bytes of one index key: 132 in fp8 and 68 in fp4 for 128 channels.
    pub fn index_key(self, cfg: &ModelConfig) -> u64 {
        let width = cfg.index_head_dim as u64;
        match self {
            Self::Fp4 => width.div_ceil(2) + width.div_ceil(32),
            Self::Fp8 => width + 4,
            Self::Bf16 => 2 * width,
            Self::F32 => 4 * width,
        }
    }
}

/// How many layers of each class a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Layers {
    /// Sliding window only.
    pub window: u64,
    /// An entry for 4 tokens, chosen by the indexer.
    pub csa: u64,
    /// An entry for 128 tokens.
    pub hca: u64,
}

impl Layers {
    /// Those of a model, by the compress ratios of its configuration.
    pub fn of(cfg: &ModelConfig) -> Self {
        let layers = |class| (0..cfg.num_hidden_layers).filter(|&l| cfg.class(l) == class).count() as u64;
        Self {
            window: layers(LayerClass::Window),
            csa: layers(LayerClass::Csa),
            hca: layers(LayerClass::Hca),
        }
    }
}

/// Bytes that each token of context adds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PerToken {
    /// Entries of csa layers, one for 4 tokens.
    pub c4: f64,
    /// Entries of hca layers, one for 128 tokens.
    pub c128: f64,
    /// Index keys of csa layers.
    pub index_keys: f64,
    /// All.
    pub total: f64,
}

/// Bytes that each sequence has, whatever its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PerSequence {
    /// Sliding windows of all layers.
    pub window: u64,
    /// States of the compressors of csa layers: 8 rows of values and scores.
    pub c4_states: u64,
    /// States of the indexers' compressors.
    pub index_states: u64,
    /// States of the compressors of hca layers: 128 rows.
    pub c128_states: u64,
    /// All.
    pub total: u64,
}

/// Bytes of keys, values and states.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Kv {
    /// Storage of entries.
    pub format: KvFormat,
    /// Storage of index keys.
    pub index_format: KvFormat,
    /// Bytes of one entry.
    pub entry: u64,
    /// Bytes of one index key.
    pub index_key: u64,
    /// What a token adds.
    pub per_token: PerToken,
    /// What a sequence has.
    pub per_sequence: PerSequence,
}

/// Bytes for a model; page padding is not counted.
pub(super) fn kv(cfg: &ModelConfig, format: KvFormat, index_format: KvFormat) -> Kv {
    let Layers { csa, hca, .. } = Layers::of(cfg);
    let (entry, index_key) = (format.entry(cfg), index_format.index_key(cfg));
    let c4 = (csa * entry) as f64 / 4.0;
    let c128 = (hca * entry) as f64 / 128.0;
    let index_keys = (csa * index_key) as f64 / 4.0;
    // A row of state holds a value and a score for each channel, twice where groups overlap; f32.
    let (d, i) = (cfg.head_dim as u64, cfg.index_head_dim as u64);
    let window = cfg.num_hidden_layers as u64 * cfg.sliding_window as u64 * entry;
    let (c4_states, index_states) = (csa * 8 * (2 * 2 * d) * 4, csa * 8 * (2 * 2 * i) * 4);
    let c128_states = hca * 128 * (2 * d) * 4;
    Kv {
        format,
        index_format,
        entry,
        index_key,
        per_token: PerToken { c4, c128, index_keys, total: c4 + c128 + index_keys },
        per_sequence: PerSequence {
            window,
            c4_states,
            index_states,
            c128_states,
            total: window + c4_states + index_states + c128_states,
        },
    }
}
