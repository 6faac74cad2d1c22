//! `hotseam plugin probe`: the child that tries a plugin.

use hotseam_evidence::conform::{self, CheckLevel};
use hotseam_loader::probe::{Conformance, answer};

/// Answers the request on stdin. The instance goes through the quick cases of conformance: what takes a process down in a
/// step, takes down this one.
pub(super) fn run() -> u8 {
    answer(|instance| match conform::check_instance(instance.plugin().name(), instance, CheckLevel::Quick) {
        Ok(report) => Conformance {
            cases: report.cases.len(),
            failed: report.failures().count(),
            first: report.failures().next().map(ToString::to_string),
        },
        Err(error) => Conformance { cases: 1, failed: 1, first: Some(error.to_string()) },
    })
}
