//! A host that prints what it is told.

use hotseam_sdk::Host;
use hotseam_sdk::abi::{HostServicesV1, ParallelBody, Text};
use std::ffi::c_void;

fn print(text: Text) {
    // SAFETY: the SDK passes borrowed text.
    let bytes = unsafe { std::slice::from_raw_parts(text.ptr, text.len) };
    eprintln!("{}", String::from_utf8_lossy(bytes));
}

extern "C" fn log(_ctx: *mut c_void, _level: u32, _target: Text, message: Text) {
    print(message);
}

extern "C" fn error(_ctx: *mut c_void, message: Text) {
    print(message);
}

extern "C" fn parallel_for(
    _ctx: *mut c_void,
    n: usize,
    _grain: usize,
    data: *mut c_void,
    body: ParallelBody,
) {
    (body.0)(data, 0, n);
}

/// Its services.
pub(crate) fn host() -> Host {
    struct Services(HostServicesV1);
    // SAFETY: the context is null and nobody changes the services.
    unsafe impl Sync for Services {}
    static SERVICES: Services = Services(HostServicesV1 {
        size: size_of::<HostServicesV1>() as u32,
        version: 1,
        threads: 1,
        ctx: std::ptr::null_mut(),
        log,
        error,
        parallel_for,
    });
    // SAFETY: a static lives as long as the process.
    unsafe { Host::from_raw(&raw const SERVICES.0) }
}
