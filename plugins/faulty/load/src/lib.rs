//! What the plugins with faults of loading share: an entry of the `mhc` seam that is sound, and serves no op of its own.
//!
//! They are examples, not plugins of the workspace: none of them can be used, so none should be found.

use hotseam_abi::{CONTRACT, HostServicesV1, InfoV1, MhcV1, OK, PluginV1, Text, seam};
use std::ffi::c_void;

static TABLE: MhcV1 = MhcV1 { pre: None, post: None, head: None };

/// An entry with nothing wrong in it.
pub const fn sound(manifest: &'static str) -> PluginV1 {
    PluginV1 {
        size: size_of::<PluginV1>() as u32,
        contract: CONTRACT,
        seam: seam::MHC,
        host_services: 1,
        manifest: Text { ptr: manifest.as_ptr(), len: manifest.len() },
        probe: can_run,
        create,
        info,
        destroy,
        attention: None,
        indexer: None,
        moe: None,
        mhc: Some(&TABLE),
        kv_transport: None,
    }
}

extern "C" fn can_run(_host: *const HostServicesV1) -> i32 {
    OK
}

extern "C" fn create(_host: *const HostServicesV1, _options: Text, out: *mut *mut c_void) -> i32 {
    // SAFETY: the host passes a place for the instance; it is never read through.
    unsafe { *out = std::ptr::dangling_mut::<u8>().cast() };
    OK
}

extern "C" fn info(_this: *mut c_void, info: *mut InfoV1) -> i32 {
    // SAFETY: the host passes an InfoV1.
    unsafe { (*info).phases = 0b111 };
    OK
}

extern "C" fn destroy(_this: *mut c_void) {}

/// Exports `$entry` as the plugin.
#[macro_export]
macro_rules! export {
    ($entry:expr) => {
        static PLUGIN: hotseam_abi::PluginV1 = $entry;

        /// The entry.
        #[unsafe(no_mangle)]
        pub extern "C" fn hotseam_plugin_v1() -> *const hotseam_abi::PluginV1 {
            &PLUGIN
        }
    };
}

/// The JSON manifest of a plugin of this name that takes all ops from stock, of the mHC seam unless another base is named.
#[macro_export]
macro_rules! manifest {
    ($name:literal) => {
        $crate::manifest!($name, "mhc/cpu-stock")
    };
    ($name:literal, $base:literal) => {
        concat!(
            "{\"name\": \"",
            $name,
            "\", \"version\": \"1\", \"description\": \"a fault of loading\", \"base\": \"",
            $base,
            "\"}"
        )
    };
}
