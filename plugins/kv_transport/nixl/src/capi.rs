//! The functions of `libnixl_capi.so` that are used here, as `wrapper.h` of the crate `nixl-sys` 1.5.2 declares them.
//!
//! That crate binds the same library and is not used: its build needs libclang and a C++20 compiler, which would keep the plugin
//! out of what everybody builds and tests, and its stub ends the process where the library, or one function of it, is not there. Here
//! both are errors of the instance that asks.

use crate::SCRIPT;
use hotseam_sdk::{Error, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Name of the library, as the linker looks for it.
const NAME: &str = "libnixl_capi.so";

/// `nixl_capi_status_t`: success, and still under way. Errors are negative.
pub(crate) const SUCCESS: c_int = 0;
pub(crate) const IN_PROGRESS: c_int = 1;
/// `nixl_capi_mem_type_t`: memory of the host.
pub(crate) const DRAM: c_uint = 0;
/// `nixl_capi_xfer_op_t`: from the other agent to this one.
pub(crate) const READ: c_uint = 0;
/// `nixl_capi_thread_sync_t`: the agent serialises its calls.
pub(crate) const STRICT: c_uint = 1;

/// An object of the library. Each kind is told from the others by the function only.
pub(crate) type Object = *mut c_void;

/// `nixl_capi_agent_config_s`.
#[repr(C)]
pub(crate) struct AgentConfig {
    pub(crate) enable_prog_thread: bool,
    pub(crate) enable_listen_thread: bool,
    pub(crate) listen_port: c_int,
    pub(crate) thread_sync: c_uint,
    pub(crate) num_workers: c_uint,
    pub(crate) pthr_delay_us: u64,
    pub(crate) lthr_delay_us: u64,
    pub(crate) capture_telemetry: bool,
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)+) => {
        /// The functions, without their prefix `nixl_capi_`. All return a status.
        #[allow(clippy::type_complexity, reason = "the signatures are the declarations")]
        pub(crate) struct Capi {
            $(pub(crate) $name: unsafe extern "C" fn($($argument: $type),*) -> c_int,)+
        }

        impl Capi {
            fn of(library: &Library) -> std::result::Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the library's header declares the function so.
                    $($name: *unsafe {
                        library.get(concat!("nixl_capi_", stringify!($name), "\0").as_bytes())?
                    },)+
                })
            }
        }
    };
}

functions! {
    create_configured_agent(name: *const c_char, config: *const AgentConfig, agent: *mut Object);
    destroy_agent(agent: Object);
    get_local_md(agent: Object, data: *mut *mut c_void, len: *mut usize);
    load_remote_md(agent: Object, data: *const c_void, len: usize, name: *mut *mut c_char);
    invalidate_remote_md(agent: Object, name: *const c_char);
    create_params(params: *mut Object);
    params_add(params: Object, key: *const c_char, value: *const c_char);
    destroy_params(params: Object);
    create_backend(agent: Object, plugin: *const c_char, params: Object, backend: *mut Object);
    destroy_backend(backend: Object);
    create_reg_dlist(memory: c_uint, list: *mut Object);
    reg_dlist_add_desc(list: Object, at: usize, len: usize, device: u64, data: *const c_void, data_len: usize);
    destroy_reg_dlist(list: Object);
    register_mem(agent: Object, list: Object, options: Object);
    create_xfer_dlist(memory: c_uint, list: *mut Object);
    xfer_dlist_add_desc(list: Object, at: usize, len: usize, device: u64);
    destroy_xfer_dlist(list: Object);
    create_xfer_req(
        agent: Object, operation: c_uint, local: Object, remote: Object, name: *const c_char, request: *mut Object,
        options: Object
    );
    post_xfer_req(agent: Object, request: Object, options: Object);
    get_xfer_status(agent: Object, request: Object);
    release_xfer_req(agent: Object, request: Object);
    destroy_xfer_req(request: Object);
}

impl Capi {
    /// The library at `path`, or where the linker finds it if that is empty. It stays mapped.
    ///
    /// # Errors
    /// If the path is relative, or the library or a function of it is not there: what was searched, and the next step.
    pub(crate) fn load(path: &str) -> Result<&'static Self> {
        static LOADED: Mutex<Option<HashMap<String, &'static Capi>>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.get_or_insert_default();
        if let Some(known) = loaded.get(path) {
            return Ok(known);
        }
        if !path.is_empty() && !Path::new(path).is_absolute() {
            return Err(Error::unsupported(format!(
                "option library: expected an absolute path, found `{path}`; {SCRIPT} prints it"
            )));
        }
        let (searched, file) = match path {
            "" => (format!("{NAME} where the dynamic linker looks (LD_LIBRARY_PATH, its cache)"), NAME),
            path => (format!("option library: {path}"), path),
        };
        let missing = |error: libloading::Error| {
            Error::unsupported(format!(
                "NIXL is not there: {searched}: {error}. Run {SCRIPT}, and set option library to the path that it prints"
            ))
        };
        // SAFETY: constructors of the library run; it is the one that the operator named.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }.map_err(missing)?;
        let capi = Capi::of(&library).map_err(missing)?;
        // Its threads and those of its own plugins may run until the process ends.
        std::mem::forget(library);
        let capi: &'static Self = Box::leak(Box::new(capi));
        loaded.insert(path.to_owned(), capi);
        Ok(capi)
    }
}
