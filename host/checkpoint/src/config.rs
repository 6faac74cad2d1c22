//! `config.json`, in DeepSeek's own form (`compress_ratios`, `rope_scaling`) and in that of `transformers`
//! (`layer_types`, `mlp_layer_types`, `rope_parameters`).

use hotseam_model::{ConfigError, ModelConfig, Yarn};
use serde_json::{Value, json};

use crate::fields::{Fields, shorten};
use crate::quantisation::Quantisation;

/// Fields that other programs write and that change nothing in inference.
const IGNORED: &[&str] = &[
    "architectures",
    "attention_dropout",
    "auto_map",
    "dspark_block_size", // these four: drafting, which this build does not do
    "dspark_markov_rank",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "dtype",
    "initializer_range",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Parses the text of a `config.json` and validates the result.
///
/// # Errors
/// [`ConfigError`] with the field's path. A field that is missing, has a value that this implementation does not
/// compute, or is unknown is an error: nothing is silently defaulted.
pub fn parse_config(text: &str) -> Result<ModelConfig, ConfigError> {
    parse(text).map(|(config, _)| config)
}

/// [`parse_config`], with what the file says about storage.
pub(crate) fn parse(text: &str) -> Result<(ModelConfig, Quantisation), ConfigError> {
    let whole = |found: String| ConfigError::new("(whole file)", "a JSON object", found);
    let value: Value = serde_json::from_str(text).map_err(|e| whole(e.to_string()))?;
    let map = value.as_object().ok_or_else(|| whole(shorten(&value)))?;
    let f = Fields::new(map, "");
    check_fixed(&f)?;
    let quantisation = Quantisation::read(&f)?;

    let layers = f.size("num_hidden_layers")?;
    let head_dim = f.size("head_dim")?;
    let rope = read_rope(&f, head_dim)?;
    let config = ModelConfig {
        vocab_size: f.size("vocab_size")?,
        hidden_size: f.size("hidden_size")?,
        num_hidden_layers: layers,
        num_attention_heads: f.size("num_attention_heads")?,
        head_dim,
        qk_rope_head_dim: rope.dim,
        q_lora_rank: f.size("q_lora_rank")?,
        o_lora_rank: f.size("o_lora_rank")?,
        o_groups: f.size("o_groups")?,
        sliding_window: f.size("sliding_window")?,
        compress_ratios: read_ratios(&f, layers)?,
        rope_theta: rope.theta,
        compress_rope_theta: rope.compress_theta,
        rope_scaling: rope.yarn,
        max_position_embeddings: f.size("max_position_embeddings")?,
        index_n_heads: f.size("index_n_heads")?,
        index_head_dim: f.size("index_head_dim")?,
        index_topk: f.size("index_topk")?,
        n_routed_experts: f.size("n_routed_experts")?,
        n_shared_experts: f.size("n_shared_experts")?,
        num_experts_per_tok: f.size("num_experts_per_tok")?,
        moe_intermediate_size: f.size("moe_intermediate_size")?,
        num_hash_layers: read_hash_layers(&f, layers)?,
        routed_scaling_factor: f.number("routed_scaling_factor")? as f32,
        swiglu_limit: f.number("swiglu_limit")? as f32,
        hc_mult: f.size("hc_mult")?,
        hc_sinkhorn_iters: f.size("hc_sinkhorn_iters")?,
        hc_eps: f.number("hc_eps")? as f32,
        rms_norm_eps: f.number("rms_norm_eps")? as f32,
        bos_token_id: f.token("bos_token_id")?,
        eos_token_id: f.token("eos_token_id")?,
        pad_token_id: f.token_or("pad_token_id")?,
    };
    f.finish(IGNORED)?;
    config.validate()?;
    Ok((config, quantisation))
}

/// Fields with one value that this implementation computes.
fn check_fixed(f: &Fields) -> Result<(), ConfigError> {
    if f.get("model_type").is_none() {
        return Err(f.error("model_type", "\"deepseek_v4\"", "nothing"));
    }
    if f.get("scoring_func").is_none() {
        return Err(f.error("scoring_func", "\"sqrtsoftplus\"", "nothing"));
    }
    for (key, wanted) in [
        ("model_type", json!("deepseek_v4")),
        ("num_key_value_heads", json!(1)),
        ("scoring_func", json!("sqrtsoftplus")),
        ("topk_method", json!("noaux_tc")),
        ("norm_topk_prob", json!(true)),
        ("hidden_act", json!("silu")),
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("tie_word_embeddings", json!(false)),
        ("n_group", json!(1)),
        ("topk_group", json!(1)),
        ("index_topk_freq", json!(1)),
    ] {
        f.only(key, &wanted)?;
    }
    Ok(())
}

/// One ratio for each layer, from `compress_ratios` or from `layer_types` with `compress_rates`.
fn read_ratios(f: &Fields, layers: usize) -> Result<Vec<u32>, ConfigError> {
    let mtp = f.size_or("num_nextn_predict_layers")?.unwrap_or(0);
    // Checkpoints with DSpark have an entry for each of its stages, whatever `num_nextn_predict_layers` says.
    let stages = f.list_or("dspark_target_layer_ids")?.map_or(mtp, Vec::len);
    if let Some(rates) = f.object_or("compress_rates")? {
        rates.only("compressed_sparse_attention", &json!(4))?;
        rates.only("heavily_compressed_attention", &json!(128))?;
        rates.finish(&[])?;
    }
    let types = f.list_or("layer_types")?;
    let (key, list) = match (f.list_or("compress_ratios")?, types) {
        (Some(_), Some(_)) => {
            return Err(f.error("layer_types", "either `compress_ratios` or `layer_types`", "both"));
        }
        (Some(ratios), None) => ("compress_ratios", ratios),
        (None, Some(types)) => ("layer_types", types),
        (None, None) => return Err(f.error("compress_ratios", "a ratio for each layer", "nothing")),
    };
    if ![0, mtp, stages].iter().any(|more| Some(list.len()) == layers.checked_add(*more)) {
        let expected = format!("{layers} entries, and optionally {stages} for MTP layers");
        return Err(f.error(key, expected, format!("{} entries", list.len())));
    }
    let read = |(i, value): (usize, &Value)| {
        let ratio = match value.as_str() {
            Some("sliding_attention") => Some(0),
            Some("compressed_sparse_attention") => Some(4),
            Some("heavily_compressed_attention") => Some(128),
            Some(_) => None,
            None => value.as_u64().and_then(|n| u32::try_from(n).ok()),
        };
        let known = ratio.filter(|r| matches!(r, 0 | 4 | 128) && value.is_string() == (key == "layer_types"));
        let expected = match key {
            "layer_types" => "sliding_attention, compressed_sparse_attention or heavily_compressed_attention",
            _ => "0, 4 or 128",
        };
        known.ok_or_else(|| f.error(&format!("{key}[{i}]"), expected, shorten(value)))
    };
    list.iter().take(layers).enumerate().map(read).collect()
}

/// Number of leading hash-routed layers, from `num_hash_layers` or `mlp_layer_types`.
fn read_hash_layers(f: &Fields, layers: usize) -> Result<usize, ConfigError> {
    let count = f.size_or("num_hash_layers")?;
    let Some(types) = f.list_or("mlp_layer_types")? else {
        return count.ok_or_else(|| f.error("num_hash_layers", "a whole number", "nothing"));
    };
    if types.len() != layers {
        let found = format!("{} entries", types.len());
        return Err(f.error("mlp_layer_types", format!("{layers} entries, one per layer"), found));
    }
    let hash = types.iter().take_while(|t| *t == "hash_moe").count();
    for (i, value) in types.iter().enumerate().skip(hash) {
        if value != "moe" {
            let expected = "moe, or hash_moe on the first layers only";
            return Err(f.error(&format!("mlp_layer_types[{i}]"), expected, shorten(value)));
        }
    }
    match count {
        Some(count) if count != hash => {
            Err(f.error("num_hash_layers", format!("{hash}, as in `mlp_layer_types`"), count))
        }
        _ => Ok(hash),
    }
}

struct Rope {
    dim: usize,
    theta: f64,
    compress_theta: f64,
    yarn: Option<Yarn>,
}

/// Rope width, bases and YaRN. `transformers` nests them in `rope_parameters.{main, compress}`; the official form has
/// them at the top with `rope_scaling`.
fn read_rope(f: &Fields, head_dim: usize) -> Result<Rope, ConfigError> {
    let partial = f.number_or("partial_rotary_factor")?;
    let (theta, compress_theta) = (f.number_or("rope_theta")?, f.number_or("compress_rope_theta")?);
    let scaling = f.object_or("rope_scaling")?;
    let nested = f.object_or("rope_parameters")?;
    let (mut main_theta, mut main_partial, mut side_theta, mut side_partial) = (None, None, None, None);
    let yarn = match (scaling, nested) {
        (Some(_), Some(_)) => {
            return Err(f.error("rope_scaling", "either `rope_scaling` or `rope_parameters`", "both"));
        }
        (Some(scaling), None) => read_yarn(&scaling, false)?,
        (None, None) => None,
        (None, Some(nested)) => {
            let part = |key| nested.object_or(key)?.ok_or_else(|| nested.error(key, "an object", "nothing"));
            let (main, side) = (part("main")?, part("compress")?);
            nested.finish(&[])?;
            (main_theta, side_theta) = (main.number_or("rope_theta")?, side.number_or("rope_theta")?);
            main_partial = main.number_or("partial_rotary_factor")?;
            side_partial = side.number_or("partial_rotary_factor")?;
            if read_yarn(&main, true)?.is_some() {
                return Err(main.error("rope_type", "\"default\"", "yarn"));
            }
            read_yarn(&side, true)?
        }
    };
    Ok(Rope {
        dim: rope_dim(f, head_dim, &[partial, main_partial, side_partial])?,
        theta: agree(f, "rope_theta", theta, main_theta)?,
        compress_theta: agree(f, "compress_rope_theta", compress_theta, side_theta)?,
        yarn,
    })
}

/// Channels that rotate: `qk_rope_head_dim`, or a fraction of `head_dim`. All that are given must agree.
fn rope_dim(f: &Fields, head_dim: usize, partial: &[Option<f64>]) -> Result<usize, ConfigError> {
    let mut dim = f.size_or("qk_rope_head_dim")?;
    for fraction in partial.iter().flatten() {
        let channels = (head_dim as f64 * fraction) as usize;
        if !(0.0..=1.0).contains(fraction) || dim.is_some_and(|d| d != channels) {
            let expected =
                format!("qk_rope_head_dim / head_dim ({:?} / {head_dim})", dim.unwrap_or(channels));
            return Err(f.error("partial_rotary_factor", expected, fraction));
        }
        dim = Some(channels);
    }
    dim.ok_or_else(|| f.error("qk_rope_head_dim", "a whole number", "nothing"))
}

fn agree(f: &Fields, key: &str, top: Option<f64>, nested: Option<f64>) -> Result<f64, ConfigError> {
    match (top, nested) {
        (Some(a), Some(b)) if a != b => Err(f.error(key, format!("{b}, as in `rope_parameters`"), a)),
        (a, b) => b.or(a).ok_or_else(|| f.error(key, "a number", "nothing")),
    }
}

/// YaRN parameters; `None` for the default rope. `nested` says that the object is part of `rope_parameters`.
fn read_yarn(f: &Fields, nested: bool) -> Result<Option<Yarn>, ConfigError> {
    let kind = match (f.text_or("rope_type")?, f.text_or("type")?) {
        (Some(a), Some(b)) if a != b => return Err(f.error("type", format!("{a}, as `rope_type`"), b)),
        (a, b) => a.or(b),
    };
    let yarn = match kind {
        None | Some("default") => None,
        Some("yarn") => {
            // V4 does not scale cos and sin. From the official form `transformers` sets 1; in its own form an absent
            // factor means one derived from `factor`.
            if nested && f.get("attention_factor").is_none() {
                return Err(f.error("attention_factor", "1.0", "nothing"));
            }
            f.only("attention_factor", &json!(1.0))?;
            f.only("truncate", &json!(true))?;
            Some(Yarn {
                factor: f.number("factor")?,
                original_max_position_embeddings: f.size("original_max_position_embeddings")?,
                beta_fast: f.number("beta_fast")?,
                beta_slow: f.number("beta_slow")?,
            })
        }
        Some(other) => return Err(f.error("rope_type", "\"yarn\" or \"default\"", other)),
    };
    // The caller reads these two where they are nested.
    f.finish(&["rope_theta", "partial_rotary_factor", "mscale", "mscale_all_dim"])?;
    Ok(yarn)
}
