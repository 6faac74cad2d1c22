//! A function bound to an instance: the hot path of every step.

use crate::cell::CellId;
use crate::generation::Generation;
use crate::receipt::{CellView, Receipt};
use hotseam_abi as abi;
use hotseam_abi::StepCtx;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A step function of the contract.
pub type StepFn<A> = extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const A) -> i32;
/// `attention.store`.
pub type StoreFn = StepFn<abi::StoreArgs>;
/// `attention.compress` and `indexer.compress`.
pub type CompressFn = StepFn<abi::CompressArgs>;
/// `attention.core`.
pub type CoreFn = StepFn<abi::CoreArgs>;
/// `indexer.select`.
pub type SelectFn = StepFn<abi::SelectArgs>;
/// `moe.route`.
pub type RouteFn = StepFn<abi::RouteArgs>;
/// `moe.experts`.
pub type ExpertsFn = StepFn<abi::ExpertsArgs>;
/// `mhc.pre`.
pub type PreFn = StepFn<abi::MhcPreArgs>;
/// `mhc.post`.
pub type PostFn = StepFn<abi::MhcPostArgs>;
/// `mhc.head`.
pub type HeadFn = StepFn<abi::MhcHeadArgs>;
/// `kv_transport.register`.
pub type RegisterFn = StepFn<abi::RegisterArgs>;
/// `kv_transport.put`.
pub type PutFn = StepFn<abi::PutArgs>;
/// `kv_transport.poll`.
pub type PollFn = extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *mut abi::PollArgs) -> i32;
/// `kv_transport.cancel`.
pub type CancelFn = extern "C" fn(this: *mut c_void, ctx: *const StepCtx, ticket: u64) -> i32;

/// `kv_transport.endpoint`.
pub type EndpointFn =
    extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *mut abi::EndpointArgs) -> i32;
/// `kv_transport.connect`.
pub type ConnectFn =
    extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *mut abi::ConnectArgs) -> i32;
/// `kv_transport.accept`.
pub type AcceptFn = StepFn<abi::AcceptArgs>;
/// `kv_transport.close`.
pub type CloseFn = extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *mut abi::CloseArgs) -> i32;

/// A function of a cell, its instance and its counts.
#[derive(Debug)]
pub struct Bound<F> {
    f: F,
    this: *mut c_void,
    cell: CellId,
    /// What serves the cell; keeps the instance alive.
    pub generation: Arc<Generation>,
    /// What the instance takes over from the host; bits of [`hotseam_abi::capability`].
    pub capabilities: u64,
    /// What ran.
    pub receipt: Receipt,
}

// SAFETY: `this` belongs to the instance that `generation` keeps alive, and instances are Send and Sync by contract,
// provided that calls on one instance do not overlap. The engine makes all calls of a step on one thread.
unsafe impl<F: Send> Send for Bound<F> {}
// SAFETY: as above; the counts are atomic.
unsafe impl<F: Sync> Sync for Bound<F> {}

/// A call that a plugin answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("E-PLUG-501 {cell}: variant `{variant}` failed with code {code}{kind}: {message}", kind = kind(*code))]
pub struct CallError {
    /// The cell.
    pub cell: CellId,
    /// Variant that serves it.
    pub variant: String,
    /// Code of the contract ([`hotseam_abi::ERR_PANIC`] and others).
    pub code: i32,
    /// The plugin's text.
    pub message: String,
}

fn kind(code: i32) -> &'static str {
    match code {
        abi::ERR_PANIC => " (panic)",
        abi::ERR_ARGUMENT => " (argument)",
        abi::ERR_UNSUPPORTED => " (unsupported)",
        abi::ERR_INTERNAL => " (internal)",
        _ => "",
    }
}

impl<F> Bound<F> {
    pub(crate) fn new(cell: CellId, generation: Arc<Generation>, f: F) -> Self {
        let this = generation.instance.this();
        let capabilities = generation.instance.info().capabilities;
        Self { f, this, cell, generation, capabilities, receipt: Receipt::default() }
    }

    /// The cell.
    pub fn cell(&self) -> CellId {
        self.cell
    }

