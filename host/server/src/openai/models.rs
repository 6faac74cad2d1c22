//! `/v1/models`.

use serde_json::{Value, json};

use crate::backend::ModelInfo;

/// The list of models: the one that is served.
pub(crate) fn list(model: &ModelInfo) -> Value {
    json!({ "object": "list", "data": [one(model)] })
}

/// One model. `root`, `parent` and `max_model_len` are SGLang's additions, which routers read.
pub(crate) fn one(model: &ModelInfo) -> Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "hotseam",
        "root": model.id,
        "parent": null,
        "max_model_len": model.max_context,
    })
}
