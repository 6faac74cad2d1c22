//! Built for the contract after the host's.

use hotseam_abi::{CONTRACT, PluginV1};
use hotseam_faulty_load::{export, manifest, sound};

export!(PluginV1 { contract: CONTRACT + 1, ..sound(manifest!("faulty/contract")) });
