//! Sums over NCCL, between ranks that have a device each.

use crate::{Breaker, Collective, RankError, Values};
use hotseam_cuda::nccl::{self, NcclError, types};
use hotseam_cuda::{CudaError, Event};
use std::cell::Cell;
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Bytes of the name of a group.
pub const NCCL_ID: usize = 128;
/// A mark is put into the stream after so many sums, and the host is at most two marks ahead of the device: a driver whose queue is full
/// of work that waits for a rank which is gone would hold this thread for ever.
const MARK_EVERY: u32 = 8;
/// Looks at the device before the processor is left to others.
const SPINS: u32 = 2000;
/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(120);

/// A communicator. Its sums are ordered by the streams that they are put into. No call of the library waits, so that a rank that is gone
/// ends the waits of the others here.
#[derive(Debug)]
pub struct Nccl {
    /// `None` once it was aborted.
    comm: Cell<Option<types::ncclComm_t>>,
    library: &'static nccl::Nccl,
    rank: u32,
    world: u32,
    breaker: Breaker,
    /// Marks in the stream, the older one first; the sums since the younger one.
    marks: [Event; 2],
    younger: Cell<usize>,
    sums: Cell<u32>,
}

// SAFETY: a communicator may be used from any thread, by one at a time.
unsafe impl Send for Nccl {}

impl Nccl {
    /// A new group's name, which every rank joins it by.
    ///
    /// # Errors
    /// If the library is not there, is too old, or refuses.
    pub fn unique_id() -> Result<[u8; NCCL_ID], RankError> {
        Ok(nccl::Nccl::open()?.unique_id()?)
    }

    /// Joins the group as `rank`, on the device whose context is current. Waits for all other ranks, until `breaker` says that one is
    /// gone.
    ///
    /// # Errors
    /// If the library is not there or refuses, as it does two ranks on one device, or a rank is gone.
    pub fn join(id: [u8; NCCL_ID], rank: u32, world: u32, breaker: Breaker) -> Result<Self, RankError> {
        let library = nccl::Nccl::open()?;
        let marks = [Event::new()?, Event::new()?];
        let comm = library.join(&id, rank as i32, world as i32)?;
        let (comm, younger, sums) = (Cell::new(Some(comm)), Cell::new(0), Cell::new(0));
        let joined = Self { comm, library, rank, world, breaker, marks, younger, sums };
        joined.taken("ncclCommInitRankConfig")?;
        Ok(joined)
    }

    /// Waits until the library has taken the call `what`.
    fn taken(&self, what: &'static str) -> Result<(), RankError> {
        let comm = self.alive()?;
        // SAFETY: it is not aborted before this ends.
        self.until(|| Ok(unsafe { self.library.has_taken(what, comm) }?))
    }

    /// Waits until the device has come to a mark.
    fn pass(&self, mark: &Event) -> Result<(), RankError> {
        self.until(|| Ok(mark.is_done()?))
    }

    /// Waits until `done`, while no rank is gone.
    fn until(&self, mut done: impl FnMut() -> Result<bool, RankError>) -> Result<(), RankError> {
        let (start, mut looks) = (Instant::now(), 0u32);
        while !done().inspect_err(|_| self.abort())? {
            if let Some(rank) = self.breaker.gone() {
                self.abort();
                return Err(RankError::Gone { rank, what: "has ended".to_owned() });
            }
            if looks < SPINS {
                looks += 1;
                std::hint::spin_loop();
            } else if start.elapsed() > PATIENCE {
                self.abort();
                return Err(RankError::Carrier(format!(
                    "the other ranks have not come to NCCL for {PATIENCE:?}"
                )));
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`Collective::all_reduce`].
    unsafe fn sum(&self, values: Values, n: usize) -> Result<(), RankError> {
        let Values::Device { address, stream } = values else {
            return Err(RankError::Carrier("NCCL sums values of a device, not of the host".to_owned()));
        };
        if self.sums.get() == MARK_EVERY {
            let older = 1 - self.younger.get();
            self.pass(&self.marks[older])?;
            self.marks[older].record(stream)?;
            self.younger.set(older);
            self.sums.set(0);
        }
        self.sums.set(self.sums.get() + 1);
        let (place, kind, op) =
            (address as *mut c_void, types::ncclDataType_t::ncclFloat32, types::ncclRedOp_t::ncclSum);
        let (comm, stream) = (self.alive()?, stream as types::cudaStream_t);
        // SAFETY: the caller names `n` values on the device; the communicator is alive.
        let begun = unsafe { (self.library.all_reduce)(place, place, n, kind, op, comm, stream) };
        self.library.check("ncclAllReduce", begun)?;
        self.taken("ncclAllReduce")
    }

    fn alive(&self) -> Result<types::ncclComm_t, RankError> {
        self.comm.get().ok_or_else(|| RankError::Carrier("the NCCL group has ended".to_owned()))
    }

    /// Ends what the device still does for the group.
    fn abort(&self) {
        if let Some(comm) = self.comm.take() {
            // SAFETY: made once and not used any more. Aborted, since the other ranks may be gone.
            let _ = unsafe { (self.library.comm_abort)(comm) };
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.abort();
    }
}

impl Collective for Nccl {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    unsafe fn all_reduce(&self, values: Values, n: usize) -> Result<(), RankError> {
        // SAFETY: the caller's contract.
        unsafe { self.sum(values, n) }.inspect_err(|_| self.abort())
    }

    fn settle(&self, stream: u64) -> Result<(), RankError> {
        let mark = &self.marks[1 - self.younger.get()];
        mark.record(stream).inspect_err(|_| self.abort())?;
        self.pass(mark)
    }
}

impl From<NcclError> for RankError {
    fn from(error: NcclError) -> Self {
        Self::Carrier(error.to_string())
    }
}

impl From<CudaError> for RankError {
    fn from(error: CudaError) -> Self {
        Self::Carrier(error.to_string())
    }
}
