//! A loaded variant held against the truth.

use hotseam_conformance::{Level, Report, Subject};
use hotseam_slots::Generation;

/// Runs the conformance cases of every op that the variant itself serves; ops of its base are the base's matter.
///
/// Nothing else may call the instance meanwhile.
pub fn check(generation: &Generation, level: Level) -> Report {
    let instance = &generation.instance;
    let entry = instance.plugin().entry();
    let variant = generation.spec.to_string();
    hotseam_conformance::check(
        &Subject {
            variant: &variant,
            seam: entry.seam,
            this: instance.this(),
            attention: entry.attention,
            indexer: entry.indexer,
            moe: entry.moe,
            mhc: entry.mhc,
            kv_transport: entry.kv_transport,
            info: *instance.info(),
            host: hotseam_loader::host_services(),
            take_error: hotseam_loader::take_error,
        },
        level,
    )
}

pub use hotseam_conformance::{CaseResult, Level as CheckLevel, Report as ConformanceReport};
