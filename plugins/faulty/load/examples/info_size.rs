//! Describes itself in a struct that is longer than the host's, and writes behind that.

use hotseam_abi::{InfoV1, OK, PluginV1};
use hotseam_faulty_load::{export, manifest, sound};
use std::ffi::c_void;

/// A later description.
#[repr(C)]
struct LongInfo {
    known: InfoV1,
    workspace: u64,
}

extern "C" fn info(_this: *mut c_void, info: *mut InfoV1) -> i32 {
    let long = info.cast::<LongInfo>();
    // SAFETY: not sound, which is the fault; the host has left room for it.
    unsafe {
        (*long).known.phases = 0b111;
        (*long).workspace = 1 << 20;
    }
    OK
}

export!(PluginV1 { info, ..sound(manifest!("faulty/info-size")) });
