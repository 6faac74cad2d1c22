//! The floor of a decode step and of a prefill: the time in which memory moves the bytes that they need, or the arithmetic
//! units do their products, whichever is longer. No implementation is faster on such a machine; how far one is from it is
//! what there is to gain.
//!
//! Bytes are counted as moved once: weights that the tokens of a step use, keys and values that they attend to, residual
//! streams in and out of every block. Routing is taken as even and independent, so that more tokens use more experts. What
//! an implementation adds (padding, values moved twice, waiting, communication between GPUs) is not in a floor.

mod model;

use std::path::Path;

use hotseam_model::{ConfigError, ModelConfig};
use serde::Serialize;

use super::kv::{self, KvFormat, Layers};
use super::weights::{self, Spread};
use crate::convert::Form;
use crate::error::CheckpointError;
use crate::quantisation::Quantisation;
use model::Model;

/// Memory bandwidth of one H200 as measured by a copy, in GB/s; its data sheet says 4800.
pub const H200_BANDWIDTH: f64 = 4300.0;
/// Arithmetic of one H200 as measured by bf16 products of 8192 x 8192 matrices, in TFLOP/s; its data sheet says 989.
pub const H200_PEAK: f64 = 790.0;

/// Contexts and prompts where none are asked for, as far as the model goes.
const CONTEXTS: [u64; 3] = [4096, 131_072, 1_048_576];

/// What the floor is of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Machine {
    /// GPUs of the tensor-parallel group.
    pub gpus: u64,
    /// Memory bandwidth of each GPU.
    pub bandwidth_gb_per_s: f64,
    /// Products of each GPU; a multiplication and an addition are two.
    pub peak_tflop_per_s: f64,
    /// Kernels that are started one after the other in a step.
    pub launches: u64,
    /// Time that starting one takes, in which nothing else is done.
    pub launch_us: f64,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Storage form of the weights; `None`: what the configuration states.
    pub form: Option<Form>,
    /// Storage of keys and values.
    pub kv: KvFormat,
    /// Storage of index keys.
    pub index_keys: KvFormat,
    /// Sequences of a decode step.
    pub batches: Vec<u64>,
    /// Tokens of context of each of them; empty: 4096, 131072 and 1048576, as far as the model goes.
    pub contexts: Vec<u64>,
    /// Tokens of prompts; empty: as many as the contexts.
    pub prompts: Vec<u64>,
    /// Where.
    pub machine: Machine,
}

/// What a floor comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Moving bytes takes longer.
    Memory,
    /// Products take longer.
    Arithmetic,
}

impl Bound {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Arithmetic => "arithmetic",
        }
    }
}

/// Bytes and products of one step on each GPU, and the time that they take at least.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Step {
    /// Different routed experts of a layer that the tokens use, on average.
    pub experts_touched_per_layer: f64,
    /// Weights.
    pub weight_bytes: u64,
    /// Entries of keys and values.
    pub kv_entry_bytes: u64,
    /// Index keys.
    pub index_key_bytes: u64,
    /// Entries and index keys.
    pub kv_bytes: u64,
    /// Residual streams, and what goes in and out of attention and experts.
    pub activation_bytes: u64,
    /// Products with weights.
    pub linear_flop: f64,
    /// Products of queries and scores with entries.
    pub attention_flop: f64,
    /// Products of the indexer's queries with index keys.
    pub indexer_flop: f64,
    /// All products.
    pub flop: f64,
    /// Time to move the bytes.
    pub memory_ms: f64,
    /// Time of the products.
    pub arithmetic_ms: f64,
    /// Time to start kernels.
    pub launch_ms: f64,
    /// The longer of memory and arithmetic, and the starts.
    pub floor_ms: f64,
    /// Tokens of all sequences in that time.
    pub tokens_per_second: f64,
    /// Which of the two is the longer.
    pub bound: Bound,
}

/// A decode step: one token of every sequence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Decode {
    /// Sequences.
    pub batch: u64,
    /// Tokens of context of each.
    pub context_tokens: u64,
    /// What it takes.
    #[serde(flatten)]
    pub step: Step,
}

