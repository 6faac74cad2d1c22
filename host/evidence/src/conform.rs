//! A loaded variant held against the truth.

use hotseam_conformance::{Level, Report, Subject};
use hotseam_loader::LoadError;
use hotseam_slots::Generation;

/// Runs the conformance cases of every op that the variant itself serves; ops of its base are the base's matter.
///
/// They run on an instance of their own: those of `generation` may be in use, and a transport that is registered anew
/// would go on to write into the regions of the cases.
///
/// # Errors
/// [`LoadError::Create`] if the plugin makes no second instance.
pub fn check(generation: &Generation, level: Level) -> Result<Report, LoadError> {
    let known = &generation.instance;
    let instance = known.plugin().create(known.options(), known.info().dim)?;
    let entry = instance.plugin().entry();
    let variant = generation.spec.to_string();
    Ok(hotseam_conformance::check(
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
    ))
}

pub use hotseam_conformance::{CaseResult, Level as CheckLevel, Report as ConformanceReport};
