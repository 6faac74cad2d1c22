//! Shared libraries whose bytes are checked before any of their code runs, and stay the bytes that were checked.

use hotseam_sdk::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// A mapped library. It stays mapped: code that may be on some stack is never unloaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Library(*mut c_void);

// SAFETY: a handle of the dynamic linker may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Maps the file at `path` if its content has this hash; content that was mapped before is not mapped again.
    ///
    /// The file is read once. What is hashed goes into sealed memory, and that is what is mapped, so a file that changes
    /// after the check is not seen.
    ///
    /// # Errors
    /// If the path is relative, the file cannot be read, its hash is another, or the dynamic linker refuses it.
    pub(crate) fn open(what: &str, path: &str, sha256: &str) -> Result<Self> {
        if !Path::new(path).is_absolute() {
            return Err(Error::unsupported(format!(
                "option {what}: expected an absolute path, found `{path}`"
            )));
        }
        let bytes =
            std::fs::read(path).map_err(|e| Error::unsupported(format!("option {what}: {path}: {e}")))?;
        let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if found != sha256 {
            return Err(Error::unsupported(format!(
                "{path}: its sha256 is {found}, option {what}_sha256 says `{sha256}`; check the file, then change the option"
            )));
        }
        static MAPPED: OnceLock<Mutex<HashMap<String, Library>>> = OnceLock::new();
        let mut mapped = MAPPED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = mapped.get(&found) {
            return Ok(*library);
        }
        let library = map(&bytes).map_err(|e| Error::unsupported(format!("{path}: {e}")))?;
        mapped.insert(found, library);
        Ok(library)
    }

    /// A symbol, or null.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is live, the name is terminated.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

/// Maps bytes as a library.
fn map(bytes: &[u8]) -> std::result::Result<Library, String> {
    let sealed = || -> std::io::Result<File> {
        // SAFETY: the name is terminated.
        let fd = unsafe {
            libc::memfd_create(c"hotseam-kernel".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(bytes)?;
        let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: a descriptor that is open, and takes seals.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(file),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    let file = sealed().map_err(|e| format!("it cannot be staged: {e}"))?;
    let name = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|e| e.to_string())?;
    // SAFETY: the constructors of the library run here; its bytes are those that the operator named by hash.
    let handle =
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
    if handle.is_null() {
        // SAFETY: the text is valid until the next call of the linker on this thread.
        let text = unsafe { libc::dlerror() };
        return Err(match text.is_null() {
            true => "the dynamic linker gives no reason".to_owned(),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        });
    }
    // The linker knows libraries by name, so the name must not be used again: the descriptor stays open.
    let _ = file.into_raw_fd();
    Ok(Library(handle))
}
