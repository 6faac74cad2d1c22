//! Has the entry of a later version only.

use hotseam_abi::PluginV1;
use hotseam_faulty_load::{manifest, sound};

static PLUGIN: PluginV1 = sound(manifest!("faulty/later"));

/// The entry.
#[unsafe(no_mangle)]
pub extern "C" fn hotseam_plugin_v2() -> *const PluginV1 {
    &PLUGIN
}
