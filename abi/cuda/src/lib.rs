//! The CUDA driver as Hotseam uses it: devices, memory, streams, events, modules and graphs, with typed errors; and NCCL
//! ([`nccl`]) and cuBLASLt ([`cublaslt`]).
//!
//! Nothing here is linked against CUDA: the driver's library is opened when it is first asked for, so the same file runs with
//! and without a GPU. Addresses of device memory, contexts and streams are plain `u64`, as they cross the plugin contract.
//!
//! Everything works on the *current* context of the calling thread. [`Device::open`] retains the primary context of a device
//! and makes it current; [`Device::make_current`] does it for a further thread. A plugin opens nothing: the host's context is
//! current in every call but `probe`.

pub mod cublaslt;
mod device;
mod driver;
mod error;
mod graph;
mod memory;
mod module;
pub mod nccl;
mod stream;

pub use device::{Device, Facts, capabilities};
pub use driver::{Version, available, searched};
pub use error::{CudaError, Result};
pub use graph::{Graph, capture};
pub use memory::{
    Buffer, copy_from_device, copy_from_device_on, copy_on_device, copy_to_device, copy_to_device_on, fill,
};
pub use module::{Image, Kernel, Module};
pub use stream::{Event, Stream, synchronize};
