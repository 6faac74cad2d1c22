//! A function of a TVM-FFI module, and the runtime that it reports errors to.

use crate::Files;
use crate::ffi::{Any, GetVersion, MoveError, Place, Release, SafeCall, SetStream, VERSION, error_text};
use crate::library::Library;
use hotseam_sdk::{Error, Result};
use std::ffi::{CString, c_void};

/// A function that can be called.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    call: SafeCall,
    move_error: MoveError,
    release: Release,
    runtime: Library,
}

/// A function whose kernels are enqueued on a stream of a CUDA device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceKernel {
    kernel: Kernel,
    set_stream: SetStream,
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
    /// Maps runtime and module, in this order, and finds `function`.
    ///
    /// # Errors
    /// If a path is empty or relative, or names a file of another content; if a symbol is missing, the runtime has another version,
    /// or the module is not for this runtime.
    pub fn load(files: &Files<'_>, function: &str) -> Result<Self> {
        for (name, value) in [("module", files.module), ("runtime", files.runtime)] {
            if value.is_empty() {
                return Err(Error::unsupported(format!("option {name} is empty, expected an absolute path")));
            }
        }
        let runtime = Library::open("runtime", files.runtime, files.runtime_sha256)?;
        let module = Library::open("module", files.module, files.module_sha256)?;
        Self::find(runtime, &module, function)
    }

    fn find(runtime: Library, module: &Library, function: &str) -> Result<Self> {
        let get_version = symbol(&runtime, "the runtime", "TVMFFIGetVersion")?;
        let move_error = symbol(&runtime, "the runtime", "TVMFFIErrorMoveFromRaised")?;
        let release = symbol(&runtime, "the runtime", "TVMFFIObjectDecRef")?;
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
                runtime,
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
    pub unsafe fn call(&self, args: &[Any]) -> Result<()> {
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

impl DeviceKernel {
    /// As [`Kernel::load`], for a function that asks the runtime for the stream of its tensors' device.
    ///
    /// # Errors
    /// As [`Kernel::load`].
    pub fn load(files: &Files<'_>, function: &str) -> Result<Self> {
        let kernel = Kernel::load(files, function)?;
        let set_stream = symbol(&kernel.runtime, "the runtime", "TVMFFIEnvSetStream")?;
        // SAFETY: the symbol has this type in this version.
        let set_stream = unsafe { std::mem::transmute::<*mut c_void, SetStream>(set_stream) };
        Ok(Self { kernel, set_stream })
    }

    /// Calls the function, whose kernels go to `stream` of the CUDA device `ordinal`.
    ///
    /// # Errors
    /// As [`Kernel::call`].
    ///
    /// # Safety
    /// As [`Kernel::call`]; the device's context is current, and the stream is one of it.
    pub unsafe fn call(&self, ordinal: u32, stream: u64, args: &[Any]) -> Result<()> {
        let (kind, id) = Place::Cuda(ordinal).device();
        // SAFETY: the stream is a number to the runtime; what it was before is not wanted, since each call names its own.
        let code = unsafe { (self.set_stream)(kind, id, stream as *mut c_void, std::ptr::null_mut()) };
        if code != 0 {
            return Err(Error::internal(self.kernel.raised(code)));
        }
        // SAFETY: the caller's contract.
        unsafe { self.kernel.call(args) }
    }
}
