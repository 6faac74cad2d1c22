//! Zeroed memory. In host memory it costs nothing until it is touched.

use crate::store::Place as Where;
use hotseam_abi::device;
use hotseam_cuda::{Buffer, CudaError, copy_from_device, copy_on_device, copy_to_device};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const ALIGN: usize = 64;

/// A fixed block, aligned to 64 bytes. Its address does not change.
#[derive(Debug)]
pub(crate) struct Memory {
    ptr: *mut u8,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Of the allocator.
    Heap(Layout),
    /// A mapped part of a file of shared memory.
    Shared { len: usize, offset: u64 },
    /// Memory of the device of this number.
    #[allow(dead_code, reason = "the buffer is kept for its memory")]
    Device(Buffer, u32),
}

// SAFETY: a plain owned block.
unsafe impl Send for Memory {}
// SAFETY: the engine thread writes pools, or hands them to plugins for the length of a call. A transport's threads read and
// write the items of its open puts and rooms, which the engine leaves alone meanwhile.
unsafe impl Sync for Memory {}

/// A file of shared memory that blocks are taken from. It only grows, and is sealed against shrinking, so that another process
/// can read its mapping without fear.
#[derive(Debug)]
pub(crate) struct Arena {
    file: OwnedFd,
    len: u64,
}

impl Arena {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a terminated string.
        let fd = unsafe { libc::memfd_create(c"hotseam-kv".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a plain change of an open descriptor.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file, len: 0 })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// `len` zero bytes at the end of the file.
    pub(crate) fn take(&mut self, len: usize) -> io::Result<Memory> {
        /// What every system maps at multiples of.
        const PAGE: usize = 64 << 10;
        let (len, offset) = (len.max(1).next_multiple_of(PAGE), self.len);
        let end = i64::try_from(offset + len as u64).map_err(io::Error::other)?;
        // SAFETY: plain calls on an open descriptor; the mapping is new, at an address of the system's choice.
        let ptr = unsafe {
            if libc::ftruncate(self.fd(), end) < 0 {
                return Err(io::Error::last_os_error());
            }
            let (access, at) = (libc::PROT_READ | libc::PROT_WRITE, offset as i64);
            libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, self.fd(), at)
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.len += len as u64;
        Ok(Memory { ptr: ptr.cast(), place: Place::Shared { len, offset } })
    }
}

/// Where blocks are taken from.
#[derive(Debug)]
pub(crate) enum Source {
    Host,
    Shared(Arena),
    Device(u32),
}

impl Source {
    pub(crate) fn new(place: Where) -> Self {
        match place {
            Where::Host => Self::Host,
            // As for the allocator: without memory for its pools a store cannot be.
            Where::Shared => {
                Self::Shared(Arena::new().unwrap_or_else(|_| handle_alloc_error(Layout::new::<Arena>())))
            }
            Where::Device(ordinal) => Self::Device(ordinal),
        }
    }

    /// The file that blocks lie in, if they do.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        match self {
            Self::Shared(arena) => Some(arena.fd()),
            Self::Host | Self::Device(_) => None,
        }
    }

    /// `len` zero bytes. Large blocks of host memory come straight from the system and are mapped page by page when touched.
    ///
    /// # Errors
    /// If a device has not so much; a host without memory ends the process, as its allocator does.
    pub(crate) fn zeroed(&mut self, len: usize) -> Result<Memory, CudaError> {
        let layout = Layout::from_size_align(len.max(1), ALIGN).expect("pool sizes are far below isize::MAX");
        match self {
            Self::Shared(arena) => Ok(arena.take(len).unwrap_or_else(|_| handle_alloc_error(layout))),
            Self::Device(ordinal) => {
                let buffer = Buffer::zeroed(len, "a KV pool")?;
                Ok(Memory { ptr: buffer.address() as *mut u8, place: Place::Device(buffer, *ordinal) })
            }
            Self::Host => {
                // SAFETY: the layout has a non-zero size.
                let ptr = unsafe { alloc_zeroed(layout) };
                if ptr.is_null() {
                    handle_alloc_error(layout);
                }
                Ok(Memory { ptr, place: Place::Heap(layout) })
            }
        }
    }
}

impl Memory {
    /// Kind and number of the device that it is on, as the contract has them.
    pub(crate) fn device(&self) -> (u32, u32) {
        match self.place {
            Place::Device(_, ordinal) => (device::CUDA, ordinal),
            Place::Heap(_) | Place::Shared { .. } => (device::CPU, 0),
        }
    }

    /// Appends `len` bytes from `offset` on to `to`.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// The bytes are inside, and no call of a plugin writes them meanwhile.
    pub(crate) unsafe fn read(&self, offset: usize, len: usize, to: &mut Vec<u8>) -> Result<(), CudaError> {
        // SAFETY: inside the block by the caller's contract.
        let from = unsafe { self.ptr.add(offset) };
        match self.place {
            Place::Device(..) => {
                let end = to.len();
                to.resize(end + len, 0);
                copy_from_device(&mut to[end..], from as u64)
            }
            _ => {
                // SAFETY: the caller's contract.
                to.extend_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
                Ok(())
            }
        }
    }

    /// Copies `len` bytes from one offset to another that is as far away at least, in order with what a device was told before.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// As for [`Memory::write`].
    pub(crate) unsafe fn copy_within(&self, from: usize, to: usize, len: usize) -> Result<(), CudaError> {
        // SAFETY: inside the block by the caller's contract.
        let (from, to) = unsafe { (self.ptr.add(from), self.ptr.add(to)) };
        match self.place {
            Place::Device(..) => copy_on_device(to as u64, from as u64, len, 0),
            _ => {
                // SAFETY: the caller's contract.
                unsafe { to.copy_from_nonoverlapping(from, len) };
                Ok(())
            }
        }
    }

    /// Writes `bytes` from `offset` on.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// As for [`Memory::read`]; nobody reads them meanwhile.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: inside the block by the caller's contract.
        let to = unsafe { self.ptr.add(offset) };
        match self.place {
            Place::Device(..) => copy_to_device(to as u64, bytes),
            _ => {
                // SAFETY: the caller's contract; the source is a slice of its own.
                unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
        }
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Where it lies in its arena; 0 outside one.
    pub(crate) fn offset(&self) -> u64 {
        match self.place {
            Place::Heap(_) | Place::Device(..) => 0,
            Place::Shared { offset, .. } => offset,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.place {
            Place::Device(..) => {}
            // SAFETY: allocated with the same layout.
            Place::Heap(layout) => unsafe { dealloc(self.ptr, layout) },
            Place::Shared { len, .. } => {
                // SAFETY: mapped with this address and length, and nobody uses it any more.
                unsafe { libc::munmap(self.ptr.cast(), len) };
            }
        }
    }
}
