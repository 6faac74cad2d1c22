//! Rules of a model's geometry. Values come from the crate that reads them; here each rule is broken once.

use hotseam_model::{LayerClass, ModelConfig};

fn valid() -> ModelConfig {
    ModelConfig {
        vocab_size: 64,
        hidden_size: 32,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        head_dim: 16,
        qk_rope_head_dim: 8,
        q_lora_rank: 16,
        o_lora_rank: 8,
        o_groups: 2,
        sliding_window: 128,
        compress_ratios: vec![0, 4, 128],
        rope_theta: 10000.0,
        compress_rope_theta: 160000.0,
        rope_scaling: None,
        max_position_embeddings: 4096,
        index_n_heads: 4,
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
        pad_token_id: Some(2),
    }
}

/// A rule's field, and a change that breaks the rule.
type Breakage = (&'static str, fn(&mut ModelConfig));

#[test]
fn classes_follow_ratios() {
    let cfg = valid();
    cfg.validate().unwrap();
    assert_eq!([0, 1, 2].map(|l| cfg.class(l)), [LayerClass::Window, LayerClass::Csa, LayerClass::Hca]);
    assert_eq!([0, 1, 2].map(|l| cfg.coff(l)), [1, 2, 1]);
    assert_eq!([0, 1, 2].map(|l| cfg.is_hash(l)), [true, false, false]);
    assert_eq!(LayerClass::Csa.name(), "csa");
}

#[test]
fn each_broken_rule_is_named() {
    let breakages: [Breakage; 14] = [
        ("vocab_size", |c| c.vocab_size = 0),
        ("hidden_size", |c| c.hidden_size = usize::MAX),
        ("n_shared_experts", |c| c.n_shared_experts = 2),
        ("compress_ratios", |c| c.compress_ratios = vec![0, 4]),
        ("compress_ratios[1]", |c| c.compress_ratios[1] = 8),
        ("num_hash_layers", |c| c.num_hash_layers = 4),
        ("qk_rope_head_dim", |c| c.qk_rope_head_dim = 7),
        ("qk_rope_head_dim", |c| c.qk_rope_head_dim = 18),
        ("index_head_dim", |c| c.index_head_dim = 4),
        ("o_groups", |c| c.o_groups = 3),
        ("num_experts_per_tok", |c| c.num_experts_per_tok = 5),
        ("hc_eps", |c| c.hc_eps = f32::NAN),
        ("rope_theta", |c| c.rope_theta = 1.0),
        ("eos_token_id", |c| c.eos_token_id = 64),
    ];
    for (field, break_it) in breakages {
        let mut cfg = valid();
        break_it(&mut cfg);
        let error = cfg.validate().unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
}
