//! Measurements of an engine: what ran, whether a variant conforms, whether a fact is recalled, how far two
//! assignments diverge.
//!
//! * [`trace`] reads the receipts of a snapshot.
//! * [`conform`] holds a variant against the truth.
//! * [`needle`] hides a fact in a long text and asks for it.
//! * [`divergence`] compares the next-token distributions of two assignments on held-out text.

mod ask;
pub mod conform;
pub mod divergence;
mod error;
pub mod haystack;
pub mod needle;
mod random;
pub mod trace;

pub use ask::RequestFailure;
pub use error::EvidenceError;
