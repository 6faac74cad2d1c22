//! The CUDA device of tests that run in this process.

use crate::{plugins, root, rule, slots};
use hotseam_engine::{Device, Engine, EngineConfig, Topology};
use hotseam_model::Model;
use hotseam_slots::Rule;
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// Makes device 0 of this process the emulated one of `scripts/cuda-emulator`, or, with `HOTSEAM_CUDA=device`, the machine's own.
/// `false`, with a printed reason, if the emulated one cannot be built.
pub fn device() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(|| is_real() || emulate())
}

/// Whether tests run on the machine's own device, where they take the sizes that an emulated one is too slow for.
pub fn is_real() -> bool {
    std::env::var("HOTSEAM_CUDA").is_ok_and(|v| v == "device")
}

fn emulate() -> bool {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        println!("skipped: {compiler}, which builds the emulated device, is not installed");
        return false;
    }
    let target = plugins().parent().expect("target above release").to_owned();
    let mut script = Command::new(root().join("scripts/cuda-emulator"));
    let out = script.env("CARGO_TARGET_DIR", target).output().expect("scripts/cuda-emulator starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let directory = root().join(String::from_utf8_lossy(&out.stdout).trim());
    // Whoever opens `libcuda.so.1` from now on gets the library of that name that is open already.
    // SAFETY: the library is the project's own, and stays open.
    let opened = unsafe {
        let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
        let path = std::ffi::CString::new(directory.join("libcuda.so.1").to_str().expect("UTF-8"))
            .expect("a path without zeros");
        libc::dlopen(path.as_ptr(), flags)
    };
    assert!(!opened.is_null(), "the emulated driver cannot be opened from {}", directory.display());
    true
}

/// Rules that give every seam to its stock variant for a device.
pub fn stock(kv: &str, keys: &str) -> Vec<Rule> {
    vec![
        rule("attention", &format!("attention/cuda-stock{{kv: {kv}}}")),
        rule("indexer", &format!("indexer/cuda-stock{{keys: {keys}}}")),
        rule("moe", "moe/cuda-stock"),
        rule("mhc", "mhc/cuda-stock"),
    ]
}

/// An engine on device 0.
pub fn engine(model: &Arc<Model>, rules: Vec<Rule>, config: EngineConfig) -> Engine {
    let config = EngineConfig { device: Device::Cuda(0), topology: Topology::Single, ..config };
    let slots = slots(model, &config, rules);
    Engine::start(Arc::clone(model), slots, config).unwrap_or_else(|e| panic!("{e}"))
}
