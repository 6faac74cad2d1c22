//! Overflows the stack when it is asked whether it can run.

use hotseam_abi::{HostServicesV1, PluginV1};
use hotseam_faulty_load::{export, manifest, sound};
use std::hint::black_box;

fn deeper(depth: u64) -> u64 {
    let frame = black_box([depth; 512]);
    if black_box(depth) == u64::MAX { 0 } else { deeper(depth + 1) + black_box(frame)[0] }
}

extern "C" fn probe(_host: *const HostServicesV1) -> i32 {
    deeper(0) as i32
}

export!(PluginV1 { probe, ..sound(manifest!("faulty/probe-overflow")) });
