//! Hand-off between processes of one machine: the receiving side maps the sender's memory and copies from it once. Memory that
//! the host does not share goes over the socket.

use hotseam_kv_wire::{Medium, Settings, Wire};
use hotseam_sdk::abi::Region;
use hotseam_sdk::views::{Accept, Put};
use hotseam_sdk::{Ctx, Host, KvTransport, Plugin, Result, export_plugin};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Options.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    patience_ms: u64,
}

/// The variant `kv_transport/shm`.
#[derive(Debug)]
pub struct Shm(Wire);

impl Plugin for Shm {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Ok(Self(Wire::new(Settings {
            medium: Medium::Shared,
            // Names of its own are all that it listens on.
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            patience: Duration::from_millis(options.patience_ms),
        })))
    }
}

impl KvTransport for Shm {
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
    seam: kv_transport, plugin: Shm,
    ops: [register, put, poll, cancel, endpoint, connect, accept, close],
    name: "kv_transport/shm", description: "Hand-off between processes of one machine, over shared memory",
    options: r#"{"patience_ms": {"type": "integer", "default": 5000,
        "help": "how long a receiving side may be out of reach before puts to it fail"}}"#,
    cpu: "[]"
}
