//! A communicator of two, and the buffer on the device through which host memory goes.

use cudarc::driver::{CudaContext, CudaStream, result, sys as cuda};
use hotseam_cuda::nccl::{Nccl, NcclError, types};
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the buffer: those of the largest frame.
const STAGE: usize = hotseam_kv_wire::MOST_PARTS;
/// Ranks of the two ends.
pub(crate) const SENDER: c_int = 0;
pub(crate) const RECEIVER: c_int = 1;
/// Between two looks at what is under way.
const PAUSE: Duration = Duration::from_micros(20);
/// Text by which two ranks find each other.
pub(crate) const ID: usize = 128;

/// A rank of two, its stream and its buffer. All calls return at once and are followed to their end for a bounded time, so
/// that a peer that is gone holds nobody; afterwards the communicator is aborted.
pub(crate) struct Comm {
    api: &'static Nccl,
    comm: types::ncclComm_t,
    peer: c_int,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    stage: cuda::CUdeviceptr,
    patience: Duration,
}

// SAFETY: one thread at a time uses a communicator, and binds the context first.
unsafe impl Send for Comm {}

fn failed(what: &str, why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{what}: {why}"))
}

fn refused(error: NcclError) -> io::Error {
    io::Error::other(error)
}

/// A new text of this kind.
pub(crate) fn id() -> io::Result<[u8; ID]> {
    Nccl::open().and_then(Nccl::unique_id).map_err(refused)
}

impl Comm {
    /// Meets the other rank on a device.
    ///
    /// # Errors
    /// If there is no such device, no memory on it, or the other does not come within `patience`.
    pub(crate) fn meet(
        device: usize,
        id: &[u8; ID],
        rank: c_int,
        patience: Duration,
        wanted: &dyn Fn() -> bool,
    ) -> io::Result<Self> {
        let context = CudaContext::new(device).map_err(|error| failed(&format!("device {device}"), error))?;
        let stream = context.new_stream().map_err(|error| failed("stream", error))?;
        // SAFETY: the context was just bound to this thread.
        let stage = unsafe { result::malloc_sync(STAGE) };
        let stage = stage.map_err(|error| failed(&format!("{STAGE} bytes on device {device}"), error))?;
        let api = Nccl::open().map_err(refused)?;
        let (comm, peer) = (std::ptr::null_mut(), 1 - rank);
        let mut this = Self { api, comm, peer, context, stream, stage, patience };
        this.comm = api.join(id, rank, 2).map_err(refused)?;
        this.settle("the other end", wanted)?;
        Ok(this)
    }

    fn bind(&self) -> io::Result<()> {
        self.context.bind_to_thread().map_err(|error| failed("context", error))
    }

    /// Waits until the library has taken what it was given.
    fn settle(&self, what: &'static str, wanted: &dyn Fn() -> bool) -> io::Result<()> {
        // SAFETY: the communicator is live.
        self.follow(what, wanted, &|| unsafe { self.api.has_taken(what, self.comm) }.map_err(refused))
    }

    /// Waits until the device has done all of it.
    pub(crate) fn finish(&self, what: &str, wanted: &dyn Fn() -> bool) -> io::Result<()> {
        self.bind()?;
        self.follow(what, wanted, &|| {
            // SAFETY: the stream is live.
            match unsafe { cuda::cuStreamQuery(self.stream.cu_stream()) } {
                cuda::CUresult::CUDA_SUCCESS => Ok(true),
                cuda::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
                other => Err(failed(what, format!("{other:?}"))),
            }
        })
    }

    fn follow(
        &self,
        what: &str,
        wanted: &dyn Fn() -> bool,
        done: &dyn Fn() -> io::Result<bool>,
    ) -> io::Result<()> {
        let start = Instant::now();
        while !done()? {
            if start.elapsed() > self.patience {
                return Err(failed(what, format!("no end after {:.1} s", start.elapsed().as_secs_f32())));
            }
            if !wanted() {
                return Err(failed(what, "nobody waits for it any more"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Copies host memory into the buffer, one part behind the other.
    ///
    /// # Safety
    /// The parts are readable, and together no longer than the buffer.
    pub(crate) unsafe fn load(&self, parts: &[(*const u8, usize)]) -> io::Result<()> {
        self.bind()?;
        let mut at = self.stage;
        for (from, len) in parts {
            // SAFETY: the caller's contract; the copy has ended before this function returns.
            let bytes = unsafe { std::slice::from_raw_parts(*from, *len) };
            // SAFETY: the buffer has room for the parts.
            let copied = unsafe { result::memcpy_htod_async(at, bytes, self.stream.cu_stream()) };
            copied.map_err(|error| failed("copy to the device", error))?;
            at += *len as u64;
        }
        self.stream.synchronize().map_err(|error| failed("copy to the device", error))
    }

    /// Copies the buffer into host memory, one part behind the other.
    ///
    /// # Safety
    /// The parts are writable, and together no longer than the buffer.
    pub(crate) unsafe fn store(&self, parts: impl Iterator<Item = (*mut u8, usize)>) -> io::Result<()> {
        self.bind()?;
        let mut at = self.stage;
        for (to, len) in parts {
            // SAFETY: the caller's contract; the copy has ended before this function returns.
            let bytes = unsafe { std::slice::from_raw_parts_mut(to, len) };
            // SAFETY: the buffer holds the parts.
            let copied = unsafe { result::memcpy_dtoh_async(bytes, at, self.stream.cu_stream()) };
            copied.map_err(|error| failed("copy from the device", error))?;
            at += len as u64;
        }
        self.stream.synchronize().map_err(|error| failed("copy from the device", error))
    }

    /// Moves parts of these lengths between the buffers of both ends, as one group: out of this one if `out`. Returns when the
    /// library has taken them.
    pub(crate) fn exchange(&self, lens: &[usize], out: bool, wanted: &dyn Fn() -> bool) -> io::Result<()> {
        if lens.iter().sum::<usize>() > STAGE {
            return Err(failed("frame", format!("it is longer than {STAGE} bytes")));
        }
        self.bind()?;
        let stream: types::cudaStream_t = self.stream.cu_stream().cast();
        let (nccl, kind) = (self.api, types::ncclDataType_t::ncclUint8);
        let check = |call, result| nccl.check(call, result).map_err(refused);
        // SAFETY: parts lie inside the buffer, which lives until the communicator has ended; what begins here ends here.
        unsafe {
            check("ncclGroupStart", (nccl.group_start)())?;
            let mut at = self.stage;
            let mut taken = Ok(());
            for len in lens {
                let place = std::ptr::with_exposed_provenance_mut::<c_void>(at as usize);
                let result = match out {
                    true => (nccl.send)(place, *len, kind, self.peer, self.comm, stream),
                    false => (nccl.recv)(place, *len, kind, self.peer, self.comm, stream),
                };
                taken = taken.and_then(|()| check(if out { "ncclSend" } else { "ncclRecv" }, result));
                at += *len as u64;
            }
            check("ncclGroupEnd", (nccl.group_end)())?;
            taken?;
        }
        self.settle("ncclGroupEnd", wanted)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // Nothing can be done about a context that is no more; memory of it is gone as well.
        if self.bind().is_err() {
            return;
        }
        // SAFETY: both are live, and used no more. Abort also ends what waits for a peer that is gone.
        unsafe {
            if !self.comm.is_null() {
                (self.api.comm_abort)(self.comm);
            }
            let _ = self.stream.synchronize();
            let _ = result::free_sync(self.stage);
        }
    }
}
