//! CUDA kernels of the stock and patched variants. Sources are in `cuda/`, one file a module; `build.rs` compiles them with
//! NVRTC to machine code for sm_90 and sm_120, which a plugin carries, so that its content hash covers its kernels.
//!
//! Sources are written by `cuda/kernel.cuh`, so that the same kernels run on a CPU under `tests/cuda-emulator`.

pub mod attention;
pub mod faulty;
pub mod images;
pub mod indexer;
pub mod mhc;
pub mod moe;
pub mod ops;

mod compress;
mod gemm;
mod pools;
mod stream;
mod workspace;

use hotseam_cuda::CudaError;
pub use hotseam_sdk::Error;

/// What a plugin reports when the driver refuses.
fn failed(e: CudaError) -> Error {
    Error::internal(e.to_string())
}