    /// Cell, generation and counts.
    pub fn view(&self) -> CellView<'_> {
        let (calls, rows) = (self.receipt.calls(), self.receipt.rows());
        CellView { cell: self.cell, generation: &self.generation, calls, rows }
    }

    /// Whether the instance declares all bits of `capability`.
    pub fn has(&self, capability: u64) -> bool {
        self.capabilities & capability == capability
    }

    fn finish(&self, code: i32) -> Result<(), CallError> {
        if code == abi::OK { Ok(()) } else { Err(self.failed(code)) }
    }

    /// Refuses an instance that panicked before.
    fn check(&self) -> Result<(), CallError> {
        match self.generation.is_poisoned() {
            false => Ok(()),
            true => Err(CallError {
                cell: self.cell,
                variant: self.generation.spec.to_string(),
                code: abi::ERR_PANIC,
                message: "it panicked before and is not used again; swap or roll back".to_owned(),
            }),
        }
    }

    #[cold]
    fn failed(&self, code: i32) -> CallError {
        let message = hotseam_loader::take_error();
        if code == abi::ERR_PANIC {
            self.generation.poisoned.store(true, Ordering::Relaxed);
        }
        CallError {
            cell: self.cell,
            variant: self.generation.spec.to_string(),
            code,
            message: if message.is_empty() { "the plugin gave no reason".to_owned() } else { message },
        }
    }
}

/// Calls take no lock, allocate nothing and make no string unless they fail. The pointers in the arguments must be as
/// the contract says for the length of the call, and no other call may run on the same instance.
impl<A> Bound<StepFn<A>> {
    /// Calls the function and counts `rows` rows.
    ///
    /// # Errors
    /// The plugin's code and text.
    #[inline]
    pub fn call(&self, ctx: &StepCtx, args: &A, rows: usize) -> Result<(), CallError> {
        self.check()?;
        self.receipt.count(rows as u64);
        self.finish((self.f)(self.this, ctx, args))
    }
}

impl Bound<PollFn> {
    /// Asks for the state of a ticket; `args` is filled in.
    ///
    /// # Errors
    /// The plugin's code and text.
    pub fn call(&self, ctx: &StepCtx, args: &mut abi::PollArgs) -> Result<(), CallError> {
        self.check()?;
        self.receipt.count(0);
        self.finish((self.f)(self.this, ctx, args))
    }
}

impl Bound<EndpointFn> {
    /// Where other instances reach the receiving side.
    ///
    /// # Errors
    /// The plugin's code and text.
    pub fn call(&self, ctx: &StepCtx) -> Result<String, CallError> {
        self.check()?;
        self.receipt.count(0);
        let mut text = vec![0u8; 1024];
        let mut args = abi::EndpointArgs {
            size: size_of::<abi::EndpointArgs>() as u32,
            capacity: text.len() as u32,
            text: text.as_mut_ptr(),
            len: 0,
        };
        self.finish((self.f)(self.this, ctx, &raw mut args))?;
        text.truncate(args.len as usize);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Bound<ConnectFn> {
    /// Number of a receiving side elsewhere.
    ///
    /// # Errors
    /// The plugin's code and text.
    pub fn call(&self, ctx: &StepCtx, endpoint: &str) -> Result<u64, CallError> {
        self.check()?;
        self.receipt.count(0);
        let mut args = abi::ConnectArgs {
            size: size_of::<abi::ConnectArgs>() as u32,
            endpoint: abi::Text { ptr: endpoint.as_ptr(), len: endpoint.len() },
            peer: 0,
        };
        self.finish((self.f)(self.this, ctx, &raw mut args))?;
        Ok(args.peer)
    }
}

impl Bound<CloseFn> {
    /// Ends a room on the receiving side and returns the items that were written.
    ///
    /// # Errors
    /// The plugin's code and text.
    pub fn call(&self, ctx: &StepCtx, room: u64) -> Result<u64, CallError> {
        self.check()?;
        self.receipt.count(0);
        let mut args = abi::CloseArgs { size: size_of::<abi::CloseArgs>() as u32, room, items: 0 };
        self.finish((self.f)(self.this, ctx, &raw mut args))?;
        Ok(args.items)
    }
}

impl Bound<CancelFn> {
    /// Gives a ticket up; after it returns the destination is not written any more.
    ///
    /// # Errors
    /// The plugin's code and text.
    pub fn call(&self, ctx: &StepCtx, ticket: u64) -> Result<(), CallError> {
        self.check()?;
        self.receipt.count(0);
        self.finish((self.f)(self.this, ctx, ticket))
    }
}
