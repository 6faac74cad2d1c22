//! `extern "C"` functions around the traits: argument checks, error text, and no unwinding.

// The contract's function types are safe, so these functions are; what the host passes is checked by the contract's rules.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use crate::host::{Ctx, Host};
use crate::layouts::Shape;
use crate::{Error, Plugin, Result};
use hotseam_abi::*;
use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

fn guard(host: Host, f: impl FnOnce() -> Result<()>) -> i32 {
    let error = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => return OK,
        Ok(Err(error)) => error,
        Err(payload) => panicked(&*payload),
    };
    host.report(&error.message);
    error.code
}

/// The error of a call that panicked.
fn panicked(payload: &(dyn Any + Send)) -> Error {
    let what = payload.downcast_ref::<&str>().copied();
    let what = what.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error { code: ERR_PANIC, message: format!("panicked: {what}") }
}

/// The host, for calls that are not given it; set by `create`.
static HOST: OnceLock<Host> = OnceLock::new();

/// Runs one op of instance `this`.
pub(crate) fn call<P, A>(
    this: *mut c_void,
    ctx: *const StepCtx,
    args: *const A,
    f: impl FnOnce(&P, &Ctx, &A) -> Result<()>,
) -> i32 {
    // SAFETY: the host passes a live instance of P, a valid context and arguments of the op (contract).
    let (plugin, ctx, args) = unsafe { (&*this.cast::<P>(), Ctx::from_raw(ctx), &*args) };
    guard(*ctx.host(), || f(plugin, &ctx, args))
}

