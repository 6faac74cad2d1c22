//! Tensor names of a DeepSeek-V4 checkpoint, and the shape that the geometry gives each.

use hotseam_model::{
    Compressor, Expert, Hc, Indexer, LayerClass, LayerWeights, ModelConfig, Tensor, Weights,
};

use crate::error::CheckpointError;
use crate::quantisation::Role;
use crate::source::Source;

type Result<T> = std::result::Result<T, CheckpointError>;

/// Takes every tensor of the model from `source`. `cfg` was validated.
pub(crate) fn build(cfg: &ModelConfig, source: &mut Source) -> Result<Weights> {
    let (vocab, hidden) = (cfg.vocab_size, cfg.hidden_size);
    let embed = source.values("embed.weight", [vocab, hidden])?;
    let norm = source.small("norm.weight", &[hidden])?;
    let head = source.values("head.weight", [vocab, hidden])?;
    let hc_head = hc(cfg, source, "hc_head", cfg.hc_mult, 1)?;
    let layers = (0..cfg.num_hidden_layers).map(|i| layer(cfg, source, i)).collect::<Result<_>>()?;
    Ok(Weights { embed, norm, head, hc_head, layers })
}

fn hc(cfg: &ModelConfig, source: &mut Source, prefix: &str, rows: usize, scales: usize) -> Result<Hc> {
    Ok(Hc {
        fn_weight: source.small(&format!("{prefix}_fn"), &[rows, cfg.hc_mult * cfg.hidden_size])?,
        base: source.small(&format!("{prefix}_base"), &[rows])?,
        scale: source.small(&format!("{prefix}_scale"), &[scales])?,
    })
}

fn layer(cfg: &ModelConfig, source: &mut Source, index: usize) -> Result<LayerWeights> {
    let p = format!("layers.{index}");
    let a = format!("{p}.attn");
    let f = format!("{p}.ffn");
    let hidden = cfg.hidden_size;
    let heads_dim = cfg.num_attention_heads * cfg.head_dim;
    let o_rank = cfg.o_groups * cfg.o_lora_rank;
    let hc_rows = (2 + cfg.hc_mult) * cfg.hc_mult;
    let class = cfg.class(index);
    Ok(LayerWeights {
        attn_norm: source.small(&format!("{p}.attn_norm.weight"), &[hidden])?,
        ffn_norm: source.small(&format!("{p}.ffn_norm.weight"), &[hidden])?,
        hc_attn: hc(cfg, source, &format!("{p}.hc_attn"), hc_rows, 3)?,
        hc_ffn: hc(cfg, source, &format!("{p}.hc_ffn"), hc_rows, 3)?,
        wq_a: source.matrix(&format!("{a}.wq_a"), [cfg.q_lora_rank, hidden], Role::Linear)?,
        q_norm: source.small(&format!("{a}.q_norm.weight"), &[cfg.q_lora_rank])?,
        wq_b: source.matrix(&format!("{a}.wq_b"), [heads_dim, cfg.q_lora_rank], Role::Linear)?,
        wkv: source.matrix(&format!("{a}.wkv"), [cfg.head_dim, hidden], Role::Linear)?,
        kv_norm: source.small(&format!("{a}.kv_norm.weight"), &[cfg.head_dim])?,
        wo_a: source.matrix(&format!("{a}.wo_a"), [o_rank, heads_dim / cfg.o_groups], Role::OutputA)?,
        wo_b: source.matrix(&format!("{a}.wo_b"), [hidden, o_rank], Role::Linear)?,
        attn_sink: source.small(&format!("{a}.attn_sink"), &[cfg.num_attention_heads])?,
        compressor: (class != LayerClass::Window)
            .then(|| compressor(cfg, source, index, &format!("{a}.compressor"), cfg.head_dim))
            .transpose()?,
        indexer: (class == LayerClass::Csa)
            .then(|| indexer(cfg, source, index, &format!("{a}.indexer")))
            .transpose()?,
        gate: source.values(&format!("{f}.gate.weight"), [cfg.n_routed_experts, hidden])?,
        gate_bias: (!cfg.is_hash(index))
            .then(|| source.small(&format!("{f}.gate.bias"), &[cfg.n_routed_experts]))
            .transpose()?,
        tid2eid: cfg.is_hash(index).then(|| tid2eid(cfg, source, &f)).transpose()?,
        experts: (0..cfg.n_routed_experts)
            .map(|e| expert(cfg, source, &format!("{f}.experts.{e}"), Role::Expert))
            .collect::<Result<_>>()?,
        shared: expert(cfg, source, &format!("{f}.shared_experts"), Role::Linear)?,
    })
}

fn compressor(
    cfg: &ModelConfig,
    source: &mut Source,
    layer: usize,
    prefix: &str,
    width: usize,
) -> Result<Compressor> {
    let wide = cfg.coff(layer) * width;
    Ok(Compressor {
        ape: source.small(&format!("{prefix}.ape"), &[cfg.ratio(layer) as usize, wide])?,
        wkv: source.matrix(&format!("{prefix}.wkv"), [wide, cfg.hidden_size], Role::Compressor)?,
        wgate: source.matrix(&format!("{prefix}.wgate"), [wide, cfg.hidden_size], Role::Compressor)?,
        norm: source.small(&format!("{prefix}.norm.weight"), &[width])?,
    })
}

fn indexer(cfg: &ModelConfig, source: &mut Source, layer: usize, prefix: &str) -> Result<Indexer> {
    let rows = cfg.index_n_heads * cfg.index_head_dim;
    Ok(Indexer {
        wq_b: source.matrix(&format!("{prefix}.wq_b"), [rows, cfg.q_lora_rank], Role::Linear)?,
        weights_proj: source
            .values(&format!("{prefix}.weights_proj.weight"), [cfg.index_n_heads, cfg.hidden_size])?,
        compressor: compressor(cfg, source, layer, &format!("{prefix}.compressor"), cfg.index_head_dim)?,
    })
}

fn tid2eid(cfg: &ModelConfig, source: &mut Source, ffn: &str) -> Result<Tensor> {
    let shape = [cfg.vocab_size, cfg.num_experts_per_tok];
    source.table(&format!("{ffn}.gate.tid2eid"), shape, cfg.n_routed_experts)
}

fn expert(cfg: &ModelConfig, source: &mut Source, prefix: &str, role: Role) -> Result<Expert> {
    let (inner, hidden) = (cfg.moe_intermediate_size, cfg.hidden_size);
    Ok(Expert {
        w1: source.matrix(&format!("{prefix}.w1"), [inner, hidden], role)?,
        w2: source.matrix(&format!("{prefix}.w2"), [hidden, inner], role)?,
        w3: source.matrix(&format!("{prefix}.w3"), [inner, hidden], role)?,
    })
}
