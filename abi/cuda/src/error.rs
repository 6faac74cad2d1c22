//! What can go wrong, with a next step.

use crate::driver::Version;
use cudarc::driver::sys::{CUresult, cuGetErrorName, cuGetErrorString};
use std::ffi::CStr;

/// A failure of the driver or of what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver.
    #[error(
        "no CUDA driver: none of {} is installed or in LD_LIBRARY_PATH. Install the NVIDIA driver, or choose variants that \
         run on the CPU.",
        searched.join(", ")
    )]
    NoDriver {
        /// Names of the library that were tried, in order.
        searched: Vec<String>,
    },
    /// The library is there, and is not a driver.
    #[error(
        "{path} is no working CUDA driver: {what}. A stub of a toolkit found before the driver does this: take its directory \
         out of LD_LIBRARY_PATH."
    )]
    NotADriver {
        /// The file that was opened.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// The driver is older than the kernels.
    #[error(
        "the driver {path} is for CUDA {found}, CUDA {needed} or later is needed. Install a newer driver."
    )]
    OldDriver {
        /// The file that was opened.
        path: String,
        /// Its version.
        found: Version,
        /// The oldest version that will do.
        needed: Version,
    },
    /// There is no device of that number.
    #[error(
        "there is no CUDA device {ordinal}: the driver has {count}. Look at nvidia-smi and at CUDA_VISIBLE_DEVICES."
    )]
    NoDevice {
        /// Number asked for, from 0.
        ordinal: u32,
        /// Number of devices.
        count: u32,
    },
    /// The device has too little free memory.
    #[error(
        "out of device memory: {what} takes {wanted} bytes, {free} of {total} are free. Lower the number of pages or the \
         rows of a step, or see `hotseam checkpoint plan`."
    )]
    Memory {
        /// What it was for.
        what: String,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes free.
        free: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// No image of a module is for the device.
    #[error(
        "there are kernels for {}, the device is sm_{found}. Choose a variant that is built for it.",
        list(have)
    )]
    NoImage {
        /// Compute capabilities there are kernels for.
        have: Vec<u32>,
        /// That of the device.
        found: u32,
    },
    /// A call failed.
    #[error("{call} failed with code {code} ({name}: {text})")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// Number of the error.
        code: u32,
        /// Name of the error.
        name: String,
        /// The driver's text for it.
        text: String,
    },
    /// A kernel is not in its module.
    #[error("the module has no kernel `{name}`: host and kernels are of different builds. Rebuild both.")]
    NoKernel {
        /// Its name.
        name: String,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, CudaError>;

fn list(sm: &[u32]) -> String {
    sm.iter().map(|sm| format!("sm_{sm}")).collect::<Vec<_>>().join(", ")
}

/// The error of a call, if it failed.
pub(crate) fn check(call: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver is loaded, since it gave the code; it sets the pointer to a static text or leaves it null.
        unsafe {
            get(code, &raw mut text);
            if text.is_null() {
                String::from("?")
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        }
    };
    Err(CudaError::Call { call, code: code as u32, name: text(cuGetErrorName), text: text(cuGetErrorString) })
}
