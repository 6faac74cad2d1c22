//! A loaded variant held against the truth, and timed.

use hotseam_conformance::{DeviceMemory, Level, Report, Subject};
use hotseam_loader::{Instance, LoadError};
use hotseam_slots::{Generation, device_memory};
use std::time::Duration;

pub use hotseam_conformance::{
    CaseResult, Level as CheckLevel, Op as TimedOp, Report as ConformanceReport, Timing,
};
pub use hotseam_slots::check_conformance as check;

/// An instance as the cases call it.
fn subject<'a>(variant: &'a str, instance: &Instance, device: Option<&'a DeviceMemory>) -> Subject<'a> {
    let entry = instance.plugin().entry();
    Subject {
        variant,
        seam: entry.seam,
        this: instance.this(),
        attention: entry.attention,
        indexer: entry.indexer,
        moe: entry.moe,
        mhc: entry.mhc,
        kv_transport: entry.kv_transport,
        info: *instance.info(),
        device,
        host: hotseam_loader::host_services(),
        take_error: hotseam_loader::take_error,
    }
}

/// As [`check`], on an instance that nobody else uses.
///
/// # Errors
/// [`LoadError::Device`] if its device has no room for the cases.
pub fn check_instance(variant: &str, instance: &Instance, level: Level) -> Result<Report, LoadError> {
    let memory = device_memory(instance)?;
    Ok(hotseam_conformance::check(&subject(variant, instance, memory.as_ref()), level))
}

/// Why a variant was not timed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// It makes no instance of its own for the cases, or its device has no room for them.
    #[error(transparent)]
    Create(#[from] LoadError),
    /// A call failed.
    #[error("{0}. Run `hotseam plugin check` on it.")]
    Call(String),
}

/// Times the ops that the first of `generations` serves, or one of them, for `time` a case; see
/// [`hotseam_conformance::bench()`]. The cases run on instances of their own.
///
/// # Errors
/// [`BenchError`] of the first instance or call that fails.
pub fn bench(
    generations: &[&Generation],
    op: Option<TimedOp>,
    time: Duration,
) -> Result<Vec<Timing>, BenchError> {
    let own = |g: &&Generation| g.instance.plugin().create(g.instance.options(), g.instance.shape());
    let instances = generations.iter().map(own).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = generations.iter().map(|g| g.spec.to_string()).collect();
    let memories = instances.iter().map(device_memory).collect::<Result<Vec<_>, _>>()?;
    let subjects: Vec<_> = (instances.iter().zip(&names).zip(&memories))
        .map(|((instance, name), memory)| subject(name, instance, memory.as_ref()))
        .collect();
    hotseam_conformance::bench(&subjects, op, time).map_err(BenchError::Call)
}
