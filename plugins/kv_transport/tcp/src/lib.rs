//! Hand-off over TCP: checksummed frames, sent again after a broken connection.

use hotseam_kv_wire::{Medium, Settings, Transport, address};
use hotseam_sdk::{Result, export_plugin};
use std::time::Duration;

/// Options.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    listen: String,
    advertise: String,
    patience_ms: u64,
}

/// The variant `kv_transport/tcp`.
pub type Tcp = Transport<Options>;

impl hotseam_kv_wire::Options for Options {
    fn settings(&self) -> Result<Settings> {
        let advertise = match self.advertise.as_str() {
            "" => None,
            text => Some(address("advertise", text)?),
        };
        Ok(Settings {
            medium: Medium::Tcp,
            listen: address("listen", &self.listen)?,
            advertise,
            patience: Duration::from_millis(self.patience_ms),
        })
    }
}

export_plugin! {
    seam: kv_transport, plugin: Tcp,
    ops: [register, put, poll, cancel, endpoint, connect, accept, close],
    name: "kv_transport/tcp", description: "Hand-off over TCP: checksummed frames, sent again after a broken connection",
    options: r#"{"listen": {"type": "string", "default": "127.0.0.1:0",
        "help": "address that a receiving side listens on; port 0 takes a free one"},
        "advertise": {"type": "string", "default": "",
        "help": "address that sending sides are told, with port 0 for the one in use; empty for that of listen"},
        "patience_ms": {"type": "integer", "default": 5000,
        "help": "how long a receiving side may be out of reach before puts to it fail"}}"#,
    cpu: "[]"
}
