//! Malformed and unsupported `config.json` files, each refused with the field's path.

use hotseam_checkpoint::parse_config;
use hotseam_checkpoint::random::Preset;
use hotseam_model::ConfigError;
use serde_json::{Value, json};

/// Preset with `changes` merged in; a null removes the field.
fn parse(changes: Value) -> Result<hotseam_model::ModelConfig, ConfigError> {
    let mut config = Preset::FlashLike.config_json();
    let map = config.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        if value.is_null() {
            map.remove(key);
        } else {
            map.insert(key.clone(), value.clone());
        }
    }
    parse_config(&config.to_string())
}

#[track_caller]
fn refused(changes: Value, field: &str) -> ConfigError {
    let error = parse(changes).unwrap_err();
    assert_eq!(error.field, field, "{error}");
    error
}

#[test]
fn values_of_another_model_are_refused() {
    for (key, value) in [
        ("model_type", json!("deepseek_v3")),
        ("scoring_func", json!("sigmoid")),
        ("hidden_act", json!("gelu")),
        ("norm_topk_prob", json!(false)),
        ("topk_method", json!("greedy")),
        ("num_key_value_heads", json!(2)),
        ("n_shared_experts", json!(2)),
        ("tie_word_embeddings", json!(true)),
        ("attention_bias", json!(true)),
        ("index_topk_freq", json!(2)),
        ("hidden_size", json!("128")),
        ("hidden_size", json!(-1)),
        ("hidden_size", json!(1.5)),
        ("rms_norm_eps", json!(0)),
        ("eos_token_id", json!([1, 2])),
        ("n_routed_experts", json!(u64::MAX)),
    ] {
        refused(json!({ key: value }), key);
    }
    refused(json!({ "compress_ratios": [0, 0, 4, 128, 8, 128, 4, 0] }), "compress_ratios[4]");
    refused(json!({ "compress_ratios": [0, 0, 4, 128, 4] }), "compress_ratios");
    refused(json!({ "compress_ratios": [0, 0, 4, 128, "x", 128, 4] }), "compress_ratios[4]");
    refused(json!({ "rope_scaling": { "type": "linear", "factor": 2 } }), "rope_scaling.rope_type");
    refused(
        json!({ "rope_scaling": { "type": "yarn", "factor": 2 } }),
        "rope_scaling.original_max_position_embeddings",
    );
    refused(json!({ "rope_scaling": [] }), "rope_scaling");
}

#[test]
fn missing_and_unknown_fields_are_named() {
    for key in [
        "vocab_size",
        "model_type",
        "scoring_func",
        "compress_ratios",
        "num_hash_layers",
        "swiglu_limit",
        "rope_theta",
        "compress_rope_theta",
        "qk_rope_head_dim",
        "bos_token_id",
    ] {
        assert_eq!(refused(json!({ key: null }), key).found, "nothing");
    }
    let error = refused(json!({ "index_topkk": 3 }), "index_topkk");
    assert!(error.expected.contains("`index_topk`"), "{error}");
    let error = refused(json!({ "engram": true }), "engram");
    assert!(!error.expected.contains("meant"), "{error}");
    refused(json!({ "rope_scaling": { "type": "default", "facto": 2 } }), "rope_scaling.facto");
    parse(json!({ "_name_or_path": "x", "transformers_version": "5", "eos_token_id": [1] })).unwrap();
}

#[test]
fn drafting_stages_have_ratios_of_their_own() {
    let ratios = json!([0, 0, 4, 128, 4, 128, 4, 0, 0, 0]);
    let dspark = json!({ "compress_ratios": ratios, "dspark_target_layer_ids": [4, 5, 6], "dspark_block_size": 5,
        "dspark_noise_token_id": 3, "dspark_markov_rank": 256 });
    assert_eq!(parse(dspark).unwrap(), Preset::FlashLike.config());
    refused(json!({ "compress_ratios": ratios }), "compress_ratios");
    refused(json!({ "compress_ratios": ratios, "dspark_target_layer_ids": [5, 6] }), "compress_ratios");
}

#[test]
fn text_that_is_no_object_is_refused() {
    for text in ["", "{", "[]", "3", "{\"model_type\": }", "\u{0}"] {
        assert_eq!(parse_config(text).unwrap_err().field, "(whole file)", "{text:?}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(parse_config(&deep).unwrap_err().field, "(whole file)");
}

/// The layer plan and rope of `transformers`, in place of the official fields.
fn transformers(changes: Value) -> Value {
    let yarn = json!({
        "type": "yarn", "rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 4096, "beta_fast": 32,
        "beta_slow": 1, "rope_theta": 160000.0, "partial_rotary_factor": 0.125, "attention_factor": 1.0,
    });
    let mut form = json!({
        "compress_ratios": null, "num_hash_layers": null, "rope_scaling": null, "qk_rope_head_dim": null,
        "layer_types": ["sliding_attention", "sliding_attention", "compressed_sparse_attention",
            "heavily_compressed_attention", "compressed_sparse_attention", "heavily_compressed_attention",
            "compressed_sparse_attention"],
        "compress_rates": { "compressed_sparse_attention": 4, "heavily_compressed_attention": 128 },
        "mlp_layer_types": ["hash_moe", "hash_moe", "hash_moe", "moe", "moe", "moe", "moe"],
        "rope_parameters": {
            "main": { "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.125 },
            "compress": yarn,
        },
        "partial_rotary_factor": 0.125,
    });
    form.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    form
}

#[test]
fn transformers_form_equals_the_official_one() {
    assert_eq!(parse(transformers(json!({}))).unwrap(), Preset::FlashLike.config());
}

#[test]
fn transformers_form_is_checked_too() {
    let rope = |key: &str, value: Value| {
        let mut form = transformers(json!({}));
        form["rope_parameters"]["compress"][key] = value;
        form
    };
    refused(rope("attention_factor", json!(1.277)), "rope_parameters.compress.attention_factor");
    refused(rope("attention_factor", Value::Null), "rope_parameters.compress.attention_factor");
    refused(rope("type", json!("linear")), "rope_parameters.compress.type");
    refused(rope("partial_rotary_factor", json!(0.25)), "partial_rotary_factor");
    refused(rope("rope_theta", json!(10000)), "compress_rope_theta");
    refused(
        transformers(json!({ "compress_rates": { "compressed_sparse_attention": 8 } })),
        "compress_rates.compressed_sparse_attention",
    );
    refused(
        transformers(json!({ "mlp_layer_types": ["moe", "hash_moe", "moe", "moe", "moe", "moe", "moe"] })),
        "mlp_layer_types[1]",
    );
    refused(transformers(json!({ "num_hash_layers": 1 })), "num_hash_layers");
    refused(transformers(json!({ "compress_ratios": [0, 0, 4, 128, 4, 128, 4] })), "layer_types");
    refused(
        transformers(json!({ "layer_types": ["full_attention", "a", "b", "c", "d", "e", "f"] })),
        "layer_types[0]",
    );
    refused(transformers(json!({ "layer_types": [0, 0, 4, 128, 4, 128, 4] })), "layer_types[0]");
}
