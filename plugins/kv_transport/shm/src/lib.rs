//! Hand-off between processes of one machine: the receiving side maps the sender's memory and copies from it once. Memory that
//! the host does not share goes over the socket.

use hotseam_kv_wire::{Medium, Settings, Transport};
use hotseam_sdk::{Result, export_plugin};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Options.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    patience_ms: u64,
}

/// The variant `kv_transport/shm`.
pub type Shm = Transport<Options>;

impl hotseam_kv_wire::Options for Options {
    fn settings(&self) -> Result<Settings> {
        Ok(Settings {
            medium: Medium::Shared,
            // Names of its own are all that it listens on.
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            patience: Duration::from_millis(self.patience_ms),
        })
    }
}

export_plugin! {
    seam: kv_transport, plugin: Shm,
    ops: [register, put, poll, cancel, endpoint, connect, accept, close],
    name: "kv_transport/shm", description: "Hand-off between processes of one machine, over shared memory",
    options: r#"{"patience_ms": {"type": "integer", "default": 5000,
        "help": "how long a receiving side may be out of reach before puts to it fail"}}"#,
    cpu: "[]"
}