/// A prefill of one sequence in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prefill {
    /// Tokens.
    pub prompt_tokens: u64,
    /// What it takes.
    #[serde(flatten)]
    pub step: Step,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Roofline {
    /// Layers by class.
    pub layers: Layers,
    /// Name of the storage form, or where formats came from.
    pub form: &'static str,
    /// All parameters, without multi-token prediction.
    pub parameters: u64,
    /// Parameters that one token uses.
    pub active_parameters: u64,
    /// Bytes of all weights, one copy.
    pub weight_bytes: u64,
    /// Storage of keys and values.
    pub kv_format: KvFormat,
    /// Storage of index keys.
    pub index_key_format: KvFormat,
    /// Bytes that a token of context adds.
    pub kv_bytes_per_context_token: f64,
    /// Those of them that are index keys.
    pub index_key_bytes_per_context_token: f64,
    /// Bytes of the sliding windows of a sequence, whatever its length.
    pub window_bytes_per_sequence: u64,
    /// Bytes of residual streams that each token moves.
    pub activation_bytes_per_token: u64,
    /// Where.
    pub machine: Machine,
    /// Decode steps: every context with every batch.
    pub decode: Vec<Decode>,
    /// Prefills.
    pub prefill: Vec<Prefill>,
    /// What the reader should know, one sentence each.
    pub notes: Vec<String>,
}

/// Floors for the `config.json` of a directory, or for a configuration file.
///
/// # Errors
/// [`CheckpointError`] if the configuration is malformed, no layer of it compresses, or the GPUs do not divide the model.
pub fn roofline(path: &Path, request: &Request) -> Result<Roofline, CheckpointError> {
    let (cfg, quantisation) = super::read_model(path)?;
    check(&cfg, request.machine.gpus).map_err(super::config_error(path))?;
    Ok(compute(&cfg, &quantisation, request))
}

/// As [`roofline`], for a geometry. The request names the form of the weights.
///
/// # Errors
/// If no layer compresses, or the GPUs do not divide the model.
pub fn roofline_of(cfg: &ModelConfig, request: &Request) -> Result<Roofline, ConfigError> {
    check(cfg, request.machine.gpus)?;
    Ok(compute(cfg, &Quantisation::default(), request))
}

fn check(cfg: &ModelConfig, gpus: u64) -> Result<(), ConfigError> {
    let Layers { window, csa, hca } = Layers::of(cfg);
    if csa + hca == 0 {
        let expected = "a layer of ratio 4 or 128 (give the config.json of a DeepSeek-V4 model)";
        return Err(ConfigError::new("compress_ratios", expected, format!("0 in all of {window} layers")));
    }
    super::check(cfg, gpus, Spread::Split)
}

fn compute(cfg: &ModelConfig, quantisation: &Quantisation, request: &Request) -> Roofline {
    let machine = Machine { gpus: request.machine.gpus.max(1), ..request.machine };
    let model = Model {
        cfg,
        layers: Layers::of(cfg),
        weights: weights::weights(
            cfg,
            &super::formats(request.form, quantisation),
            machine.gpus,
            Spread::Split,
        ),
        kv: kv::kv(cfg, request.kv, request.index_keys),
        machine,
    };
    let contexts = if request.contexts.is_empty() { usual(cfg) } else { request.contexts.clone() };
    let prompts = if request.prompts.is_empty() { &contexts } else { &request.prompts };
    let decode = contexts.iter().flat_map(|&context_tokens| {
        let model = &model;
        request.batches.iter().map(move |&batch| Decode {
            batch,
            context_tokens,
            step: model.decode(batch, context_tokens),
        })
    });
    let prefill =
        prompts.iter().map(|&prompt_tokens| Prefill { prompt_tokens, step: model.prefill(prompt_tokens) });
    let longest = contexts.iter().chain(prompts).max().copied().unwrap_or(0);
    let mut notes: Vec<String> = super::beyond(cfg, longest).into_iter().collect();
    if machine.gpus > 1 {
        notes.push("communication between GPUs is not counted".to_owned());
    }
    Roofline {
        layers: model.layers,
        form: super::form_name(request.form),
        parameters: model.weights.parameters,
        active_parameters: model.weights.active_parameters,
        weight_bytes: model.weights.bytes,
        kv_format: request.kv,
        index_key_format: request.index_keys,
        kv_bytes_per_context_token: model.kv.per_token.total,
        index_key_bytes_per_context_token: model.kv.per_token.index_keys,
        window_bytes_per_sequence: model.kv.per_sequence.window,
        activation_bytes_per_token: model.activation(),
        machine,
        decode: decode.collect(),
        prefill: prefill.collect(),
        notes,
    }
}

/// The usual contexts that a model has; its longest one if it has none of them.
fn usual(cfg: &ModelConfig) -> Vec<u64> {
    let longest = cfg.max_position_embeddings as u64;
    let own: Vec<u64> = CONTEXTS.into_iter().filter(|&context| context <= longest).collect();
    if own.is_empty() { vec![longest] } else { own }
}