macro_rules! op {
    ($(#[$doc:meta])* $seam:path, $name:ident, $args:ty, $view:ty) => {
        $(#[$doc])*
        pub extern "C" fn $name<P: $seam>(this: *mut c_void, ctx: *const StepCtx, args: *const $args) -> i32 {
            // SAFETY: the host passes arguments as the contract says.
            call::<P, $args>(this, ctx, args, |p, ctx, a| <P as $seam>::$name(p, ctx, unsafe { <$view>::from_raw(a)? }))
        }
    };
}

/// Ops of the attention seam.
pub mod attention {
    use super::*;
    use crate::views;
    op!(/// Shim of `attention.store`.
        crate::Attention, store, StoreArgs, views::Store<'_>);
    op!(/// Shim of `attention.compress`.
        crate::Attention, compress, CompressArgs, views::Compress<'_>);
    op!(/// Shim of `attention.core`.
        crate::Attention, core, CoreArgs, views::Core<'_>);
}

/// Ops of the indexer seam.
pub mod indexer {
    use super::*;
    use crate::views;
    op!(/// Shim of `indexer.compress`.
        crate::Indexer, compress, CompressArgs, views::Compress<'_>);
    op!(/// Shim of `indexer.select`.
        crate::Indexer, select, SelectArgs, views::Select<'_>);
}

/// Ops of the moe seam.
pub mod moe {
    use super::*;
    use crate::views;
    op!(/// Shim of `moe.route`.
        crate::Moe, route, RouteArgs, views::Route<'_>);
    op!(/// Shim of `moe.experts`.
        crate::Moe, experts, ExpertsArgs, views::Experts<'_>);
}

/// Ops of the mhc seam.
pub mod mhc {
    use super::*;
    use crate::views;
    op!(/// Shim of `mhc.pre`.
        crate::Mhc, pre, MhcPreArgs, views::MhcPre<'_>);
    op!(/// Shim of `mhc.post`.
        crate::Mhc, post, MhcPostArgs, views::MhcPost<'_>);
    op!(/// Shim of `mhc.head`.
        crate::Mhc, head, MhcHeadArgs, views::MhcHead<'_>);
}

/// Ops of the kv_transport seam.
pub mod kv_transport {
    use super::*;
    use crate::KvTransport;
    use crate::tensor::raw;
    use crate::views::{Accept, Put};

    /// Shim of `kv_transport.register`.
    pub extern "C" fn register<P: KvTransport>(
        this: *mut c_void,
        ctx: *const StepCtx,
        args: *const RegisterArgs,
    ) -> i32 {
        call::<P, _>(this, ctx, args, |p, ctx, a| {
            // SAFETY: the host passes `n_regions` regions.
            p.register(ctx, unsafe { raw(a.regions, a.n_regions as usize, "regions")? })
        })
    }

    /// Shim of `kv_transport.put`.
    pub extern "C" fn put<P: KvTransport>(
        this: *mut c_void,
        ctx: *const StepCtx,
        args: *const PutArgs,
    ) -> i32 {
        call::<P, _>(this, ctx, args, |p, ctx, a| {
            // SAFETY: the host passes arguments as the contract says; `ticket` is writable.
            unsafe {
                let ticket = p.put(ctx, Put::from_raw(a)?)?;
                *a.ticket = ticket;
            }
            Ok(())
        })
    }

    /// Shim of `kv_transport.poll`.
    pub extern "C" fn poll<P: KvTransport>(
        this: *mut c_void,
        ctx: *const StepCtx,
        args: *mut PollArgs,
    ) -> i32 {
        // SAFETY: the host passes a readable struct.
        let ticket = unsafe { (*args).ticket };
        call::<P, _>(this, ctx, &raw const ticket, |p, ctx, ticket| {
            let (state, bytes) = p.poll(ctx, *ticket)?;
            // SAFETY: the host passes a writable struct, to which no reference lives.
            unsafe {
                (*args).state = state;
                (*args).bytes = bytes;
            }
            Ok(())
        })
    }

    /// Shim of `kv_transport.cancel`.
    pub extern "C" fn cancel<P: KvTransport>(this: *mut c_void, ctx: *const StepCtx, ticket: u64) -> i32 {
        call::<P, _>(this, ctx, &raw const ticket, |p, ctx, ticket| p.cancel(ctx, *ticket))
    }

    /// Shim of `kv_transport.endpoint`.
    pub extern "C" fn endpoint<P: KvTransport>(
        this: *mut c_void,
        ctx: *const StepCtx,
        args: *mut EndpointArgs,
    ) -> i32 {
        call::<P, _>(this, ctx, args.cast_const(), |p, ctx, a| {
            let (text, capacity, room) = (p.endpoint(ctx)?, a.capacity as usize, a.text);
            if text.len() > capacity {
                let message = format!("the endpoint has {} bytes, the host takes {capacity}", text.len());
                return Err(Error::internal(message));
            }
            // SAFETY: the host passes a writable struct and `capacity` writable bytes; `a` is not used any more.
            unsafe {
                room.copy_from_nonoverlapping(text.as_ptr(), text.len());
                (*args).len = text.len() as u32;
            }
            Ok(())
        })
    }

    /// Shim of `kv_transport.connect`.
    pub extern "C" fn connect<P: KvTransport>(
        this: *mut c_void,
        ctx: *const StepCtx,
        args: *mut ConnectArgs,
    ) -> i32 {
        // SAFETY: the host passes a readable struct.
        let endpoint = unsafe { (*args).endpoint };
        call::<P, _>(this, ctx, &raw const endpoint, |p, ctx, text| {
            // SAFETY: the host passes borrowed text.
            let bytes = unsafe { raw(text.ptr, text.len, "endpoint")? };
            let text =
                std::str::from_utf8(bytes).map_err(|_| Error::argument("the endpoint is not UTF-8"))?;
            let peer = p.connect(ctx, text)?;
            // SAFETY: the host passes a writable struct, to which no reference lives.
            unsafe { (*args).peer = peer };
            Ok(())
        })
    }

    /// Shim of `kv_transport.accept`.
    pub extern "C" fn accept<P: KvTransport>(
        this: *mut c_void,
        ctx: *const StepCtx,
        args: *const AcceptArgs,
    ) -> i32 {
        // SAFETY: the host passes arguments as the contract says.
        call::<P, _>(this, ctx, args, |p, ctx, a| p.accept(ctx, unsafe { Accept::from_raw(a)? }))
    }

    /// Shim of `kv_transport.close`.
    pub extern "C" fn close<P: KvTransport>(
        this: *mut c_void,
        ctx: *const StepCtx,
        args: *mut CloseArgs,
    ) -> i32 {
        // SAFETY: the host passes a readable struct.
        let room = unsafe { (*args).room };
        call::<P, _>(this, ctx, &raw const room, |p, ctx, room| {
            let items = p.close(ctx, *room)?;
            // SAFETY: the host passes a writable struct, to which no reference lives.
            unsafe { (*args).items = items };
            Ok(())
        })
    }
}

/// Shim of `PluginV1::probe`.
pub extern "C" fn probe<P: Plugin>(host: *const HostServicesV1) -> i32 {
    // SAFETY: the host passes its services.
    guard(unsafe { Host::from_raw(host) }, P::probe)
}

/// Shim of `PluginV1::create`.
pub extern "C" fn create<P: Plugin>(
    host: *const HostServicesV1,
    options: Text,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the host passes its services.
    let host = *HOST.get_or_init(|| unsafe { Host::from_raw(host) });
    guard(host, || {
        // SAFETY: the host passes borrowed text.
        let json = unsafe { crate::tensor::raw(options.ptr, options.len, "options")? };
        let options = serde_json::from_slice(json).map_err(|e| Error::argument(format!("options: {e}")))?;
        let instance = Box::new(P::create(host, options)?);
        // SAFETY: `out` is writable by the contract.
        unsafe { *out = Box::into_raw(instance).cast() };
        Ok(())
    })
}

/// Shim of `PluginV1::info`.
pub extern "C" fn info<P: Plugin>(this: *mut c_void, info: *mut InfoV1) -> i32 {
    // SAFETY: the host passes a live instance and a writable struct.
    let (plugin, out) = unsafe { (&*this.cast::<P>(), &mut *info) };
    let shape = Shape { dim: out.dim as usize, rope_dim: out.rope_dim as usize };
    match catch_unwind(AssertUnwindSafe(|| plugin.info(shape))) {
        Ok(i) => {
            *out = InfoV1 {
                capabilities: i.capabilities,
                phases: i.phases,
                layout: i.layout,
                data_bytes: i.entry.data as u32,
                scale_bytes: i.entry.scale as u32,
                ..*out
            };
            OK
        }
        Err(payload) => {
            let error = panicked(&*payload);
            if let Some(host) = HOST.get() {
                host.report(&error.message);
            }
            error.code
        }
    }
}

/// Shim of `PluginV1::destroy`.
pub extern "C" fn destroy<P: Plugin>(this: *mut c_void) {
    // SAFETY: `this` came from `create` and is not used again. A panic in Drop is caught and dropped.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(this.cast::<P>()) })));
}
