//! NCCL, opened when it is first asked for. The types are those of `cudarc`; the library is looked for here, since `cudarc` does not know
//! the name under which it is installed (`libnccl.so.2`) and panics over a function that is missing.

use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

pub use cudarc::nccl::sys as types;

/// Names of the library, in the order in which they are tried.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Oldest version, as the library counts them: that of the declarations.
const OLDEST: c_int = 22_200;
/// `NCCL_CONFIG_INITIALIZER` of that version: what the struct begins with, and what a field holds that is left to the library.
const MAGIC: u32 = 0xcafe_beef;
const UNSET: c_int = c_int::MIN;
/// Results, which are numbers here: a newer library has ones that an enumeration of this version lacks.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

/// Why NCCL cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NcclError {
    /// It is not there.
    #[error(
        "NCCL is not there, searched {}. Install NCCL 2.22 or newer, or name its directory in LD_LIBRARY_PATH",
        NAMES.join(", ")
    )]
    Missing,
    /// It is older than the declarations.
    #[error("NCCL has version {found}, expected {OLDEST} or more. Install NCCL 2.22 or newer")]
    Old {
        /// Its version.
        found: i32,
    },
    /// The library of that name is another one.
    #[error("{name} is not NCCL: it has no {lacks}. Take its directory out of LD_LIBRARY_PATH")]
    Foreign {
        /// The name that it was found under.
        name: &'static str,
        /// The function that it lacks.
        lacks: &'static str,
    },
    /// A call failed.
    #[error("{call}: {text}")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// What the library says of its result.
        text: String,
    },
}

macro_rules! functions {
    ($($field:ident = $name:ident($($argument:ty),* $(,)?) -> $result:ty;)+) => {
        /// Functions of the library, by their names without `nccl`; `nccl.h` says what they do.
        #[derive(Debug, Clone, Copy)]
        pub struct Nccl {
            $(#[doc = concat!("`", stringify!($name), "`.")] pub $field: unsafe extern "C" fn($($argument),*) -> $result,)+
        }

        impl Nccl {
            fn find(library: &Library, name: &'static str) -> Result<Self, NcclError> {
                Ok(Self { $(
                    // SAFETY: the function has this type in every version from the oldest one on.
                    $field: *unsafe { library.get(stringify!($name).as_bytes()) }
                        .map_err(|_| NcclError::Foreign { name, lacks: stringify!($name) })?,
                )+ })
            }
        }
    };
}

functions! {
    get_version = ncclGetVersion(*mut c_int) -> c_int;
    get_unique_id = ncclGetUniqueId(*mut ncclUniqueId) -> c_int;
    comm_init_rank_config = ncclCommInitRankConfig(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> c_int;
    comm_get_async_error = ncclCommGetAsyncError(ncclComm_t, *mut c_int) -> c_int;
    comm_abort = ncclCommAbort(ncclComm_t) -> c_int;
    all_reduce = ncclAllReduce(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) -> c_int;
    send = ncclSend(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> c_int;
    recv = ncclRecv(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> c_int;
    group_start = ncclGroupStart() -> c_int;
    group_end = ncclGroupEnd() -> c_int;
    get_error_string = ncclGetErrorString(c_int) -> *const c_char;
}

impl Nccl {
    /// The library of this machine. The answer is that of the first question.
    ///
    /// # Errors
    /// If it is not there, too old, or another library.
    pub fn open() -> Result<&'static Self, NcclError> {
        static ANSWER: OnceLock<Result<Nccl, NcclError>> = OnceLock::new();
        ANSWER.get_or_init(Self::look).as_ref().map_err(Clone::clone)
    }

    fn look() -> Result<Self, NcclError> {
        // SAFETY: its constructors run; it is the library that the machine's linker is set up to find.
        let opened = NAMES.iter().find_map(|name| Some((*name, unsafe { Library::new(*name) }.ok()?)));
        let (name, library) = opened.ok_or(NcclError::Missing)?;
        // Its functions are used to the end of the process.
        let found = Self::find(Box::leak(Box::new(library)), name)?;
        let mut version = 0;
        // SAFETY: the pointer is writable.
        found.check("ncclGetVersion", unsafe { (found.get_version)(&raw mut version) })?;
        if version < OLDEST {
            return Err(NcclError::Old { found: version });
        }
        Ok(found)
    }

    /// What a result says that is neither success nor under way.
    ///
    /// # Errors
    /// That.
    pub fn check(&self, call: &'static str, result: c_int) -> Result<(), NcclError> {
        match result {
            SUCCESS | IN_PROGRESS => Ok(()),
            other => {
                // SAFETY: the library gives a static, terminated text for every result.
                let text = unsafe { CStr::from_ptr((self.get_error_string)(other)) };
                Err(NcclError::Call { call, text: text.to_string_lossy().into_owned() })
            }
        }
    }

    /// A new group's name, which every rank joins it by.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn unique_id(&self) -> Result<[u8; 128], NcclError> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: the call fills the name in.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&raw mut id) })?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    /// Begins to join the group `id` of `world` ranks as `rank`, on the device whose context is current, as a communicator whose calls
    /// do not wait.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn join(&self, id: &[u8; 128], rank: c_int, world: c_int) -> Result<ncclComm_t, NcclError> {
        let mut comm = std::ptr::null_mut();
        let mut config = ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: MAGIC,
            version: OLDEST as u32,
            blocking: 0,
            cgaClusterSize: UNSET,
            minCTAs: UNSET,
            maxCTAs: UNSET,
            netName: std::ptr::null(),
            splitShare: UNSET,
        };
        let id = ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        // SAFETY: the arguments live through the call, which copies them; the configuration is that of the version it names.
        let begun = unsafe { (self.comm_init_rank_config)(&raw mut comm, world, id, rank, &raw mut config) };
        self.check("ncclCommInitRankConfig", begun).map(|()| comm)
    }

    /// Whether the library has taken the call that a communicator was last given.
    ///
    /// # Errors
    /// If the call failed.
    ///
    /// # Safety
    /// The communicator is alive.
    pub unsafe fn has_taken(&self, call: &'static str, comm: ncclComm_t) -> Result<bool, NcclError> {
        let mut state = SUCCESS;
        // SAFETY: the caller's contract; the pointer is writable.
        self.check(call, unsafe { (self.comm_get_async_error)(comm, &raw mut state) })?;
        self.check(call, state)?;
        Ok(state == SUCCESS)
    }
}
