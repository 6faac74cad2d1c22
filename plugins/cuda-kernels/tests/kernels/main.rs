//! The kernels against plain loops, on device 0: a GPU, or the emulated one of `scripts/cuda-emulator`.

mod dense;
mod indexer;
mod kit;
mod mhc;
mod moe;
mod ops;
mod sampling;
