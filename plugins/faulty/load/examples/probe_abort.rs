//! Aborts when it is asked whether it can run.

use hotseam_abi::{HostServicesV1, PluginV1};
use hotseam_faulty_load::{export, manifest, sound};

extern "C" fn probe(_host: *const HostServicesV1) -> i32 {
    eprintln!("told to abort");
    std::process::abort();
}

export!(PluginV1 { probe, ..sound(manifest!("faulty/probe-abort")) });
