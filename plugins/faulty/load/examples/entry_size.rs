//! Says that its entry ends before the functions do.

use hotseam_abi::PluginV1;
use hotseam_faulty_load::{export, manifest, sound};

export!(PluginV1 { size: 24, ..sound(manifest!("faulty/entry-size")) });
