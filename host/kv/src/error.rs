//! Errors of the KV store.

/// Why a sequence or step could not get its memory.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KvError {
    /// No pages left.
    #[error("KV pool: {wanted} {what} wanted, {free} free; raise engine.pages or lower engine.max_context")]
    Exhausted {
        /// Pages or rows.
        what: &'static str,
        /// Number asked for.
        wanted: usize,
        /// Number that is free.
        free: usize,
    },
    /// A device has not the memory, or failed.
    #[error("KV pool: {0}")]
    Device(#[from] hotseam_cuda::CudaError),
    /// A saved state does not fit this store.
    #[error("saved KV state has {found} bytes, this store expects {expected}: layouts differ")]
    Saved {
        /// Bytes that the layouts here need.
        expected: usize,
        /// Bytes that were saved.
        found: usize,
    },
}
