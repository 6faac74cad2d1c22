//! Buffers of a step, sized once for the largest one.

use super::ops::{Block, Ops};
use hotseam_cuda::CudaError;
use hotseam_model::ModelConfig;

/// Buffers; a step of n rows uses the first n rows of each.
pub(crate) struct Workspace {
    /// `[rows, hc, hidden]` residual streams.
    pub(crate) streams: Block,
    /// `[rows, hidden]` input of the running block.
    pub(crate) x: Block,
    /// `[rows, hidden]` output of the running block.
    pub(crate) y: Block,
    /// `[rows, hidden]` output of the shared expert.
    pub(crate) shared: Block,
    /// `[rows, hc]`.
    pub(crate) post: Block,
    /// `[rows, hc, hc]`.
    pub(crate) comb: Block,
    /// `[rows, q_lora_rank]` before its norm.
    pub(crate) q_down: Block,
    /// `[rows, q_lora_rank]`.
    pub(crate) q_lora: Block,
    /// `[rows, heads, head_dim]`.
    pub(crate) q: Block,
    /// `[rows, heads, head_dim]` output of attention.
    pub(crate) attn: Block,
    /// `[rows, o_groups * o_lora_rank]`.
    pub(crate) o_lora: Block,
    /// `[rows, head_dim]` window kv.
    pub(crate) kv: Block,
    /// `[rows, 2 * head_dim]` kv and gate of the compressor of entries.
    pub(crate) entries: [Block; 2],
    /// `[rows, 2 * index_head_dim]` kv and gate of the compressor of index keys.
    pub(crate) keys: [Block; 2],
    /// `[rows, index_topk]` i32 selected entries.
    pub(crate) ids: Block,
    /// `[rows, num_experts_per_tok]` i32.
    pub(crate) expert_ids: Block,
    /// `[rows, num_experts_per_tok]` i32, numbered as this rank has them.
    pub(crate) local_ids: Block,
    /// `[rows, num_experts_per_tok]`.
    pub(crate) expert_weights: Block,
    /// `[rows, moe_intermediate_size]` of the shared expert.
    pub(crate) ffn_gate: Block,
    /// `[rows, moe_intermediate_size]` of the shared expert.
    pub(crate) ffn_up: Block,
    /// `[rows, hc, hidden]` streams of the rows whose logits are wanted.
    pub(crate) head_streams: Block,
    /// `[wanted, vocab]`; grows to the most rows ever wanted at once.
    pub(crate) logits: Block,
    /// `[rows, 2]` of a device's choices among them.
    pub(crate) chosen: Block,
}

impl Workspace {
    pub(crate) fn new(
        ops: &dyn Ops,
        c: &ModelConfig,
        rows: usize,
        index_topk: usize,
    ) -> Result<Self, CudaError> {
        let heads = c.num_attention_heads * c.head_dim;
        let (entry, key) = (2 * c.head_dim, 2 * c.index_head_dim);
        let f = |width: usize| ops.memory(rows * width * 4, "a buffer of a step");
        Ok(Self {
            streams: f(c.hc_mult * c.hidden_size)?,
            x: f(c.hidden_size)?,
            y: f(c.hidden_size)?,
            shared: f(c.hidden_size)?,
            post: f(c.hc_mult)?,
            comb: f(c.hc_mult * c.hc_mult)?,
            q_down: f(c.q_lora_rank)?,
            q_lora: f(c.q_lora_rank)?,
            q: f(heads)?,
            attn: f(heads)?,
            o_lora: f(c.o_groups * c.o_lora_rank)?,
            kv: f(c.head_dim)?,
            entries: [f(entry)?, f(entry)?],
            keys: [f(key)?, f(key)?],
            ids: f(index_topk)?,
            expert_ids: f(c.num_experts_per_tok)?,
            local_ids: f(c.num_experts_per_tok)?,
            expert_weights: f(c.num_experts_per_tok)?,
            ffn_gate: f(c.moe_intermediate_size)?,
            ffn_up: f(c.moe_intermediate_size)?,
            head_streams: f(c.hc_mult * c.hidden_size)?,
            logits: ops.memory(0, "logits")?,
            chosen: f(2)?,
        })
    }
}
