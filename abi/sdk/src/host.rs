//! The host as a plugin sees it: log, errors, parallel loops, and the context of a call.

use hotseam_abi::{HostServicesV1, ParallelBody, StepCtx, Text, layer_class, log_level, phase};
use hotseam_ops::Parallel;
use std::any::Any;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

/// The services of the host.
#[derive(Clone, Copy)]
pub struct Host {
    services: &'static HostServicesV1,
}

impl Host {
    /// Wraps the pointer that the host passed.
    ///
    /// # Safety
    /// `services` points to the host's services, which live as long as the process.
    pub unsafe fn from_raw(services: *const HostServicesV1) -> Self {
        // SAFETY: the caller's contract.
        Self { services: unsafe { &*services } }
    }

    /// Writes an informational log line under the plugin's name.
    pub fn log(&self, target: &str, message: &str) {
        (self.services.log)(self.services.ctx, log_level::INFO, text(target), text(message));
    }

    /// Gives the host the text of a failure of the running call. The shims do it for errors that are returned; a transport
    /// does it for a ticket that it reports as failed.
    pub fn report(&self, message: &str) {
        (self.services.error)(self.services.ctx, text(message));
    }
}

/// Borrows a string for a service call.
pub(crate) fn text(s: &str) -> Text {
    Text { ptr: s.as_ptr(), len: s.len() }
}

struct Job<'a> {
    body: &'a (dyn Fn(Range<usize>) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

extern "C" fn run_piece(data: *mut c_void, begin: usize, end: usize) {
    // SAFETY: `data` is the Job of the `Host::run` that waits for this piece.
    let job = unsafe { &*data.cast::<Job<'_>>() };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (job.body)(begin..end))) {
        job.panic.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(payload);
    }
}

impl Parallel for Host {
    fn threads(&self) -> usize {
        self.services.threads as usize
    }

    fn run(&self, n: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let job = Job { body, panic: Mutex::new(None) };
        let data = (&raw const job).cast_mut().cast::<c_void>();
        (self.services.parallel_for)(self.services.ctx, n, grain, data, ParallelBody(run_piece));
        if let Some(payload) = job.panic.into_inner().unwrap_or_else(|e| e.into_inner()) {
            resume_unwind(payload);
        }
    }
}

/// The context of a step call.
#[derive(Clone, Copy)]
pub struct Ctx {
    raw: StepCtx,
    host: Host,
}

impl Ctx {
    /// Wraps the pointer that the host passed.
    ///
    /// # Safety
    /// `ctx` points to a [`StepCtx`] that is valid during the call.
    pub unsafe fn from_raw(ctx: *const StepCtx) -> Self {
        // SAFETY: the caller's contract; `host` inside is the host's services.
        unsafe { Self { raw: *ctx, host: Host::from_raw((*ctx).host) } }
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Whether the rows are prompt tokens.
    pub fn is_prefill(&self) -> bool {
        self.raw.phase == phase::PREFILL
    }

    /// Whether the rows are new tokens, one a sequence.
    pub fn is_decode(&self) -> bool {
        self.raw.phase == phase::DECODE
    }

    /// Stream of the device that the call enqueues on; 0 on the CPU.
    pub fn stream(&self) -> u64 {
        self.raw.stream
    }

    /// Address and bytes of the device memory that the call may use for itself.
    pub fn workspace(&self) -> (u64, u64) {
        (self.raw.workspace as u64, self.raw.workspace_bytes)
    }

    /// Layer number.
    pub fn layer(&self) -> usize {
        self.raw.layer as usize
    }

    /// Whether the layer selects compressed entries by index.
    pub fn is_csa(&self) -> bool {
        self.raw.layer_class == layer_class::CSA
    }
}

/// A mutable slice that several pieces of a parallel loop write to, each its own part.
pub struct SharedMut<'a, T> {
    ptr: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `slice`, whose caller keeps the parts disjoint.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Takes the slice for the length of a parallel loop.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { ptr: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// The part `range`.
    ///
    /// # Safety
    /// No two parts that live at the same time overlap.
    ///
    /// # Panics
    /// If `range` is outside the slice.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {} elements", self.len);
        // SAFETY: inside the slice; disjoint by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.end - range.start) }
    }
}
