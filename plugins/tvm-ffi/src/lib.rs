//! Functions of modules that were compiled against TVM-FFI, as plugins call them: on the CPU, or on a stream of a CUDA device.
//!
//! Neither Python nor the package that the runtime comes from is needed: `libtvm_ffi.so` is. The hashes of module and runtime
//! are options of a variant, so that they are part of its hash, and no code runs that the operator did not name.

mod ffi;
mod kernel;
mod library;

pub use ffi::{Any, Element, Place, Tensor};
pub use kernel::{DeviceKernel, Kernel};

/// The two files of a function, as the options of the same names give them.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    /// Absolute path of the compiled module.
    pub module: &'a str,
    /// Its sha256 in lower-case hexadecimal digits.
    pub module_sha256: &'a str,
    /// Absolute path of `libtvm_ffi.so`.
    pub runtime: &'a str,
    /// Its sha256 in lower-case hexadecimal digits.
    pub runtime_sha256: &'a str,
}
