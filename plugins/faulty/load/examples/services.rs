//! Needs host services that this host does not have, and would call past the end of those there are.

use hotseam_abi::PluginV1;
use hotseam_faulty_load::{export, manifest, sound};

export!(PluginV1 { host_services: 2, ..sound(manifest!("faulty/services")) });
