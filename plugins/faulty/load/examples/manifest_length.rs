//! Says that its manifest is longer than the memory there is.

use hotseam_abi::{PluginV1, Text};
use hotseam_faulty_load::{export, manifest, sound};

const MANIFEST: &str = manifest!("faulty/manifest-length");

export!(PluginV1 { manifest: Text { ptr: MANIFEST.as_ptr(), len: 1 << 40 }, ..sound(MANIFEST) });
