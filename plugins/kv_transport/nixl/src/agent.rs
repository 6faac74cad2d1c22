//! An agent of NIXL: memory of this process that another agent may read, or into which it reads from another.

use crate::capi::{AgentConfig, Capi, DRAM, IN_PROGRESS, Object, READ, STRICT, SUCCESS};
use hotseam_kv_wire::{Part, Span};
use std::ffi::{CStr, CString, c_int, c_void};
use std::fmt;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

/// What went wrong, in words.
pub(crate) type Outcome<T> = Result<T, String>;

/// Longest that the progress thread waits before it looks whether UCX has something to do; an event wakes it earlier.
const LOOK_US: u64 = 10_000;
/// How long a read is followed without sleeping. Looking at it is what moves it: on one machine the bytes are copied by it.
const SPIN: Duration = Duration::from_millis(20);
/// Looks between two questions whether to wait on.
const LOOKS: u32 = 64;
/// Between two looks at a longer read.
const PAUSE: Duration = Duration::from_micros(50);

/// An agent with its one backend and its memory. All calls may come from any thread: it is created to serialise them.
pub(crate) struct Agent {
    capi: &'static Capi,
    agent: Object,
    /// Null until it was created.
    backend: Object,
}

// SAFETY: the library's agent serialises its calls (STRICT) and does not care which thread makes them.
unsafe impl Send for Agent {}
// SAFETY: as above.
unsafe impl Sync for Agent {}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

/// What became of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// All bytes are in place.
    Done,
    /// None are, and none come.
    Refused(String),
    /// Some are, and more may come as long as the agent lives.
    Broken(String),
}

fn check(what: &str, status: c_int) -> Outcome<()> {
    let meaning = match status {
        SUCCESS | IN_PROGRESS => return Ok(()),
        -1 => "invalid parameter",
        -2 => "the backend failed",
        -3 => "invalid state",
        -6 => "not found",
        _ => "an error of the library",
    };
    Err(format!("NIXL, {what}: {meaning} ({status})"))
}

/// An object that is destroyed at the end of its scope.
struct Scoped {
    object: Object,
    destroy: unsafe extern "C" fn(Object) -> c_int,
}

impl Scoped {
    fn new(
        what: &str,
        create: impl FnOnce(*mut Object) -> c_int,
        destroy: unsafe extern "C" fn(Object) -> c_int,
    ) -> Outcome<Self> {
        let mut object = null_mut();
        check(what, create(&raw mut object))?;
        Ok(Self { object, destroy })
    }
}

impl Drop for Scoped {
    fn drop(&mut self) {
        // SAFETY: the object is live and this is its function. What it says is of no use here.
        unsafe { (self.destroy)(self.object) };
    }
}

impl Agent {
    /// An agent of this name with UCX, the backend's `settings` and the memory. If it `serves`, a thread of it answers other
    /// agents; otherwise it moves on only while it reads, which no second thread disturbs.
    ///
    /// # Errors
    /// If the library refuses a part of it.
    ///
    /// # Safety
    /// The spans are valid as long as the agent lives.
    pub(crate) unsafe fn new(
        capi: &'static Capi,
        name: &CStr,
        serves: bool,
        settings: &[(CString, CString)],
        spans: &[Span],
    ) -> Outcome<Self> {
        let config = AgentConfig {
            enable_prog_thread: serves,
            enable_listen_thread: false,
            listen_port: 0,
            thread_sync: STRICT,
            num_workers: 1,
            pthr_delay_us: LOOK_US,
            lthr_delay_us: LOOK_US,
            capture_telemetry: false,
        };
        let mut this = Self { capi, agent: null_mut(), backend: null_mut() };
        // SAFETY: the arguments live through each call; objects are used while they live.
        unsafe {
            let status =
                (capi.create_configured_agent)(name.as_ptr(), &raw const config, &raw mut this.agent);
            check("create an agent", status)?;
            let params =
                Scoped::new("backend parameters", |out| (capi.create_params)(out), capi.destroy_params)?;
            for (key, value) in settings {
                let status = (capi.params_add)(params.object, key.as_ptr(), value.as_ptr());
                check("backend parameters", status)?;
            }
            let status =
                (capi.create_backend)(this.agent, c"UCX".as_ptr(), params.object, &raw mut this.backend);
            check("create the backend UCX", status)?;
            if spans.is_empty() {
                return Ok(this);
            }
            let list = Scoped::new(
                "list of memory",
                |out| (capi.create_reg_dlist)(DRAM, out),
                capi.destroy_reg_dlist,
            )?;
            for span in spans {
                let status = (capi.reg_dlist_add_desc)(list.object, span.at, span.len, 0, null(), 0);
                check("list of memory", status)?;
            }
            let bytes: usize = spans.iter().map(|span| span.len).sum();
            check(
                &format!("register {bytes} bytes of memory in {} pieces", spans.len()),
                (capi.register_mem)(this.agent, list.object, null_mut()),
            )?;
        }
        Ok(this)
    }

