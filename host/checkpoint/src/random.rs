//! Random checkpoints for tests: seeded, small, and the same bits on every machine.
//!
//! Scales keep activations near 1 and let everything matter: attention is peaked, sinks compete, the mixing matrices are
//! far from symmetric, index scores have both signs.

mod fill;
pub mod shaped;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use hotseam_model::{Format, ModelConfig, Weights};
use safetensors::{Dtype, View};
use serde_json::{Value, json};

use crate::convert::{self, Form};
use crate::error::CheckpointError;
use crate::shards::Shards;
use crate::source::Source;
use crate::{config, parse_config, quantise, weights};

/// A random model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Preset {
    /// Three layers, one of each class, 64 tokens of vocabulary: for tests of reading and of plumbing.
    Tiny,
    /// The proportions of V4-Flash: head_dim 512, YaRN, three hash layers, layers without compressor first.
    FlashLike,
    /// The proportions of V4-Pro: compressed from the first layer on, odd sizes, a swiglu limit that clamps.
    ProLike,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 3] = [Self::Tiny, Self::FlashLike, Self::ProLike];

    /// Name on the command line and in golden files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::FlashLike => "flash-like",
            Self::ProLike => "pro-like",
        }
    }

    /// `config.json` in the official form.
    pub fn config_json(self) -> Value {
        let mut config = json!({
            "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "torch_dtype": "bfloat16",
            "num_key_value_heads": 1, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
            "norm_topk_prob": true, "hidden_act": "silu", "tie_word_embeddings": false, "sliding_window": 128,
            "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "hc_mult": 4, "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "num_nextn_predict_layers": 1,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        });
        let own = match self {
            Self::Tiny => json!({
                "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 16,
                "qk_rope_head_dim": 8, "q_lora_rank": 16, "o_lora_rank": 8, "o_groups": 2,
                "compress_ratios": [0, 4, 128, 0], "max_position_embeddings": 4096,
                "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8,
                "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_hash_layers": 1,
                "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
            }),
            Self::FlashLike => json!({
                "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 7, "num_attention_heads": 4, "head_dim": 512,
                "qk_rope_head_dim": 64, "q_lora_rank": 64, "o_lora_rank": 32, "o_groups": 2,
                "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0], "max_position_embeddings": 65536,
                "rope_scaling": { "type": "yarn", "factor": 16, "original_max_position_embeddings": 4096,
                                  "beta_fast": 32, "beta_slow": 1 },
                "index_n_heads": 16, "index_head_dim": 128, "index_topk": 64,
                "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_hash_layers": 3,
                "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
            }),
            Self::ProLike => json!({
                "vocab_size": 512, "hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 6, "head_dim": 48,
                "qk_rope_head_dim": 16, "q_lora_rank": 40, "o_lora_rank": 24, "o_groups": 3,
                "compress_ratios": [128, 128, 4, 128, 4, 128, 0], "max_position_embeddings": 32768,
                "rope_scaling": { "type": "yarn", "factor": 8, "original_max_position_embeddings": 4096,
                                  "beta_fast": 32, "beta_slow": 1 },
                "index_n_heads": 16, "index_head_dim": 32, "index_topk": 32,
                "n_routed_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 56, "num_hash_layers": 3,
                "routed_scaling_factor": 2.5, "swiglu_limit": 1.5,
            }),
        };
        if let (Some(all), Value::Object(own)) = (config.as_object_mut(), own) {
            all.extend(own);
        }
        config
    }

    /// Geometry.
    pub fn config(self) -> ModelConfig {
        parse_config(&self.config_json().to_string()).expect("the preset is valid")
    }

    /// Every tensor, in the order of layers, with official names; among them one MTP tensor, which readers skip.
    pub fn tensors(self) -> Vec<NamedTensor> {
        fill::tensors(self)
    }

    /// `config.json` of a storage form.
    pub fn config_json_as(self, form: Form) -> Value {
        form.config(&self.config_json())
    }

    /// [`Preset::tensors`] in a storage form: projections and experts are quantised from the bf16 values. Gate and up
    /// projection of an expert have factors of their own in NVFP4.
    ///
    /// # Errors
    /// [`CheckpointError::Matrix`] if the sizes of the preset do not divide into the groups of a format.
    pub fn tensors_as(self, form: Form) -> Result<Vec<NamedTensor>, CheckpointError> {
        let store = |tensor: NamedTensor| {
            let module = convert::module(&tensor.name);
            let (Some(role), &[n, k]) = (convert::role(module), &tensor.shape[..]) else {
                return Ok(vec![tensor]);
            };
            let format = form.format(module, role, Format::Bf16);
            let halves = tensor.data.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]])));
            let values: Vec<f32> = halves.map(|half| f32::from_bits(half << 16)).collect();
            let global = quantise::global_scale(quantise::amax(&values));
            let matrix = quantise::quantise(format, &values, [n, k], global, 1)
                .map_err(|source| CheckpointError::Matrix { name: tensor.name.clone(), source })?;
            Ok(convert::tensors(module, &matrix))
        };
        let parts: Vec<Vec<NamedTensor>> = self.tensors().into_iter().map(store).collect::<Result<_, _>>()?;
        Ok(parts.concat())
    }

    /// [`Preset::write`] in a storage form.
    ///
    /// # Errors
    /// As [`Preset::write`] and [`Preset::tensors_as`].
    pub fn write_as(self, dir: &Path, form: Form) -> Result<(), CheckpointError> {
        write(dir, &self.config_json_as(form), &self.tensors_as(form)?, 2)
    }

    /// Writes `config.json` and two shards with their index into `dir`, which is created.
    ///
    /// # Errors
    /// [`CheckpointError::Write`] if a file cannot be written.
    pub fn write(self, dir: &Path) -> Result<(), CheckpointError> {
        write(dir, &self.config_json(), &self.tensors(), 2)
    }

    /// The model in memory, without a directory.
    ///
    /// # Errors
    /// None in practice: what [`Preset::write`] writes passes the checks of [`crate::read`].
    pub fn build(self) -> Result<(ModelConfig, Weights), CheckpointError> {
        self.build_as(Form::Bf16)
    }

    /// [`Preset::build`] in a storage form.
    ///
    /// # Errors
    /// As [`Preset::tensors_as`].
    pub fn build_as(self, form: Form) -> Result<(ModelConfig, Weights), CheckpointError> {
        let text = self.config_json_as(form).to_string();
        let (config, quantisation) = config::parse(&text)
            .map_err(|source| CheckpointError::Config { path: "config.json".into(), source })?;
        let bytes = serialize("memory".as_ref(), &self.tensors_as(form)?)?;
        let shards = Shards::from_memory(vec![("memory".to_owned(), bytes)])?;
        let mut source = Source::new(shards, quantisation, &|_, _| ());
        let weights = weights::build(&config, &mut source)?;
        source.finish()?;
        Ok((config, weights))
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|p| p.name() == s)
            .ok_or_else(|| format!("expected one of {known}, found `{s}`"))
    }
}

