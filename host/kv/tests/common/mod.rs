//! A model for the tests.

use hotseam_model::ModelConfig;

/// Three small layers: window, ratio 4, ratio 128.
pub(crate) fn model() -> ModelConfig {
    ModelConfig {
        vocab_size: 64,
        hidden_size: 32,
        num_hidden_layers: 3,
        num_attention_heads: 2,
        head_dim: 16,
        qk_rope_head_dim: 8,
        q_lora_rank: 8,
        o_lora_rank: 8,
        o_groups: 1,
        sliding_window: 128,
        compress_ratios: vec![0, 4, 128],
        rope_theta: 1e4,
        compress_rope_theta: 16e4,
        rope_scaling: None,
        max_position_embeddings: 4096,
        index_n_heads: 2,
        index_head_dim: 16,
        index_topk: 8,
        n_routed_experts: 4,
        n_shared_experts: 1,
        num_experts_per_tok: 2,
        moe_intermediate_size: 16,
        num_hash_layers: 1,
        routed_scaling_factor: 1.5,
        swiglu_limit: 10.0,
        hc_mult: 4,
        hc_sinkhorn_iters: 20,
        hc_eps: 1e-6,
        rms_norm_eps: 1e-6,
        bos_token_id: 0,
        eos_token_id: 1,
        pad_token_id: None,
    }
}
