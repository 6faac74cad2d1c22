//! The tensors of a model, by role.
//!
//! Matrices are `[out, in]`, row-major, so that `y = x W^T`. A [`Matrix`] has the format that it has on disk: bf16, FP8,
//! MXFP4, ...; a matrix that is a [`Tensor`] is f32 or bf16. Norm weights, sinks, `ape`, the hc tensors and the gate bias
//! are always f32, the token table always i32.
//! Letters: H hidden_size, D head_dim, I index_head_dim, M hc_mult, E n_routed_experts, F moe_intermediate_size,
//! c = 2 where groups overlap (ratio 4), else 1.

use crate::{Matrix, Tensor};

/// All weights.
#[derive(Debug, Clone)]
pub struct Weights {
    /// Token embedding, `[vocab, H]`.
    pub embed: Tensor,
    /// Final norm, `[H]` f32.
    pub norm: Tensor,
    /// Output head, `[vocab, H]`.
    pub head: Tensor,
    /// Collapses the streams before the final norm: `fn_weight [M, M*H]`, `base [M]`, `scale [1]`.
    pub hc_head: Hc,
    /// One per decoder layer.
    pub layers: Vec<LayerWeights>,
}

/// A hyper-connection; all f32. In a layer `fn_weight [(2+M)*M, M*H]`, `base [(2+M)*M]`, `scale [3]`: pre, post, comb.
#[derive(Debug, Clone)]
pub struct Hc {
    /// Projection of the flattened, normalised streams.
    pub fn_weight: Tensor,
    /// Added after scaling.
    pub base: Tensor,
    /// One factor for each output.
    pub scale: Tensor,
}

/// Weights of one decoder layer.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// Norm before attention, `[H]` f32.
    pub attn_norm: Tensor,
    /// Norm before the experts, `[H]` f32.
    pub ffn_norm: Tensor,
    /// Hyper-connection around attention.
    pub hc_attn: Hc,
    /// Hyper-connection around the experts.
    pub hc_ffn: Hc,
    /// Query down projection, `[q_lora_rank, H]`.
    pub wq_a: Matrix,
    /// Norm of the query latent, `[q_lora_rank]` f32.
    pub q_norm: Tensor,
    /// Query up projection, `[heads*D, q_lora_rank]`.
    pub wq_b: Matrix,
    /// Window key (= value) projection, `[D, H]`.
    pub wkv: Matrix,
    /// Norm of window keys, `[D]` f32.
    pub kv_norm: Tensor,
    /// Grouped output projection, `[o_groups*o_lora_rank, heads*D/o_groups]`: rows of a group read only its heads.
    pub wo_a: Matrix,
    /// Output projection, `[H, o_groups*o_lora_rank]`.
    pub wo_b: Matrix,
    /// Sink logit of each head, `[heads]` f32.
    pub attn_sink: Tensor,
    /// Compressor of csa and hca layers.
    pub compressor: Option<Compressor>,
    /// Indexer of csa layers.
    pub indexer: Option<Indexer>,
    /// Router, `[E, H]`.
    pub gate: Tensor,
    /// Added to the scores for selection only, `[E]` f32; on layers that route by score.
    pub gate_bias: Option<Tensor>,
    /// Experts of each token, `[vocab, num_experts_per_tok]` i32, values `0..E`; on layers that route by token id.
    pub tid2eid: Option<Tensor>,
    /// Routed experts.
    pub experts: Vec<Expert>,
    /// The shared expert.
    pub shared: Expert,
}

/// Turns `ratio` tokens into one entry of width W: D in attention, I in the indexer.
#[derive(Debug, Clone)]
pub struct Compressor {
    /// Added to the gate by position in the group, `[ratio, c*W]` f32.
    pub ape: Tensor,
    /// Value projection, `[c*W, H]`.
    pub wkv: Matrix,
    /// Gate projection, `[c*W, H]`.
    pub wgate: Matrix,
    /// Norm of entries, `[W]` f32.
    pub norm: Tensor,
}

/// Scores compressed entries and keeps the best.
#[derive(Debug, Clone)]
pub struct Indexer {
    /// Query projection, `[index_n_heads*I, q_lora_rank]`.
    pub wq_b: Matrix,
    /// Weight of each head, `[index_n_heads, H]`.
    pub weights_proj: Tensor,
    /// Makes the index keys.
    pub compressor: Compressor,
}

/// A gated feed-forward block: `w2(silu(w1 x) * w3 x)`.
#[derive(Debug, Clone)]
pub struct Expert {
    /// Gate projection, `[F, H]`.
    pub w1: Matrix,
    /// Down projection, `[H, F]`.
    pub w2: Matrix,
    /// Up projection, `[F, H]`.
    pub w3: Matrix,
}
