//! Streams and events.

use crate::error::{Result, check};
use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags};

/// A stream of its own, which does not wait for the default stream.
#[derive(Debug)]
pub struct Stream(CUstream);

// SAFETY: a stream may be used from any thread whose context is its own.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream of the current context.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn new() -> Result<Self> {
        let mut stream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is writable.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
        Ok(Self(stream))
    }

    /// The stream as it crosses the contract.
    pub fn raw(&self) -> u64 {
        self.0 as u64
    }

    /// Waits for everything on the stream.
    ///
    /// # Errors
    /// Also tells of failures of what was enqueued.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }
}

/// Waits for everything on a stream of the contract.
///
/// # Errors
/// Also tells of failures of what was enqueued.
pub fn synchronize(stream: u64) -> Result<()> {
    // SAFETY: streams of the contract are alive while they are handed on.
    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream as CUstream) })
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created once; the driver frees it once its work is done.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A point on a stream.
#[derive(Debug)]
pub struct Event(CUevent);

impl Event {
    /// An event of the current context that knows its time.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn new() -> Result<Self> {
        Self::with(CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// An event of the current context that does not know its time.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn untimed() -> Result<Self> {
        Self::with(CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with(flags: CUevent_flags) -> Result<Self> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is writable.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags as u32) })?;
        Ok(Self(event))
    }

    /// Marks the end of what is on a stream of the current context now; `stream` is as it crosses the contract.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn record(&self, stream: u64) -> Result<()> {
        // SAFETY: the event is alive; the driver checks the stream.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, stream as CUstream) })
    }

    /// Whether everything before it has ended; also if it was not recorded yet.
    ///
    /// # Errors
    /// Tells of failures of what was enqueued.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Seconds from `earlier` to this event; waits for it.
    ///
    /// # Errors
    /// If one of the two was not recorded or is untimed, or what was enqueued failed.
    pub fn seconds_since(&self, earlier: &Self) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: both are alive; the number is writable.
        unsafe {
            check("cuEventSynchronize", sys::cuEventSynchronize(self.0))?;
            check("cuEventElapsedTime", sys::cuEventElapsedTime(&raw mut milliseconds, earlier.0, self.0))?;
        }
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}
