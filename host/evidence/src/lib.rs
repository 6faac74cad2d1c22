//! Measurements of an engine: what ran, whether a variant conforms, whether a fact is recalled, how far two
//! assignments diverge.
//!
//! * [`trace`] reads the receipts of a snapshot.
//! * [`capture`] stores one call in a file, and makes it again from there.
//! * [`compare`] runs two assignments and truth on the same inputs, call by call.
//! * [`conform`] holds a variant against the truth.
//! * [`determinism`] makes the same call again and again and compares the bits.
//! * [`needle`] hides a fact in a long text and asks for it.
//! * [`why`] explains one lost needle.
//! * [`divergence`] compares the next-token distributions of two assignments on held-out text.
//! * [`guard`] tells which call broke the contract.
//! * [`graft`] puts values of a good run into a bad one.
//! * [`perplexity`], [`exact`] and [`repeat`] ask for the likelihood of text, for equal answers and for equal bits.

mod ask;
pub mod capture;
pub mod compare;
pub mod conform;
pub mod determinism;
pub mod divergence;
mod error;
pub mod exact;
mod finite;
pub mod graft;
pub mod guard;
pub mod haystack;
pub mod kv_map;
mod logits;
pub mod model;
pub mod needle;
pub mod perplexity;
mod random;
pub mod repeat;
pub mod trace;
pub mod why;

pub use ask::RequestFailure;
pub use error::EvidenceError;
