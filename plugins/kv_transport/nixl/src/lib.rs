//! Hand-off over NIXL, with its backend UCX: RDMA between machines, reads of another process's memory on one.
//!
//! Frames, rooms and refusals are those of `kv-wire`, over a TCP connection; the bytes are read by the receiving side from memory
//! that the sending side has registered (`carrier`). So nobody but the receiving side writes its pages, and only accepted items
//! of an open room. UCX listens on ports of its own and asks nobody who they are: a network of the workers only. Where it has
//! neither RDMA nor a machine in common with the other side, reads are refused, and `kv_transport/tcp` is the transport.
//!
//! The library comes with the Python package `nixl-cu12`, of which nothing but its shared libraries is used.

mod agent;
mod capi;
mod carrier;

use hotseam_kv_wire::{Carrier, Medium, Settings, Transport};
use hotseam_sdk::{Error, Host, Result, export_plugin};
use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;

/// What gets the library and prints its path.
const SCRIPT: &str = "scripts/get-nixl";

/// Options.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    library: String,
    ucx: String,
    listen: String,
    advertise: String,
    patience_ms: u64,
}

/// The variant `kv_transport/nixl`.
pub type Nixl = Transport<Options>;

impl hotseam_kv_wire::Options for Options {
    fn settings(&self) -> Result<Settings> {
        Ok(Settings {
            medium: Medium::Tcp,
            listen: hotseam_kv_wire::address("listen", &self.listen)?,
            advertise: match self.advertise.as_str() {
                "" => None,
                text => Some(hotseam_kv_wire::address("advertise", text)?),
            },
            patience: Duration::from_millis(self.patience_ms),
        })
    }

    fn carrier(&self, host: Host) -> Result<Option<Arc<dyn Carrier>>> {
        let Self { library, ucx: settings, patience_ms, .. } = self;
        let settings = ucx(settings)?;
        let capi = capi::Capi::load(library)?;
        let patience = Duration::from_millis(*patience_ms);
        Ok(Some(Arc::new(carrier::Nixl::new(capi, settings, patience, host))))
    }
}

/// Reads that UCX would do by messages, where there is neither RDMA nor a common machine, are off: both ends then take part in
/// them, and UCX 1.23 ends the process of the sending side if the other end goes away in the middle of one.
const NATIVE: &str = "PROTO_EMULATION_ENABLE=n";

/// The backend's parameters for these settings of UCX.
fn ucx(text: &str) -> Result<Vec<(CString, CString)>> {
    let entries = text.split(',').filter(|_| !text.is_empty());
    // NIXL leaves out what it cannot read.
    let wrong = entries.clone().find(|entry| entry.split_once('=').is_none_or(|(key, _)| key.is_empty()));
    if let Some(wrong) = wrong {
        return Err(Error::argument(format!(
            "ucx: expected KEY=VALUE and commas between, found `{wrong}`; a value that has commas is set in the environment, such as UCX_TLS"
        )));
    }
    // The last of a key counts.
    let all: Vec<&str> = std::iter::once(NATIVE).chain(entries).collect();
    let all = CString::new(all.join(",")).map_err(|_| Error::argument("ucx: a NUL byte".to_owned()))?;
    Ok(vec![(c"engine_config".to_owned(), all)])
}

export_plugin! {
    seam: kv_transport, plugin: Nixl,
    ops: [register, put, poll, cancel, endpoint, connect, accept, close],
    name: "kv_transport/nixl", description: "Hand-off over NIXL: the receiving side reads the sender's registered memory",
    options: r#"{"library": {"type": "string", "default": "",
        "help": "absolute path of libnixl_capi.so, as scripts/get-nixl prints it; empty for what the dynamic linker finds"},
        "ucx": {"type": "string", "default": "",
        "help": "settings of UCX without their prefix, such as NET_DEVICES=mlx5_0:1; the environment is stronger"},
        "listen": {"type": "string", "default": "127.0.0.1:0",
        "help": "address that a receiving side listens on for frames; port 0 takes a free one"},
        "advertise": {"type": "string", "default": "",
        "help": "address that sending sides are told, with port 0 for the one in use; empty for that of listen"},
        "patience_ms": {"type": "integer", "default": 5000,
        "help": "how long a receiving side may be out of reach, or one read may take, before puts fail"}}"#,
    cpu: "[]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_ucx_are_passed_on_or_refused() {
        let passed = |text| ucx(text).unwrap()[0].1.to_str().unwrap().to_owned();
        assert_eq!(passed(""), NATIVE);
        assert_eq!(passed("TLS=tcp,NET_DEVICES=lo"), format!("{NATIVE},TLS=tcp,NET_DEVICES=lo"));
        for (text, wrong) in [("TLS=tcp,sm", "`sm`"), ("=3", "`=3`"), ("TLS", "`TLS`")] {
            let error = ucx(text).unwrap_err();
            assert!(error.message.contains(wrong) && error.message.contains("UCX_TLS"), "{error}");
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_next_step() {
        for (path, text) in [
            ("/nowhere/libnixl_capi.so", "/nowhere/libnixl_capi.so"),
            ("lib/libnixl_capi.so", "expected an absolute path"),
            // A library, and not this one.
            ("libc.so.6", "expected an absolute path"),
        ] {
            let error = capi::Capi::load(path).err().unwrap();
            assert!(error.message.contains(text) && error.message.contains(SCRIPT), "{error}");
        }
    }
}
