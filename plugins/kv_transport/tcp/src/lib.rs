//! Hand-off over TCP: checksummed frames, sent again after a broken connection.

use hotseam_kv_wire::{Medium, Settings, Wire};
use hotseam_sdk::abi::Region;
use hotseam_sdk::views::{Accept, Put};
use hotseam_sdk::{Ctx, Error, Host, KvTransport, Plugin, Result, export_plugin};
use std::net::SocketAddr;
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
#[derive(Debug)]
pub struct Tcp(Wire);

fn address(option: &str, text: &str) -> Result<SocketAddr> {
    let wrong = |_| Error::argument(format!("{option}: expected an IP address and a port, found `{text}`"));
    text.parse().map_err(wrong)
}

impl Plugin for Tcp {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let advertise = match options.advertise.as_str() {
            "" => None,
            text => Some(address("advertise", text)?),
        };
        Ok(Self(Wire::new(Settings {
            medium: Medium::Tcp,
            listen: address("listen", &options.listen)?,
            advertise,
            patience: Duration::from_millis(options.patience_ms),
        })))
    }
}

impl KvTransport for Tcp {
    fn register(&self, _ctx: &Ctx, regions: &[Region]) -> Result<()> {
        // SAFETY: the regions stay valid until the next register or the end of the instance (contract).
        unsafe { self.0.register(regions) }
    }

    fn put(&self, _ctx: &Ctx, a: Put<'_>) -> Result<u64> {
        self.0.put(&a)
    }

    fn poll(&self, ctx: &Ctx, ticket: u64) -> Result<(u32, u64)> {
        Ok(self.0.poll(ticket)?.report(ctx))
    }

    fn cancel(&self, _ctx: &Ctx, ticket: u64) -> Result<()> {
        self.0.cancel(ticket);
        Ok(())
    }

    fn endpoint(&self, _ctx: &Ctx) -> Result<String> {
        self.0.endpoint()
    }

    fn connect(&self, _ctx: &Ctx, endpoint: &str) -> Result<u64> {
        self.0.connect(endpoint)
    }

    fn accept(&self, _ctx: &Ctx, a: Accept<'_>) -> Result<()> {
        self.0.accept(&a)
    }

    fn close(&self, _ctx: &Ctx, room: u64) -> Result<u64> {
        Ok(self.0.close(room))
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
