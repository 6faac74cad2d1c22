//! A root module by the name of the plugins', of another type: its function takes an argument that the host does not pass.

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;
use hotseam_abi::{PluginMod, PluginV1};
use hotseam_faulty_load::{manifest, sound};

static PLUGIN: PluginV1 = sound(manifest!("faulty/layout"));

/// The root module.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = OtherMod)))]
#[sabi(missing_field(panic))]
pub struct OtherModVal {
    /// Another function under the name of the entry.
    #[sabi(last_prefix_field)]
    pub plugin_v1: extern "C" fn(u64) -> &'static PluginV1,
}

impl RootModule for OtherMod {
    abi_stable::declare_root_module_statics! {OtherMod}
    const BASE_NAME: &'static str = PluginMod::BASE_NAME;
    const NAME: &'static str = PluginMod::NAME;
    const VERSION_STRINGS: VersionStrings = PluginMod::VERSION_STRINGS;
}

extern "C" fn plugin_v1(_more: u64) -> &'static PluginV1 {
    &PLUGIN
}

#[abi_stable::export_root_module]
fn root_module() -> OtherMod {
    OtherModVal { plugin_v1 }.leak_into_prefix()
}
