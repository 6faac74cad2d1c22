//! A function of a TVM-FFI module, and the runtime that it reports errors to.

use crate::ffi::{Any, GetVersion, MoveError, Release, SafeCall, VERSION, error_text};
use crate::library::Library;
use hotseam_sdk::{Error, Result};
use std::ffi::{CString, c_void};

/// A function that can be called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    call: SafeCall,
    move_error: MoveError,
    release: Release,
}

/// A symbol that is there.
fn symbol(library: &Library, what: &str, name: &str) -> Result<*mut c_void> {
    let text = CString::new(name).map_err(|_| Error::unsupported(format!("`{name}` is no symbol")))?;
    match library.symbol(&text) {
        symbol if symbol.is_null() => Err(Error::unsupported(format!("{what} has no symbol `{name}`"))),
        symbol => Ok(symbol),
    }
}

impl Kernel {
    /// Finds `function` in `module`, and what a call needs in `runtime`.
    ///
    /// # Errors
    /// If a symbol is missing or the runtime has another version.
    pub(crate) fn new(runtime: &Library, module: &Library, function: &str) -> Result<Self> {
        let get_version = symbol(runtime, "the runtime", "TVMFFIGetVersion")?;
        let move_error = symbol(runtime, "the runtime", "TVMFFIErrorMoveFromRaised")?;
        let release = symbol(runtime, "the runtime", "TVMFFIObjectDecRef")?;
        let call = symbol(module, "the module", &format!("__tvm_ffi_{function}"))?;
        let mut version = [0; 3];
        // SAFETY: this function has the same type in all versions.
        unsafe { std::mem::transmute::<*mut c_void, GetVersion>(get_version)(&mut version) };
        let (major, minor) = VERSION;
        if version[..2] != [major, minor] {
            return Err(Error::unsupported(format!(
                "the runtime is TVM-FFI {}.{}.{}, expected {major}.{minor}.x",
                version[0], version[1], version[2]
            )));
        }
        // The module raises errors in the runtime that it is linked to, whose symbols its handle finds too.
        if module.symbol(c"TVMFFIErrorMoveFromRaised") != move_error {
            return Err(Error::unsupported(
                "the module is not linked to this runtime; name the one it was built with",
            ));
        }
        // SAFETY: the symbols have these types in this version.
        unsafe {
            Ok(Self {
                call: std::mem::transmute::<*mut c_void, SafeCall>(call),
                move_error: std::mem::transmute::<*mut c_void, MoveError>(move_error),
                release: std::mem::transmute::<*mut c_void, Release>(release),
            })
        }
    }

    /// Calls the function.
    ///
    /// # Errors
    /// Kind and message of what it raised.
    ///
    /// # Safety
    /// The arguments are alive, and are what the function's author expects of their memory.
    pub(crate) unsafe fn call(&self, args: &[Any]) -> Result<()> {
        let mut result = Any::NONE;
        // SAFETY: the caller's contract; exported functions take no handle.
        let code =
            unsafe { (self.call)(std::ptr::null_mut(), args.as_ptr(), args.len() as i32, &mut result) };
        if code == 0 {
            if let Some(object) = result.object() {
                // SAFETY: the result belongs to the caller, and is not used any more.
                unsafe { (self.release)(object) };
            }
            return Ok(());
        }
        Err(Error::internal(self.raised(code)))
    }

    #[cold]
    fn raised(&self, code: i32) -> String {
        let mut error = std::ptr::null_mut();
        // SAFETY: gives the error of this thread, which then belongs to the caller, or null.
        unsafe {
            (self.move_error)(&mut error);
            if error.is_null() {
                return format!("the kernel returned {code} and raised nothing");
            }
            let text = error_text(error);
            (self.release)(error);
            text
        }
    }
}
