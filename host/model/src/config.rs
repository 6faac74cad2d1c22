//! Geometry of a DeepSeek-V4 model and the rules that tie its numbers together.

use serde::Serialize;

/// Largest value accepted for any single dimension. It keeps products of a few dimensions inside 64 bits, so that a
/// hostile `config.json` cannot overflow a size; real models stay far below it.
const MAX_DIM: usize = 1 << 22;

/// Kind of attention block, from the layer's compress ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerClass {
    /// Ratio 0: sliding window only.
    Window,
    /// Ratio 4: window plus compressed entries chosen by the indexer.
    Csa,
    /// Ratio 128: window plus all compressed entries.
    Hca,
}

impl LayerClass {
    /// Class of a compress ratio; `None` unless it is 0, 4 or 128.
    pub fn from_ratio(ratio: u32) -> Option<Self> {
        match ratio {
            0 => Some(Self::Window),
            4 => Some(Self::Csa),
            128 => Some(Self::Hca),
            _ => None,
        }
    }

    /// Name used in selectors: `window`, `csa` or `hca`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Csa => "csa",
            Self::Hca => "hca",
        }
    }
}

/// YaRN parameters of the compressed branches. cos and sin are not scaled (attention factor 1).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Yarn {
    /// Ratio of the extended to the original context.
    pub factor: f64,
    /// Context length, in tokens, before extension.
    pub original_max_position_embeddings: usize,
    /// Rotations over the original context above which a frequency is kept.
    pub beta_fast: f64,
    /// Rotations over the original context below which a frequency is divided by `factor`.
    pub beta_slow: f64,
}

/// Geometry of a model. Names are those of DeepSeek's `config.json`; sizes count elements, not bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Tokens in the vocabulary; rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of one stream.
    pub hidden_size: usize,
    /// Decoder layers, without MTP layers.
    pub num_hidden_layers: usize,
    /// Query heads; all share one KV head.
    pub num_attention_heads: usize,
    /// Width of a head: `head_dim - qk_rope_head_dim` plain channels, then the rotated ones.
    pub head_dim: usize,
    /// Rotated channels at the end of each head, and of each indexer head.
    pub qk_rope_head_dim: usize,
    /// Rank of the query projection.
    pub q_lora_rank: usize,
    /// Rank of the output projection, for one group.
    pub o_lora_rank: usize,
    /// Groups of heads in the output projection.
    pub o_groups: usize,
    /// Tokens a query sees directly, itself included.
    pub sliding_window: usize,
    /// Tokens for each compressed entry, one per layer: 0 (none), 4 or 128. MTP entries are dropped.
    pub compress_ratios: Vec<u32>,
    /// Rope base of window layers.
    pub rope_theta: f64,
    /// Rope base of csa and hca layers.
    pub compress_rope_theta: f64,
    /// YaRN of csa and hca layers.
    pub rope_scaling: Option<Yarn>,
    /// Longest context, in tokens, that the model was made for.
    pub max_position_embeddings: usize,
    /// Query heads of the indexer.
    pub index_n_heads: usize,
    /// Width of an indexer head, and of an indexer key.
    pub index_head_dim: usize,
    /// Compressed entries that the indexer keeps for each query.
    pub index_topk: usize,
    /// Routed experts of a layer.
    pub n_routed_experts: usize,
    /// Shared experts of a layer; always 1.
    pub n_shared_experts: usize,
    /// Routed experts that each token uses.
    pub num_experts_per_tok: usize,
    /// Width inside an expert.
    pub moe_intermediate_size: usize,
    /// The first so many layers route by token id instead of by score.
    pub num_hash_layers: usize,
    /// Factor on the normalised weights of the routed experts.
    pub routed_scaling_factor: f32,
    /// Clamp of the gate (from above) and the up projection (both sides) inside experts.
    pub swiglu_limit: f32,
    /// Residual streams.
    pub hc_mult: usize,
    /// Sinkhorn iterations of the mixing matrix.
    pub hc_sinkhorn_iters: usize,
    /// Added to the stream weights and inside the Sinkhorn divisions.
    pub hc_eps: f32,
    /// Added to the mean square inside every RMS norm.
    pub rms_norm_eps: f32,
    /// Token that begins a prompt.
    pub bos_token_id: u32,
    /// Token that ends an answer.
    pub eos_token_id: u32,
    /// Padding token, if the model has one.
    pub pad_token_id: Option<u32>,
}

/// A configuration value that no model can have, or that contradicts another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("config field `{field}`: expected {expected}, found {found}")]
pub struct ConfigError {
    /// Name of the field in `config.json`.
    pub field: String,
    /// What would be accepted.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl ConfigError {
    /// An error about `field`.
    pub fn new(field: impl Into<String>, expected: impl Into<String>, found: impl ToString) -> Self {
        Self { field: field.into(), expected: expected.into(), found: found.to_string() }
    }
}

impl ModelConfig {
    /// Attention class of a layer. Panics if `layer >= num_hidden_layers`.
    pub fn class(&self, layer: usize) -> LayerClass {
        LayerClass::from_ratio(self.ratio(layer)).expect("validate() admits only ratios 0, 4 and 128")
    }

    /// Compress ratio of a layer: 0, 4 or 128. Panics if `layer >= num_hidden_layers`.
    pub fn ratio(&self, layer: usize) -> u32 {
        self.compress_ratios[layer]
    }

    /// Whether a layer routes its experts by token id.
    pub fn is_hash(&self, layer: usize) -> bool {
        layer < self.num_hash_layers
    }

    /// Channels of a compressor's wkv and wgate rows for each channel of its entry: 2 where groups overlap (ratio 4),
    /// else 1.
    pub fn coff(&self, layer: usize) -> usize {
        if self.class(layer) == LayerClass::Csa { 2 } else { 1 }
    }