/// A tensor to be written.
#[derive(Debug, Clone)]
pub struct NamedTensor {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Row-major data, little-endian.
    pub data: Vec<u8>,
}

impl View for &NamedTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        self.data.as_slice().into()
    }
    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// Writes a checkpoint directory: `config.json`, `shards` shards of consecutive tensors, and their index.
///
/// # Errors
/// [`CheckpointError::Write`] if a file cannot be written, [`CheckpointError::Shard`] if a tensor's data does not fit
/// its shape.
pub fn write(
    dir: &Path,
    config: &Value,
    tensors: &[NamedTensor],
    shards: usize,
) -> Result<(), CheckpointError> {
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|source| CheckpointError::Write { path, source })
    };
    std::fs::create_dir_all(dir).map_err(|source| CheckpointError::Write { path: dir.to_owned(), source })?;
    put("config.json", format!("{config:#}\n").as_bytes())?;
    let chunk = tensors.len().div_ceil(shards.max(1)).max(1);
    let mut weight_map = serde_json::Map::new();
    let count = tensors.len().div_ceil(chunk);
    for (i, part) in tensors.chunks(chunk).enumerate() {
        let file = format!("model-{:05}-of-{count:05}.safetensors", i + 1);
        put(&file, &serialize(&dir.join(&file), part)?)?;
        weight_map.extend(part.iter().map(|t| (t.name.clone(), json!(file))));
    }
    let total: usize = tensors.iter().map(|t| t.data.len()).sum();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    put("model.safetensors.index.json", format!("{index:#}\n").as_bytes())
}

/// One shard; `format: pt` is what other readers expect to find.
fn serialize(path: &Path, tensors: &[NamedTensor]) -> Result<Vec<u8>, CheckpointError> {
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize(tensors.iter().map(|t| (t.name.as_str(), t)), Some(metadata))
        .map_err(|e| CheckpointError::Shard { path: path.to_owned(), reason: e.to_string() })
}
