//! `/get_load` and `/v1/loads`: how much a worker has to do.

use hotseam_engine::Role;
use serde_json::{Value, json};

use super::info;
use crate::backend::Load;

/// What `sglang-router` reads: one entry for each rank.
pub(super) fn short(load: Load) -> Value {
    json!([{
        "dp_rank": 0,
        "num_reqs": load.running + load.waiting,
        "num_waiting_reqs": load.waiting,
        "num_tokens": load.used_tokens,
    }])
}

/// What `smg` reads.
pub(super) fn long(load: Load, role: Role) -> Value {
    let usage = load.used_tokens as f64 / load.total_tokens.max(1) as f64;
    let mut rank = json!({
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_total_reqs": load.running + load.waiting,
        "num_used_tokens": load.used_tokens,
        "max_total_num_tokens": load.total_tokens,
        "max_running_requests": load.max_running,
        "token_usage": usage,
        "utilization": load.running as f64 / load.max_running.max(1) as f64,
        "cache_hit_rate": 0.0,
    });
    if role != Role::Single {
        rank["disagg_mode"] = info::mode(role).into();
    }
    json!({ "version": env!("CARGO_PKG_VERSION"), "dp_rank_count": 1, "loads": [rank] })
}
