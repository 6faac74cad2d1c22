//! Whether a model fits on GPUs, from its configuration alone: weights, keys and values, workspace, and what is left.
//! [`roofline`] says from the same counts how fast it can be there at most.

mod kv;
pub mod roofline;
mod weights;

use std::path::Path;

use hotseam_model::{ConfigError, ModelConfig};
use serde::Serialize;

pub use kv::{Kv, KvFormat, Layers, PerSequence, PerToken};
pub use weights::{Spread, WeightLine, Weights};

use crate::convert::Form;
use crate::error::CheckpointError;
use crate::quantisation::Quantisation;
use crate::{config, read_configs, shards};

/// Most bytes of index scores at a time; longer contexts are scored in parts.
const INDEX_SCORES: u64 = 1 << 30;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Request {
    /// Storage form; `None`: what the configuration states.
    #[serde(skip)]
    pub form: Option<Form>,
    /// GPUs of the tensor-parallel group.
    pub gpus: u64,
    /// Bytes of each GPU.
    pub gpu_bytes: u64,
    /// Tokens of context of each sequence; `None`: the longest of the model.
    pub context: Option<u64>,
    /// Sequences at the same time.
    pub sequences: u64,
    /// Storage of keys and values.
    pub kv: KvFormat,
    /// Storage of index keys.
    pub index_keys: KvFormat,
    /// How attention is spread: heads split, so that every GPU holds the keys and values of all sequences (they have one
    /// head), or replicated, so that each GPU serves its share of the sequences.
    pub attention: Spread,
    /// Prompt tokens of one step.
    pub chunk: u64,
    /// Bytes on each GPU that are the runtime's: driver context, libraries, graphs, communication.
    pub runtime_bytes: u64,
}

/// Activations of one step on each GPU, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Workspace {
    /// Residual streams before and after a layer, bf16.
    pub streams: u64,
    /// Queries and outputs of the heads, bf16; queries of the indexer.
    pub attention: u64,
    /// Inputs, gate and up values, and outputs of the experts of every token, bf16.
    pub experts: u64,
    /// Scores of the indexer, f32, at most 1 GiB at a time.
    pub index_scores: u64,
    /// Logits of every sequence, f32.
    pub logits: u64,
    /// All.
    pub total: u64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// What was asked, with the context filled in.
    pub request: Request,
    /// Name of the storage form, or where formats came from.
    pub form: &'static str,
    /// Weights by class.
    pub weights: Weights,
    /// Keys, values and states.
    pub kv: Kv,
    /// Activations.
    pub workspace: Workspace,
    /// Sequences that each GPU holds.
    pub sequences_per_gpu: u64,
    /// Bytes on each GPU for keys, values and states of those sequences at full context.
    pub kv_needed: u64,
    /// Bytes on each GPU that weights, workspace and runtime leave; 0 if they do not fit.
    pub kv_room: u64,
    /// Tokens of context, over all sequences of a GPU, that fit beside their fixed part.
    pub kv_tokens: u64,
    /// Sequences of full context that fit on the group.
    pub sequences_that_fit: u64,
    /// Bytes on each GPU that stay free, negative if they are missing.
    pub spare: i64,
    /// Whether all fits.
    pub fits: bool,
    /// What the reader should know, one sentence each.
    pub notes: Vec<String>,
}

/// Plans for the `config.json` of a directory, or for a configuration file; an index beside it is compared.
///
/// # Errors
/// [`CheckpointError`] if the configuration is malformed, the index contradicts it, or the GPUs do not divide the model.
pub fn plan(path: &Path, request: Request) -> Result<Plan, CheckpointError> {
    let (cfg, quantisation) = read_model(path)?;
    check(&cfg, request.gpus, request.attention).map_err(config_error(path))?;
    let mut plan = compute(&cfg, &quantisation, request);
    if request.form.is_none()
        && path.is_dir()
        && let Some((bytes, mtp)) = shards::index_totals(path)?
    {
        plan.notes.push(format!(
            "the index counts {:.2} GB of tensors; without multi-token prediction ({mtp} tensors, not loaded) the plan has \
             {:.2} GB",
            bytes as f64 / 1e9,
            plan.weights.bytes as f64 / 1e9
        ));
    }
    Ok(plan)
}

/// The geometry of a `config.json`, or of the one in a directory.
///
/// # Errors
/// [`CheckpointError`] if it is malformed.
pub fn read_geometry(path: &Path) -> Result<ModelConfig, CheckpointError> {
    read_model(path).map(|(config, _)| config)
}

/// What the `config.json` of a directory, or a configuration file, says.
fn read_model(path: &Path) -> Result<(ModelConfig, Quantisation), CheckpointError> {
    if path.is_dir() {
        return read_configs(path);
    }
    config::parse(&shards::read_text(path)?).map_err(config_error(path))
}

