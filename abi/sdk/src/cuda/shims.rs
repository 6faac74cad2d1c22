//! `extern "C"` functions around the traits of this module, as [`crate::shims`] has them for the CPU.

// The contract's function types are safe, so these functions are; what the host passes is checked by the contract's rules.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use super::check;
use crate::shims::call;
use hotseam_abi::*;
use std::ffi::c_void;

macro_rules! op {
    ($(#[$doc:meta])* $seam:ident, $name:ident, $args:ty) => {
        $(#[$doc])*
        pub extern "C" fn $name<P: crate::cuda::$seam>(
            this: *mut c_void,
            ctx: *const StepCtx,
            args: *const $args,
        ) -> i32 {
            call::<P, $args>(this, ctx, args, |p, ctx, a| {
                // SAFETY: the host passes arguments as the contract says.
                let batch = unsafe { check::all(a)? };
                <P as crate::cuda::$seam>::$name(p, ctx, a, batch)
            })
        }
    };
}

/// Ops of the attention seam.
pub mod attention {
    use super::*;
    op!(/// Shim of `attention.store`.
        Attention, store, StoreArgs);
    op!(/// Shim of `attention.compress`.
        Attention, compress, CompressArgs);
    op!(/// Shim of `attention.core`.
        Attention, core, CoreArgs);
}

/// Ops of the indexer seam.
pub mod indexer {
    use super::*;
    op!(/// Shim of `indexer.compress`.
        Indexer, compress, CompressArgs);
    op!(/// Shim of `indexer.select`.
        Indexer, select, SelectArgs);
}

/// Ops of the moe seam.
pub mod moe {
    use super::*;
    op!(/// Shim of `moe.route`.
        Moe, route, RouteArgs);
    op!(/// Shim of `moe.experts`.
        Moe, experts, ExpertsArgs);
}

/// Ops of the mhc seam.
pub mod mhc {
    use super::*;
    op!(/// Shim of `mhc.pre`.
        Mhc, pre, MhcPreArgs);
    op!(/// Shim of `mhc.post`.
        Mhc, post, MhcPostArgs);
    op!(/// Shim of `mhc.head`.
        Mhc, head, MhcHeadArgs);
}