    /// What another agent needs to read the memory of this one.
    ///
    /// # Errors
    /// If the library does not give it.
    pub(crate) fn card(&self) -> Outcome<Vec<u8>> {
        let (mut data, mut len): (*mut c_void, usize) = (null_mut(), 0);
        // SAFETY: the agent is live; the library allocates what it gives with malloc.
        unsafe {
            check("metadata", (self.capi.get_local_md)(self.agent, &raw mut data, &raw mut len))?;
            let card = std::slice::from_raw_parts(data.cast::<u8>(), len).to_vec();
            libc::free(data);
            Ok(card)
        }
    }

    /// Takes another agent's card; returns its name. The same card may be taken again.
    ///
    /// # Errors
    /// If it is none, or the other cannot be reached.
    pub(crate) fn meet(&self, card: &[u8]) -> Outcome<CString> {
        let mut name = null_mut();
        // SAFETY: the agent and the card are live; the library allocates the name, which is terminated, with malloc.
        unsafe {
            let status =
                (self.capi.load_remote_md)(self.agent, card.as_ptr().cast(), card.len(), &raw mut name);
            check("metadata of the sending side", status)?;
            let owned = CStr::from_ptr(name).to_owned();
            libc::free(name.cast());
            Ok(owned)
        }
    }

    /// Closes the way to another agent.
    pub(crate) fn forget(&self, name: &CStr) {
        // SAFETY: agent and name are live. One that is not known is an error without effect.
        unsafe { (self.capi.invalidate_remote_md)(self.agent, name.as_ptr()) };
    }

    /// Reads parts from the memory of another agent, for as long as `wait` says after some time.
    ///
    /// # Safety
    /// The parts may be written until this returns, and if it returns [`Read::Broken`], until the agent was dropped.
    pub(crate) unsafe fn read(
        &self,
        name: &CStr,
        parts: &[Part],
        wait: &dyn Fn(Duration) -> Result<(), String>,
    ) -> Read {
        // SAFETY: the caller's contract.
        match unsafe { self.request(name, parts) } {
            Err(why) => Read::Refused(why),
            Ok(request) => {
                let read = self.follow(request, wait);
                // SAFETY: the request is live and not used afterwards.
                unsafe {
                    (self.capi.release_xfer_req)(self.agent, request);
                    (self.capi.destroy_xfer_req)(request);
                }
                read
            }
        }
    }

    /// A request that was not posted yet.
    ///
    /// # Safety
    /// As for [`Self::read`].
    unsafe fn request(&self, name: &CStr, parts: &[Part]) -> Outcome<Object> {
        let capi = self.capi;
        let list = || {
            // SAFETY: the list is written by the call.
            let create = |out| unsafe { (capi.create_xfer_dlist)(DRAM, out) };
            Scoped::new("list of parts", create, capi.destroy_xfer_dlist)
        };
        let (local, remote) = (list()?, list()?);
        let mut request = null_mut();
        // SAFETY: agent, lists and name are live; what the parts name is checked by the library against both agents' memory.
        unsafe {
            for part in parts {
                let from =
                    usize::try_from(part.from).map_err(|_| "an address of another machine".to_owned())?;
                let to = part.to.expose_provenance();
                check("list of parts", (capi.xfer_dlist_add_desc)(local.object, to, part.len, 0))?;
                check("list of parts", (capi.xfer_dlist_add_desc)(remote.object, from, part.len, 0))?;
            }
            let status = (capi.create_xfer_req)(
                self.agent,
                READ,
                local.object,
                remote.object,
                name.as_ptr(),
                &raw mut request,
                null_mut(),
            );
            check("prepare a read", status)?;
        }
        Ok(request)
    }

    /// Posts a request and follows it to its end.
    fn follow(&self, request: Object, wait: &dyn Fn(Duration) -> Result<(), String>) -> Read {
        let start = Instant::now();
        let mut looks = 0u32;
        // SAFETY: agent and request are live.
        let mut status = unsafe { (self.capi.post_xfer_req)(self.agent, request, null_mut()) };
        loop {
            match status {
                SUCCESS => return Read::Done,
                IN_PROGRESS => {}
                // Of several requests under it one has failed; nothing is said of the others.
                _ => return Read::Broken(check("read", status).err().unwrap_or_default()),
            }
            looks = looks.wrapping_add(1);
            let elapsed = start.elapsed();
            if elapsed > SPIN {
                std::thread::sleep(PAUSE);
            }
            if (elapsed > SPIN || looks.is_multiple_of(LOOKS))
                && let Err(why) = wait(elapsed)
            {
                return Read::Broken(why);
            }
            // SAFETY: as above.
            status = unsafe { (self.capi.get_xfer_status)(self.agent, request) };
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // SAFETY: both are live or null; the backend's object is a handle, the agent owns the backend itself.
        unsafe {
            if !self.backend.is_null() {
                (self.capi.destroy_backend)(self.backend);
            }
            if !self.agent.is_null() {
                (self.capi.destroy_agent)(self.agent);
            }
        }
    }
}
