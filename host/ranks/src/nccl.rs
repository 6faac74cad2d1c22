//! Sums over NCCL, between ranks that have a device each.

use crate::{Collective, RankError, Values};
use cudarc::get_lib_name_candidates;
use cudarc::nccl::{result, sys};
use std::ffi::CStr;

/// Bytes of the name of a group.
pub const NCCL_ID: usize = 128;
/// Oldest version of NCCL, as it counts them: that of the declarations.
const OLDEST: i32 = 22_200;

/// A communicator. Its sums are ordered by the streams that they are put into.
#[derive(Debug)]
pub struct Nccl {
    comm: sys::ncclComm_t,
    rank: u32,
    world: u32,
}

// SAFETY: a communicator may be used from any thread, by one at a time.
unsafe impl Send for Nccl {}

impl Nccl {
    /// A new group's name, which every rank joins it by.
    ///
    /// # Errors
    /// If the library is not there, is too old, or refuses.
    pub fn unique_id() -> Result<[u8; NCCL_ID], RankError> {
        present()?;
        let mut id = sys::ncclUniqueId { internal: [0; NCCL_ID] };
        // SAFETY: the call fills the name in.
        check("ncclGetUniqueId", unsafe { sys::ncclGetUniqueId(&raw mut id) })?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    /// Joins the group as `rank`, on the device whose context is current. Waits for all other ranks.
    ///
    /// # Errors
    /// If the library is not there or refuses, as it does two ranks on one device.
    pub fn join(id: [u8; NCCL_ID], rank: u32, world: u32) -> Result<Self, RankError> {
        present()?;
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as _) };
        let mut comm = std::ptr::null_mut();
        // SAFETY: the pointer is writable; a context is current.
        let joined = unsafe { sys::ncclCommInitRank(&raw mut comm, world as i32, id, rank as i32) };
        check("ncclCommInitRank", joined)?;
        Ok(Self { comm, rank, world })
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // SAFETY: made once and not used any more. Aborted, since the other ranks may be gone.
        let _ = unsafe { sys::ncclCommAbort(self.comm) };
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
        let Values::Device { address, stream } = values else {
            return Err(RankError::Carrier("NCCL sums values of a device, not of the host".to_owned()));
        };
        let (place, kind, op) =
            (address as *mut std::ffi::c_void, sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
        // SAFETY: the caller names `n` values on the device; the communicator is alive.
        let begun =
            unsafe { sys::ncclAllReduce(place, place, n, kind, op, self.comm, stream as sys::cudaStream_t) };
        check("ncclAllReduce", begun)
    }
}

/// Refuses a library that is not there or too old.
fn present() -> Result<(), RankError> {
    // SAFETY: the library's constructors run; it is the one that the machine's linker is set up to find.
    if !unsafe { sys::is_culib_present() } {
        return Err(RankError::Carrier(format!(
            "libnccl.so is not there, searched {}: install NCCL 2.22 or newer, or name its directory in LD_LIBRARY_PATH. \
             engine.collective: shared needs none",
            get_lib_name_candidates("nccl").join(", ")
        )));
    }
    match result::get_nccl_version() {
        Ok(OLDEST..) => Ok(()),
        Ok(version) => Err(RankError::Carrier(format!(
            "NCCL has version {version}, expected {OLDEST} or more; install NCCL 2.22 or newer"
        ))),
        Err(error) => Err(RankError::Carrier(format!("NCCL: {error:?}"))),
    }
}

fn check(what: &str, result: sys::ncclResult_t) -> Result<(), RankError> {
    match result {
        sys::ncclResult_t::ncclSuccess => Ok(()),
        other => {
            // SAFETY: the library gives a static, terminated text for every result.
            let text = unsafe { CStr::from_ptr(sys::ncclGetErrorString(other)) };
            Err(RankError::Carrier(format!("{what}: {}", text.to_string_lossy())))
        }
    }
}
