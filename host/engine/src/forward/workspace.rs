//! Buffers of a step, sized once for the largest one.

use hotseam_abi::SeqSpan;
use hotseam_model::ModelConfig;

/// Buffers; a step of n rows uses the first n rows of each.
pub(crate) struct Workspace {
    /// `[rows, hc, hidden]` residual streams.
    pub(crate) streams: Vec<f32>,
    /// `[rows, hidden]` input of the running block.
    pub(crate) x: Vec<f32>,
    /// `[rows, hidden]` output of the running block.
    pub(crate) y: Vec<f32>,
    /// `[rows, hidden]` output of the shared expert.
    pub(crate) shared: Vec<f32>,
    /// `[rows, hc]`.
    pub(crate) post: Vec<f32>,
    /// `[rows, hc, hc]`.
    pub(crate) comb: Vec<f32>,
    /// `[rows, q_lora_rank]` before its norm.
    pub(crate) q_down: Vec<f32>,
    /// `[rows, q_lora_rank]`.
    pub(crate) q_lora: Vec<f32>,
    /// `[rows, heads, head_dim]`.
    pub(crate) q: Vec<f32>,
    /// `[rows, heads, head_dim]` output of attention.
    pub(crate) attn: Vec<f32>,
    /// `[rows, o_groups * o_lora_rank]`.
    pub(crate) o_lora: Vec<f32>,
    /// `[rows, head_dim]` window kv.
    pub(crate) kv: Vec<f32>,
    /// `[rows, 2 * head_dim]` kv and gate of the compressor of entries.
    pub(crate) entries: [Vec<f32>; 2],
    /// `[rows, 2 * index_head_dim]` kv and gate of the compressor of index keys.
    pub(crate) keys: [Vec<f32>; 2],
    /// `[rows, index_topk]` selected entries.
    pub(crate) ids: Vec<i32>,
    /// `[rows, num_experts_per_tok]`.
    pub(crate) expert_ids: Vec<i32>,
    /// `[rows, num_experts_per_tok]`.
    pub(crate) expert_weights: Vec<f32>,
    /// `[rows, moe_intermediate_size]` of the shared expert.
    pub(crate) ffn_gate: Vec<f32>,
    /// `[rows, moe_intermediate_size]` of the shared expert.
    pub(crate) ffn_up: Vec<f32>,
    /// `[rows, hc, hidden]` streams of the rows whose logits are wanted.
    pub(crate) head_streams: Vec<f32>,
    /// Positions of those rows.
    pub(crate) head_positions: Vec<i32>,
    /// Sequences of those rows.
    pub(crate) head_seqs: Vec<i32>,
    /// Spans of the sequences over those rows.
    pub(crate) head_spans: Vec<SeqSpan>,
    /// `[wanted, vocab]`; grows to the most rows ever wanted at once.
    pub(crate) logits: Vec<f32>,
}

impl Workspace {
    pub(crate) fn new(c: &ModelConfig, rows: usize, index_topk: usize) -> Self {
        let heads = c.num_attention_heads * c.head_dim;
        let (entry, key) = (2 * c.head_dim, 2 * c.index_head_dim);
        let f = |width: usize| vec![0.0; rows * width];
        Self {
            streams: f(c.hc_mult * c.hidden_size),
            x: f(c.hidden_size),
            y: f(c.hidden_size),
            shared: f(c.hidden_size),
            post: f(c.hc_mult),
            comb: f(c.hc_mult * c.hc_mult),
            q_down: f(c.q_lora_rank),
            q_lora: f(c.q_lora_rank),
            q: f(heads),
            attn: f(heads),
            o_lora: f(c.o_groups * c.o_lora_rank),
            kv: f(c.head_dim),
            entries: [f(entry), f(entry)],
            keys: [f(key), f(key)],
            ids: vec![-1; rows * index_topk],
            expert_ids: vec![-1; rows * c.num_experts_per_tok],
            expert_weights: f(c.num_experts_per_tok),
            ffn_gate: f(c.moe_intermediate_size),
            ffn_up: f(c.moe_intermediate_size),
            head_streams: f(c.hc_mult * c.hidden_size),
            head_positions: vec![0; rows],
            head_seqs: vec![0; rows],
            head_spans: Vec::with_capacity(rows),
            logits: Vec::new(),
        }
    }
}