/// An error of the model at `path`.
fn config_error(path: &Path) -> impl Fn(ConfigError) -> CheckpointError {
    move |source| CheckpointError::Config { path: path.to_owned(), source }
}

/// Formats of the weights: those of a form, or what the configuration states.
fn formats(form: Option<Form>, stated: &Quantisation) -> weights::Formats<'_> {
    form.map_or(weights::Formats::Stated(stated), weights::Formats::Form)
}

/// Name of a form, or of what stands in for it.
fn form_name(form: Option<Form>) -> &'static str {
    form.map_or("as the configuration states", Form::name)
}

/// Refuses groups that the model cannot be split over.
fn check(cfg: &ModelConfig, gpus: u64, attention: Spread) -> Result<(), ConfigError> {
    let gpus = gpus.max(1) as usize;
    let heads = [("num_attention_heads", cfg.num_attention_heads), ("o_groups", cfg.o_groups)];
    let rest = [
        ("n_routed_experts", cfg.n_routed_experts),
        ("moe_intermediate_size", cfg.moe_intermediate_size),
        ("vocab_size", cfg.vocab_size),
    ];
    let split = if attention == Spread::Split { &heads[..] } else { &[] };
    match split.iter().chain(&rest).find(|(_, size)| !size.is_multiple_of(gpus)) {
        Some((field, size)) => Err(ConfigError::new(*field, format!("a multiple of {gpus} GPUs"), size)),
        None => Ok(()),
    }
}

fn compute(cfg: &ModelConfig, quantisation: &Quantisation, mut request: Request) -> Plan {
    request.gpus = request.gpus.max(1);
    let longest = cfg.max_position_embeddings as u64;
    let context = request.context.unwrap_or(longest);
    request.context = Some(context);
    let formats = formats(request.form, quantisation);
    let weights = weights::weights(cfg, &formats, request.gpus, request.attention);
    let kv = kv::kv(cfg, request.kv, request.index_keys);
    let workspace = workspace(cfg, &request, context);

    let groups = if request.attention == Spread::Split { 1 } else { request.gpus };
    let sequences_per_gpu = request.sequences.div_ceil(groups);
    let fixed = kv.per_sequence.total;
    let growing = (context as f64 * kv.per_token.total).ceil() as u64;
    let kv_needed = sequences_per_gpu.saturating_mul(fixed.saturating_add(growing));
    let used = weights.bytes_per_gpu + workspace.total + request.runtime_bytes;
    let kv_room = request.gpu_bytes.saturating_sub(used);
    let spare = i128::from(request.gpu_bytes) - i128::from(used) - i128::from(kv_needed);
    let for_tokens = kv_room.saturating_sub(sequences_per_gpu.saturating_mul(fixed));
    let mut notes =
        vec!["multi-token prediction is not loaded".to_owned(), "padding of pages is not counted".to_owned()];
    notes.extend(beyond(cfg, context));
    Plan {
        form: form_name(request.form),
        sequences_per_gpu,
        kv_needed,
        kv_room,
        kv_tokens: (for_tokens as f64 / kv.per_token.total) as u64,
        sequences_that_fit: groups * (kv_room / (fixed + growing).max(1)),
        spare: spare.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64,
        fits: spare >= 0,
        request,
        weights,
        kv,
        workspace,
        notes,
    }
}

/// What is to be said of a context that is longer than the model was made for.
fn beyond(cfg: &ModelConfig, context: u64) -> Option<String> {
    let longest = cfg.max_position_embeddings as u64;
    (context > longest).then(|| format!("the model was made for {longest} tokens of context"))
}

fn workspace(cfg: &ModelConfig, request: &Request, context: u64) -> Workspace {
    let tokens = request.chunk.max(request.sequences);
    let size = |n: usize| n as u64;
    let ranks = if request.attention == Spread::Split { request.gpus } else { 1 };
    let streams = 2 * tokens * size(cfg.hc_mult * cfg.hidden_size) * 2;
    let heads = size(cfg.num_attention_heads * cfg.head_dim) / ranks;
    let index = size(cfg.index_n_heads * cfg.index_head_dim);
    let attention = tokens * (2 * heads + index) * 2;
    let expert = size(2 * cfg.hidden_size + 2 * cfg.moe_intermediate_size);
    let experts = tokens * size(cfg.num_experts_per_tok) * expert * 2;
    let index_scores = (tokens * context.div_ceil(4) * 4).min(INDEX_SCORES);
    let logits = request.sequences * size(cfg.vocab_size) * 4;
    let total = streams + attention + experts + index_scores + logits;
    Workspace { streams, attention, experts, index_scores, logits, total }
}