    /// Checks every rule that the rest of the host relies on. `hotseam-checkpoint` calls it on all it reads.
    ///
    /// # Errors
    /// The first broken rule, with the field's name.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let dims = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("head_dim", self.head_dim),
            ("qk_rope_head_dim", self.qk_rope_head_dim),
            ("q_lora_rank", self.q_lora_rank),
            ("o_lora_rank", self.o_lora_rank),
            ("o_groups", self.o_groups),
            ("sliding_window", self.sliding_window),
            ("max_position_embeddings", self.max_position_embeddings),
            ("index_n_heads", self.index_n_heads),
            ("index_head_dim", self.index_head_dim),
            ("index_topk", self.index_topk),
            ("n_routed_experts", self.n_routed_experts),
            ("num_experts_per_tok", self.num_experts_per_tok),
            ("moe_intermediate_size", self.moe_intermediate_size),
            ("hc_mult", self.hc_mult),
            ("hc_sinkhorn_iters", self.hc_sinkhorn_iters),
        ];
        for (field, value) in dims {
            if value == 0 || value > MAX_DIM {
                return Err(ConfigError::new(field, format!("a whole number from 1 to {MAX_DIM}"), value));
            }
        }
        if self.n_shared_experts != 1 {
            return Err(ConfigError::new("n_shared_experts", "1", self.n_shared_experts));
        }
        self.validate_layers()?;
        self.validate_shapes()?;
        self.validate_numbers()?;
        self.validate_tokens()
    }

    fn validate_layers(&self) -> Result<(), ConfigError> {
        if self.compress_ratios.len() != self.num_hidden_layers {
            return Err(ConfigError::new(
                "compress_ratios",
                format!("{} entries, one per layer", self.num_hidden_layers),
                format!("{} entries", self.compress_ratios.len()),
            ));
        }
        for (layer, &ratio) in self.compress_ratios.iter().enumerate() {
            if LayerClass::from_ratio(ratio).is_none() {
                return Err(ConfigError::new(format!("compress_ratios[{layer}]"), "0, 4 or 128", ratio));
            }
        }
        if self.num_hash_layers > self.num_hidden_layers {
            return Err(ConfigError::new(
                "num_hash_layers",
                format!("at most num_hidden_layers ({})", self.num_hidden_layers),
                self.num_hash_layers,
            ));
        }
        Ok(())
    }

    fn validate_shapes(&self) -> Result<(), ConfigError> {
        if !self.qk_rope_head_dim.is_multiple_of(2) || self.qk_rope_head_dim > self.head_dim {
            return Err(ConfigError::new(
                "qk_rope_head_dim",
                format!("an even number, at most head_dim ({})", self.head_dim),
                self.qk_rope_head_dim,
            ));
        }
        if self.compress_ratios.contains(&4) && self.index_head_dim < self.qk_rope_head_dim {
            return Err(ConfigError::new(
                "index_head_dim",
                format!("at least qk_rope_head_dim ({})", self.qk_rope_head_dim),
                self.index_head_dim,
            ));
        }
        if !self.num_attention_heads.is_multiple_of(self.o_groups) {
            return Err(ConfigError::new(
                "o_groups",
                format!("a divisor of num_attention_heads ({})", self.num_attention_heads),
                self.o_groups,
            ));
        }
        if self.num_experts_per_tok > self.n_routed_experts {
            return Err(ConfigError::new(
                "num_experts_per_tok",
                format!("at most n_routed_experts ({})", self.n_routed_experts),
                self.num_experts_per_tok,
            ));
        }
        Ok(())
    }

    fn validate_numbers(&self) -> Result<(), ConfigError> {
        let positive = [
            ("rope_theta", self.rope_theta),
            ("compress_rope_theta", self.compress_rope_theta),
            ("routed_scaling_factor", f64::from(self.routed_scaling_factor)),
            ("swiglu_limit", f64::from(self.swiglu_limit)),
            ("hc_eps", f64::from(self.hc_eps)),
            ("rms_norm_eps", f64::from(self.rms_norm_eps)),
        ];
        for (field, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(ConfigError::new(field, "a finite number above 0", value));
            }
        }
        // The YaRN ramp divides by ln(theta).
        for (field, value) in
            [("rope_theta", self.rope_theta), ("compress_rope_theta", self.compress_rope_theta)]
        {
            if value <= 1.0 {
                return Err(ConfigError::new(field, "a number above 1", value));
            }
        }
        let Some(yarn) = self.rope_scaling else { return Ok(()) };
        for (field, value) in
            [("factor", yarn.factor), ("beta_fast", yarn.beta_fast), ("beta_slow", yarn.beta_slow)]
        {
            if !(value.is_finite() && value > 0.0) {
                return Err(ConfigError::new(
                    format!("rope_scaling.{field}"),
                    "a finite number above 0",
                    value,
                ));
            }
        }
        let original = yarn.original_max_position_embeddings;
        if original == 0 || original > MAX_DIM {
            return Err(ConfigError::new(
                "rope_scaling.original_max_position_embeddings",
                format!("a whole number from 1 to {MAX_DIM}"),
                original,
            ));
        }
        Ok(())
    }

    fn validate_tokens(&self) -> Result<(), ConfigError> {
        let tokens = [
            ("bos_token_id", Some(self.bos_token_id)),
            ("eos_token_id", Some(self.eos_token_id)),
            ("pad_token_id", self.pad_token_id),
        ];
        for (field, id) in tokens {
            if let Some(id) = id
                && id as usize >= self.vocab_size
            {
                return Err(ConfigError::new(field, format!("below vocab_size ({})", self.vocab_size), id));
            }
        }
        Ok(())
    }
}
