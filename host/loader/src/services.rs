//! What the host offers to plugins: log lines, error text, a thread pool. One set for the whole process.

use hotseam_abi::{HostServicesV1, ParallelBody, Text, log_level};
use hotseam_ops::{Parallel, Pool};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::OnceLock;

/// Version of the services that this host offers.
pub(crate) const VERSION: u32 = 1;

static POOL: OnceLock<Pool> = OnceLock::new();
static SERVICES: OnceLock<HostServicesV1> = OnceLock::new();

thread_local! {
    static ERROR: RefCell<String> = const { RefCell::new(String::new()) };
    /// Whether loops of plugins that this thread calls stay on it.
    static SERIAL: Cell<bool> = const { Cell::new(false) };
}

/// Sets the number of threads of [`pool`], the caller included; 0 means one a core. Only the first call (or the first
/// use of the pool) decides. Returns the number in force.
pub fn init_threads(n: usize) -> usize {
    let n = if n == 0 { cores() } else { n };
    POOL.get_or_init(|| Pool::new(n)).threads()
}

/// The thread pool that the host and all plugins share.
pub fn pool() -> &'static Pool {
    POOL.get_or_init(|| Pool::new(cores()))
}

/// Runs `f` with the loops of plugins that it calls kept on this thread, so that work beside the step loop does not
/// take the pool away from it.
pub fn without_pool<R>(f: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            SERIAL.set(self.0);
        }
    }
    let _reset = Reset(SERIAL.replace(true));
    f()
}

/// The services, at one address for the whole process.
pub fn host_services() -> &'static HostServicesV1 {
    SERVICES.get_or_init(|| HostServicesV1 {
        size: size_of::<HostServicesV1>() as u32,
        version: VERSION,
        threads: pool().threads() as u32,
        ctx: std::ptr::null_mut(),
        log,
        error,
        parallel_for,
    })
}

/// Takes the text that the last failing call on this thread left with [`HostServicesV1::error`].
pub fn take_error() -> String {
    ERROR.with_borrow_mut(std::mem::take)
}

/// The text's bytes as a string; bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `text` must point to `len` readable bytes that stay unchanged while the result lives, unless `len` is 0.
pub(crate) unsafe fn text<'a>(text: Text) -> Cow<'a, str> {
    if text.len == 0 || text.ptr.is_null() {
        return Cow::Borrowed("");
    }
    // SAFETY: the caller vouches for pointer and length.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(text.ptr, text.len) })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

extern "C" fn log(_ctx: *mut c_void, level: u32, target: Text, message: Text) {
    // SAFETY: the contract says that both texts are valid during the call.
    let (target, message) = unsafe { (text(target), text(message)) };
    match level {
        log_level::ERROR => tracing::error!(target: "plugin", from = %target, "{message}"),
        log_level::WARN => tracing::warn!(target: "plugin", from = %target, "{message}"),
        log_level::INFO => tracing::info!(target: "plugin", from = %target, "{message}"),
        _ => tracing::debug!(target: "plugin", from = %target, "{message}"),
    }
}

extern "C" fn error(_ctx: *mut c_void, message: Text) {
    // SAFETY: the contract says that the text is valid during the call.
    let message = unsafe { text(message) };
    ERROR.with_borrow_mut(|error| {
        error.clear();
        error.push_str(&message);
    });
}

/// A plugin's loop data, shared with the workers.
#[derive(Clone, Copy)]
struct Shared(*mut c_void);

// SAFETY: the contract lets the body run on any thread of the pool with this pointer.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

extern "C" fn parallel_for(_ctx: *mut c_void, n: usize, grain: usize, data: *mut c_void, body: ParallelBody) {
    if SERIAL.get() {
        if n > 0 {
            (body.0)(data, 0, n);
        }
        return;
    }
    let shared = Shared(data);
    pool().run(n, grain.max(1), &move |range: std::ops::Range<usize>| {
        let shared = &shared;
        (body.0)(shared.0, range.start, range.end);
    });
}
