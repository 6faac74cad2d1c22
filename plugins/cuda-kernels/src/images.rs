//! Machine code of each source of kernels, for each architecture. `build.rs` makes it.

use hotseam_cuda::Image;

include!(concat!(env!("OUT_DIR"), "/images.rs"));
