//! Lets a panic out of `create`, against the contract: the process ends.

use hotseam_abi::{HostServicesV1, PluginV1, Text};
use hotseam_faulty_load::{export, manifest, sound};
use std::ffi::c_void;

extern "C" fn create(_host: *const HostServicesV1, _options: Text, _out: *mut *mut c_void) -> i32 {
    panic!("told to panic in create");
}

export!(PluginV1 { create, ..sound(manifest!("faulty/create-panic")) });
