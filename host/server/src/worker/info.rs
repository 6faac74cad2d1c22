//! `/server_info` and `/model_info`: what routers make labels of.

use hotseam_engine::Role;
use serde_json::{Value, json};

use crate::public::Served;

/// The kind of model that this server can load.
const MODEL_TYPE: &str = "deepseek_v4";
/// Its class in the checkpoint's `config.json`.
const ARCHITECTURE: &str = "DeepseekV4ForCausalLM";

/// A role in SGLang's words.
pub(super) fn mode(role: Role) -> &'static str {
    match role {
        Role::Single => "null",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    }
}

/// The answer of `/server_info`. The model's name stands for its path, which is nobody's business here; routers that look
/// for a tokenizer under it are told not to.
pub(super) fn server(served: &Served) -> Value {
    let (load, model) = (served.backend.load(), &served.model);
    json!({
        "model_path": model.id,
        "served_model_name": model.id,
        "version": env!("CARGO_PKG_VERSION"),
        "disaggregation_mode": mode(served.backend.role()),
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "load_balance_method": "round_robin",
        "is_embedding": false,
        "context_length": model.max_context,
        "max_total_tokens": load.total_tokens,
        "max_total_num_tokens": load.total_tokens,
        "max_running_requests": load.max_running,
        "chunked_prefill_size": load.chunk,
        "page_size": load.page_tokens,
        "weight_version": "default",
        "internal_states": [{
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_rooms": load.rooms,
            "num_used_tokens": load.used_tokens,
            "prompt_tokens_total": load.prompt_tokens,
            "generation_tokens_total": load.generated_tokens,
        }],
    })
}

/// The answer of `/model_info`.
pub(super) fn model(served: &Served) -> Value {
    let model = &served.model;
    json!({
        "model_path": model.id,
        "served_model_name": model.id,
        "tokenizer_path": model.id,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": "default",
        "disaggregation_mode": mode(served.backend.role()),
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": MODEL_TYPE,
        "architectures": [ARCHITECTURE],
    })
}
