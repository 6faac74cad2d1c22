//! Finds the change that broke a model.
//!
//! [`run`] verifies both ends of a [`Target`](hotseam_target::Target), drops the changes that never ran, orders the
//! rest by suspicion, searches for the smallest failing prefix, narrows it to layers, and confirms that the culprit is
//! sufficient (the good end with it fails) and necessary (the bad end without it passes). The [`Report`] says what was
//! found, what is exonerated and why, and what stays open.
//!
//! If the oracle is exact, one run is one verdict, and the suspects are halved. If it is noisy, a run is a number of
//! draws: the failure rates of both ends are learnt along the way, launch by launch, beliefs about the suspects are
//! updated after each run, and a claim is made once it has the probability that was asked for and was confirmed both
//! ways. If the good end fails too, other settings are tried in place of a patch.
//!
//! Cheap evidence (conformance, suspicions) orders the search and never clears a change; only "same code", "did not
//! run", "passes with it" and, after many draws, "improbable" do.

mod event;
pub mod log;
pub mod report;
mod search;

pub use event::{Belief, Event, Observer, Posterior, Progress, Trial};
pub use report::{Report, Word};
pub use search::{Options, Strategy, expected_runs, run};
