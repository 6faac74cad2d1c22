//! The seam over a [`Wire`], for every variant alike: they differ in their options only.

use crate::{Carrier, Settings, Wire};
use hotseam_sdk::abi::Region;
use hotseam_sdk::views::{Accept, Put};
use hotseam_sdk::{Ctx, Error, Host, KvTransport, Plugin, Result};
use serde::de::DeserializeOwned;
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;

/// Options of a variant.
pub trait Options: DeserializeOwned + 'static {
    /// The settings that they mean.
    ///
    /// # Errors
    /// If a value has no meaning, with its name.
    fn settings(&self) -> Result<Settings>;

    /// What moves bytes beside the connections, if something does.
    ///
    /// # Errors
    /// If it cannot be had, with what was looked for.
    fn carrier(&self, _host: Host) -> Result<Option<Arc<dyn Carrier>>> {
        Ok(None)
    }
}

/// A transport between processes with these options.
pub struct Transport<O> {
    wire: Wire,
    options: PhantomData<fn() -> O>,
}

impl<O> fmt::Debug for Transport<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transport").field(&self.wire).finish()
    }
}

impl<O: Options> Plugin for Transport<O> {
    type Options = O;

    fn create(host: Host, options: O) -> Result<Self> {
        let settings = options.settings()?;
        let wire = match options.carrier(host)? {
            None => Wire::new(settings),
            Some(carrier) => Wire::carried(settings, carrier),
        };
        Ok(Self { wire, options: PhantomData })
    }
}

impl<O: Options> KvTransport for Transport<O> {
    fn register(&self, _ctx: &Ctx, regions: &[Region]) -> Result<()> {
        // SAFETY: the regions stay valid until the next register or the end of the instance (contract).
        unsafe { self.wire.register(regions) }
    }

    fn put(&self, _ctx: &Ctx, a: Put<'_>) -> Result<u64> {
        self.wire.put(&a)
    }

    fn poll(&self, ctx: &Ctx, ticket: u64) -> Result<(u32, u64)> {
        Ok(self.wire.poll(ticket)?.report(ctx))
    }

    fn cancel(&self, _ctx: &Ctx, ticket: u64) -> Result<()> {
        self.wire.cancel(ticket);
        Ok(())
    }

    fn endpoint(&self, _ctx: &Ctx) -> Result<String> {
        self.wire.endpoint()
    }

    fn connect(&self, _ctx: &Ctx, endpoint: &str) -> Result<u64> {
        self.wire.connect(endpoint)
    }

    fn accept(&self, _ctx: &Ctx, a: Accept<'_>) -> Result<()> {
        self.wire.accept(&a)
    }

    fn close(&self, _ctx: &Ctx, room: u64) -> Result<u64> {
        Ok(self.wire.close(room))
    }
}

/// Reads an address.
///
/// # Errors
/// If it is none, with the option's name.
pub fn address(option: &str, text: &str) -> Result<SocketAddr> {
    let wrong = |_| Error::argument(format!("{option}: expected an IP address and a port, found `{text}`"));
    text.parse().map_err(wrong)
}
