//! A worker without CUDA or NCCL opens the plugin and hears from an instance what it misses. What needs two GPUs is not tested here.

#[path = "../../nixl/tests/host/mod.rs"]
mod host;

use hotseam_kv_transport_nccl::Options;
use hotseam_kv_wire::Options as _;

fn options(device: i64) -> Result<Options, serde_json::Error> {
    serde_json::from_value(serde_json::json!({"device": device, "listen": "127.0.0.1:0", "advertise": "",
        "patience_ms": 5000}))
}

#[test]
fn an_instance_names_what_is_missing() {
    let error = options(99).unwrap().carrier(host::host()).expect_err("no machine has 100 GPUs");
    // The first thing that is missing: CUDA, NCCL, a device at all, or this one.
    let told = [
        &["no CUDA driver", "libcuda.so.1", "Install the NVIDIA driver", "kv_transport/tcp"][..],
        &["NCCL is not there", "libnccl.so.2", "LD_LIBRARY_PATH", "kv_transport/tcp"],
        &["CUDA: "],
        &["device: 99 is not there"],
    ];
    assert!(told.iter().any(|texts| texts.iter().all(|text| error.message.contains(text))), "{error}");
    assert!(options(-1).is_err());
}
