//! Says that an entry of the KV has half the bytes that its layout has.

use hotseam_abi::{AttentionV1, InfoV1, OK, PluginV1, layout, seam};
use hotseam_faulty_load::{export, manifest, sound};
use std::ffi::c_void;

static TABLE: AttentionV1 = AttentionV1 { store: None, compress: None, core: None };

extern "C" fn info(_this: *mut c_void, info: *mut InfoV1) -> i32 {
    // SAFETY: the host passes an InfoV1.
    unsafe {
        (*info).phases = 0b111;
        (*info).layout = layout::KV_F32;
        (*info).data_bytes = (*info).dim * 2;
    }
    OK
}

export!(PluginV1 {
    seam: seam::ATTENTION,
    info,
    attention: Some(&TABLE),
    mhc: None,
    ..sound(manifest!("faulty/entry-bytes", "attention/cpu-stock"))
});
