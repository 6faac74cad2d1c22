//! Sums over NCCL, between ranks that have a device each.

use crate::{Breaker, Collective, RankError, Values};
use hotseam_cuda::nccl::{self, NcclError, types};
use hotseam_cuda::{CudaError, Event};
use std::cell::Cell;
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Bytes of the name of a group.
pub const NCCL_ID: usize = 128;
/// A mark is put into the stream after so many sums, and the host is at most three times as many ahead of the device: a driver whose queue
/// is full of work that waits for a rank which is gone would hold this thread for ever.
const MARK_EVERY: u32 = 8;
/// Looks at the device before the processor is left to others.
const SPINS: u32 = 2000;
/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(120);

/// Two marks in a stream, which bound how far the host is ahead of it.
#[derive(Debug)]
struct Marks<M> {
    marks: [M; 2],
    younger: Cell<usize>,
    /// Since the younger one.
    sums: Cell<u32>,
}

impl<M> Marks<M> {
    fn new(marks: [M; 2]) -> Self {
        Self { marks, younger: Cell::new(0), sums: Cell::new(0) }
    }

    /// The mark that is to be put next.
    fn older(&self) -> &M {
        &self.marks[1 - self.younger.get()]
    }

    /// Another sum follows. Where a mark is due, waits with `pass` until the device has come to the one before the last, and puts it
    /// anew with `put`.
    fn before_a_sum<E>(
        &self,
        pass: impl FnOnce(&M) -> Result<(), E>,
        put: impl FnOnce(&M) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.sums.get() == MARK_EVERY {
            pass(self.older())?;
            put(self.older())?;
            self.younger.set(1 - self.younger.get());
            self.sums.set(0);
        }
        self.sums.set(self.sums.get() + 1);
        Ok(())
    }
}

/// A communicator. Its sums are ordered by the streams that they are put into. No call of the library waits, so that a rank that is gone
/// ends the waits of the others here.
#[derive(Debug)]
pub struct Nccl {
    /// `None` once it was aborted.
    comm: Cell<Option<types::ncclComm_t>>,
    api: &'static nccl::Nccl,
    rank: u32,
    world: u32,
    breaker: Breaker,
    marks: Marks<Event>,
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
        let api = nccl::Nccl::open()?;
        let marks = Marks::new([Event::untimed()?, Event::untimed()?]);
        let comm = api.join(&id, rank as i32, world as i32)?;
        let joined = Self { comm: Cell::new(Some(comm)), api, rank, world, breaker, marks };
        joined.taken("ncclCommInitRankConfig")?;
        Ok(joined)
    }

    /// Waits until the library has taken the call `what`.
    fn taken(&self, what: &'static str) -> Result<(), RankError> {
        let comm = self.alive()?;
        // SAFETY: it is not aborted before this ends.
        self.until(|| Ok(unsafe { self.api.has_taken(what, comm) }?))
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
        self.marks.before_a_sum(|mark| self.pass(mark), |mark| Ok(mark.record(stream)?))?;
        let (place, kind, op) =
            (address as *mut c_void, types::ncclDataType_t::ncclFloat32, types::ncclRedOp_t::ncclSum);
        let (comm, stream) = (self.alive()?, stream as types::cudaStream_t);
        // SAFETY: the caller names `n` values on the device; the communicator is alive.
        let begun = unsafe { (self.api.all_reduce)(place, place, n, kind, op, comm, stream) };
        self.api.check("ncclAllReduce", begun)?;
        self.taken("ncclAllReduce")
    }

    fn alive(&self) -> Result<types::ncclComm_t, RankError> {
        self.comm.get().ok_or_else(|| RankError::Carrier("the NCCL group has ended".to_owned()))
    }

    /// Ends what the device still does for the group.
    fn abort(&self) {
        if let Some(comm) = self.comm.take() {
            // SAFETY: made once and not used any more. Aborted, since the other ranks may be gone.
            let _ = unsafe { (self.api.comm_abort)(comm) };
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
        let mark = self.marks.older();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Where in the sums a mark stands; a device has passed one that was never put.
    type Mark = Cell<Option<u32>>;

    #[test]
    fn the_host_is_at_most_three_times_as_far_ahead() {
        let marks: Marks<Mark> = Marks::new([Cell::new(None), Cell::new(None)]);
        // What a device has done that moves only where the host waits for it.
        let mut done = 0;
        for sums in 0..20 * MARK_EVERY {
            let pass = |mark: &Mark| {
                done = mark.get().unwrap_or(0).max(done);
                Ok::<_, ()>(())
            };
            let put = |mark: &Mark| {
                mark.set(Some(sums));
                Ok(())
            };
            marks.before_a_sum(pass, put).expect("nothing fails");
            assert!(sums + 1 - done <= 3 * MARK_EVERY, "{sums} sums, {done} done");
        }
        assert!(done >= 17 * MARK_EVERY, "{done}");
    }

    #[test]
    fn a_wait_that_fails_puts_no_mark_and_is_made_again() {
        let marks: Marks<Mark> = Marks::new([Cell::new(None), Cell::new(None)]);
        let ok = |_: &Mark| Ok::<_, u32>(());
        for _ in 0..MARK_EVERY {
            marks.before_a_sum(|_| Err(1), |_| Err(2)).expect("no mark is due");
        }
        for _ in 0..2 {
            let failed = marks.before_a_sum(|_| Err(1), |_| panic!("a mark behind a failed wait"));
            assert_eq!(failed, Err(1));
        }
        assert_eq!(marks.before_a_sum(ok, |_| Err(2)), Err(2));
        marks.before_a_sum(ok, ok).expect("the wait ends");
    }
}
