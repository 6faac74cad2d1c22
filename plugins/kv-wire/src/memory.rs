//! Files of shared memory: how their descriptors go over a Unix socket, and how they are mapped.

use crate::frame::SEGMENTS;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A file that is mapped for reading.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *const u8,
    len: usize,
}

// SAFETY: the mapping is read only and lives as long as the value.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps all of a file that can shrink no more, so that reading it never faults.
    ///
    /// # Errors
    /// If it may shrink, or the system cannot map it.
    pub(crate) fn new(file: &OwnedFd) -> io::Result<Self> {
        // SAFETY: plain queries of an open descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::other("the file is not sealed against shrinking"));
        }
        // SAFETY: zeros are a valid `stat`, which the call fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is writable.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let len = usize::try_from(stat.st_size).unwrap_or(0);
        // SAFETY: a new mapping at an address of the system's choice; nothing else is touched.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), len })
    }

    /// `len` bytes from `offset` on, if all of them are in the file.
    pub(crate) fn at(&self, offset: u64, len: usize) -> Option<*const u8> {
        let offset = usize::try_from(offset).ok()?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: inside the mapping, just checked.
        inside.then(|| unsafe { self.base.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and nobody uses it any more.
        unsafe { libc::munmap(self.base.cast_mut().cast(), self.len) };
    }
}

/// Room for a control message with [`SEGMENTS`] descriptors, aligned as the system wants it.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// Bytes of `n` descriptors.
fn payload(n: usize) -> u32 {
    (n * size_of::<RawFd>()) as u32
}

/// Calls `f` with a message of one byte that has room for the control message of `n` descriptors.
fn with_message<T>(
    byte: &mut u8,
    control: &mut Control,
    n: usize,
    f: impl FnOnce(&mut libc::msghdr) -> T,
) -> T {
    let mut slice = libc::iovec { iov_base: (&raw mut *byte).cast(), iov_len: 1 };
    // SAFETY: zeros are a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut *control).cast();
    // SAFETY: plain arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(payload(n)) } as _;
    debug_assert!(message.msg_controllen as usize <= size_of::<Control>());
    f(&mut message)
}

/// Sends descriptors, at most [`SEGMENTS`], over a Unix socket.
pub(crate) fn send_files(socket: RawFd, files: &[RawFd]) -> io::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let (mut byte, mut control) = (0u8, Control([0; 128]));
    with_message(&mut byte, &mut control, files.len(), |message| {
        // SAFETY: the message has a control buffer with room for one header and `files`, and one byte of data, which all
        // live through the call.
        let sent = unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload(files.len())) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            files.iter().enumerate().for_each(|(i, file)| data.add(i).write_unaligned(*file));
            libc::sendmsg(socket, message, libc::MSG_NOSIGNAL)
        };
        if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

/// Receives the descriptors of one message, `n` of them.
pub(crate) fn receive_files(socket: RawFd, n: usize) -> io::Result<Vec<OwnedFd>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    let (mut byte, mut control) = (0u8, Control([0; 128]));
    with_message(&mut byte, &mut control, SEGMENTS, |message| {
        let mut files = Vec::new();
        // SAFETY: the message's buffers live through the call; what the system says that it wrote is read.
        unsafe {
            if libc::recvmsg(socket, message, libc::MSG_CMSG_CLOEXEC) != 1 {
                return Err(io::Error::other("no descriptors came"));
            }
            let mut header = libc::CMSG_FIRSTHDR(message);
            while !header.is_null() {
                if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let data = libc::CMSG_DATA(header).cast::<RawFd>();
                    let numbers = (0..bytes / size_of::<RawFd>()).map(|i| data.add(i).read_unaligned());
                    files.extend(numbers.map(|number| OwnedFd::from_raw_fd(number)));
                }
                header = libc::CMSG_NXTHDR(message, header);
            }
        }
        match files.len() == n {
            true => Ok(files),
            false => Err(io::Error::other(format!("{} descriptors came, expected {n}", files.len()))),
        }
    })
}
