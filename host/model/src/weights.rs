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

impl Weights {
    /// Every tensor, those of a layer in the order in which a step reads them.
    pub fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        let mut all = vec![&mut self.embed];
        for layer in &mut self.layers {
            layer.push_tensors(&mut all);
        }
        all.extend(self.hc_head.tensors());
        all.extend([&mut self.norm, &mut self.head]);
        all
    }
}

impl Hc {
    fn tensors(&mut self) -> [&mut Tensor; 3] {
        [&mut self.fn_weight, &mut self.base, &mut self.scale]
    }
}

impl Compressor {
    fn push_tensors<'a>(&'a mut self, all: &mut Vec<&'a mut Tensor>) {
        all.extend(self.wkv.tensors().chain(self.wgate.tensors()));
        all.extend([&mut self.ape, &mut self.norm]);
    }
}

impl LayerWeights {
    fn push_tensors<'a>(&'a mut self, all: &mut Vec<&'a mut Tensor>) {
        all.extend(self.hc_attn.tensors());
        all.push(&mut self.attn_norm);
        all.extend(self.wq_a.tensors());
        all.push(&mut self.q_norm);
        all.extend(self.wq_b.tensors().chain(self.wkv.tensors()));
        all.push(&mut self.kv_norm);
        if let Some(compressor) = &mut self.compressor {
            compressor.push_tensors(all);
        }
        if let Some(indexer) = &mut self.indexer {
            indexer.compressor.push_tensors(all);
            all.extend(indexer.wq_b.tensors());
            all.push(&mut indexer.weights_proj);
        }
        all.push(&mut self.attn_sink);
        all.extend(self.wo_a.tensors().chain(self.wo_b.tensors()));
        all.extend(self.hc_ffn.tensors());
        all.extend([&mut self.ffn_norm, &mut self.gate]);
        all.extend(self.gate_bias.iter_mut().chain(&mut self.tid2eid));
        for expert in self.experts.iter_mut().chain([&mut self.shared]) {
            for matrix in [&mut expert.w1, &mut expert.w3, &mut expert.w2] {
                all.extend(matrix.tensors());
            }
        }
    }
}
