//! Finds the change that broke a model.
//!
//! [`run`] verifies both ends of a [`Target`](hotseam_target::Target), drops the changes that never ran, orders the
//! rest by suspicion, searches for the smallest failing prefix, narrows it to layers, and confirms that the culprit is
//! sufficient (the good end with it fails) and necessary (the bad end without it passes). The [`Report`] says what was
//! found, what is exonerated and why, and what stays open.
//!
//! The oracle is taken to be exact: one run is one verdict. Cheap evidence (conformance) orders the search and never
//! clears a change; only "same code", "did not run" and "passes with it" do.

mod event;
mod log;
pub mod report;
mod search;

pub use event::{Event, Observer, Trial};
pub use log::JsonLog;
pub use report::{Report, Word};
pub use search::{Options, expected_runs, run};
