//! Memory without a name that several processes map.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// A mapping, which ends with this.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory; who uses it sees to the order of writes and reads.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `bytes` zeros, and the file that others map them by.
    pub(crate) fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        // SAFETY: the name ends with a zero; the result is checked.
        let number = unsafe { libc::memfd_create(c"hotseam-ranks".as_ptr(), libc::MFD_CLOEXEC) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the number was just opened, and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        std::fs::File::from(fd.try_clone()?).set_len(bytes as u64)?;
        Ok((Self::map(&fd, bytes)?, fd))
    }

    /// The whole of a file that somebody created.
    pub(crate) fn open(fd: OwnedFd, least: usize) -> io::Result<Self> {
        let bytes = std::fs::File::from(fd.try_clone()?).metadata()?.len() as usize;
        if bytes < least {
            let message = format!("{bytes} bytes, expected at least {least}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Self::map(&fd, bytes)
    }

    fn map(fd: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of an open file at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd.as_raw_fd(), 0) };
        match start == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(Self { start: start.cast(), bytes }),
        }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with these, and nothing of it is lent out beyond this.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}
