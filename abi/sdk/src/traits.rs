//! What a plugin implements.

use crate::layouts::{self, Parts, Shape};
use crate::views;
use crate::{Ctx, Error, Host, Result};
use serde::de::DeserializeOwned;

/// What an instance says of itself; see [`hotseam_abi::InfoV1`].
#[derive(Debug, Clone, Copy)]
pub struct Info {
    /// Bits of [`hotseam_abi::capability`].
    pub capabilities: u64,
    /// Bits `1 << phase` of the phases served.
    pub phases: u32,
    /// Layout of the pool entries, 0 for none.
    pub layout: u32,
    /// Bytes of one entry, 0 for none.
    pub entry: Parts,
}

impl Info {
    /// No capability, every phase, no pool.
    pub const PLAIN: Self =
        Self { capabilities: 0, phases: 0b111, layout: 0, entry: Parts { data: 0, scale: 0 } };

    /// No capability, every phase, and a pool of a layout. A shape that the layout cannot hold gives entries of 0 bytes,
    /// which the host refuses.
    pub fn of_layout(layout: u32, shape: Shape) -> Self {
        Self { layout, entry: layouts::parts(layout, shape).unwrap_or_default(), ..Self::PLAIN }
    }
}

/// Options of a plugin that has none.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}

/// What every plugin has.
pub trait Plugin: Sized + Send + Sync + 'static {
    /// Options, read from JSON; the host has checked names and values against the manifest.
    type Options: DeserializeOwned;

    /// Whether it can run on this machine.
    fn probe() -> Result<()> {
        Ok(())
    }

    /// Makes an instance.
    fn create(host: Host, options: Self::Options) -> Result<Self>;

    /// Describes an instance whose pool entries have this shape; zeros for seams without a pool.
    fn info(&self, shape: Shape) -> Info {
        let _ = shape;
        Info::PLAIN
    }
}

fn not_served<T>(op: &str) -> Result<T> {
    Err(Error::unsupported(format!("{op} is not served by this plugin")))
}

/// The attention seam.
pub trait Attention: Plugin {
    /// See [`hotseam_abi::StoreArgs`].
    fn store(&self, _ctx: &Ctx, _a: views::Store<'_>) -> Result<()> {
        not_served("attention.store")
    }
    /// See [`hotseam_abi::CompressArgs`].
    fn compress(&self, _ctx: &Ctx, _a: views::Compress<'_>) -> Result<()> {
        not_served("attention.compress")
    }
    /// See [`hotseam_abi::CoreArgs`].
    fn core(&self, _ctx: &Ctx, _a: views::Core<'_>) -> Result<()> {
        not_served("attention.core")
    }
}

/// The indexer seam.
pub trait Indexer: Plugin {
    /// See [`hotseam_abi::CompressArgs`].
    fn compress(&self, _ctx: &Ctx, _a: views::Compress<'_>) -> Result<()> {
        not_served("indexer.compress")
    }
    /// See [`hotseam_abi::SelectArgs`].
    fn select(&self, _ctx: &Ctx, _a: views::Select<'_>) -> Result<()> {
        not_served("indexer.select")
    }
}

/// The mixture-of-experts seam.
pub trait Moe: Plugin {
    /// See [`hotseam_abi::RouteArgs`].
    fn route(&self, _ctx: &Ctx, _a: views::Route<'_>) -> Result<()> {
        not_served("moe.route")
    }
    /// See [`hotseam_abi::ExpertsArgs`].
    fn experts(&self, _ctx: &Ctx, _a: views::Experts<'_>) -> Result<()> {
        not_served("moe.experts")
    }
}

/// The hyper-connection seam.
pub trait Mhc: Plugin {
    /// See [`hotseam_abi::MhcPreArgs`].
    fn pre(&self, _ctx: &Ctx, _a: views::MhcPre<'_>) -> Result<()> {
        not_served("mhc.pre")
    }
    /// See [`hotseam_abi::MhcPostArgs`].
    fn post(&self, _ctx: &Ctx, _a: views::MhcPost<'_>) -> Result<()> {
        not_served("mhc.post")
    }
    /// See [`hotseam_abi::MhcHeadArgs`].
    fn head(&self, _ctx: &Ctx, _a: views::MhcHead<'_>) -> Result<()> {
        not_served("mhc.head")
    }
}

/// The KV hand-off seam. Instances keep their own state, so they use interior mutability.
pub trait KvTransport: Plugin {
    /// See [`hotseam_abi::RegisterArgs`].
    fn register(&self, _ctx: &Ctx, _regions: &[hotseam_abi::Region]) -> Result<()> {
        not_served("kv_transport.register")
    }
    /// See [`hotseam_abi::PutArgs`]; returns the ticket.
    fn put(&self, _ctx: &Ctx, _a: views::Put<'_>) -> Result<u64> {
        not_served("kv_transport.put")
    }
    /// See [`hotseam_abi::PollArgs`]; returns (state, bytes moved).
    fn poll(&self, _ctx: &Ctx, _ticket: u64) -> Result<(u32, u64)> {
        not_served("kv_transport.poll")
    }
    /// Gives a ticket up.
    fn cancel(&self, _ctx: &Ctx, _ticket: u64) -> Result<()> {
        Ok(())
    }
    /// See [`hotseam_abi::EndpointArgs`]; returns the text.
    fn endpoint(&self, _ctx: &Ctx) -> Result<String> {
        not_served("kv_transport.endpoint")
    }
    /// See [`hotseam_abi::ConnectArgs`]; returns the number of the peer.
    fn connect(&self, _ctx: &Ctx, _endpoint: &str) -> Result<u64> {
        not_served("kv_transport.connect")
    }
    /// See [`hotseam_abi::AcceptArgs`].
    fn accept(&self, _ctx: &Ctx, _a: views::Accept<'_>) -> Result<()> {
        not_served("kv_transport.accept")
    }
    /// See [`hotseam_abi::CloseArgs`]; returns the items written.
    fn close(&self, _ctx: &Ctx, _room: u64) -> Result<u64> {
        not_served("kv_transport.close")
    }
}
