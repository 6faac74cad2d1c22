//! Never answers when it is asked whether it can run.

use hotseam_abi::{HostServicesV1, PluginV1};
use hotseam_faulty_load::{export, manifest, sound};

extern "C" fn probe(_host: *const HostServicesV1) -> i32 {
    loop {
        std::thread::park();
    }
}

export!(PluginV1 { probe, ..sound(manifest!("faulty/probe-hang")) });
