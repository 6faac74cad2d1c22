//! Plan and conformance of a swap, beside the step loop.

use hotseam_slots::{Change, CheckDepth, Slots, SlotsError, SwapPlan, SwapRequest, SwapStage, Verdicts};
use std::time::Instant;

/// Why a swap was refused before it was tried.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: Option<u16>,
    pub(super) message: String,
}

impl From<SlotsError> for Refusal {
    fn from(error: SlotsError) -> Self {
        Self { code: error.code(), message: error.to_string() }
    }
}

/// Gives this thread the lowest priority. It cannot be raised again, so the thread must be its own.
pub(super) fn be_nice() {
    // SAFETY: the call reads its arguments only; 0 is the calling thread.
    let failed = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) } != 0;
    if failed {
        tracing::debug!("preparation runs at normal priority: setpriority was refused");
    }
}

/// Loads and creates what the request names, and holds the new generations against the truth. `tell` hears of each stage.
pub(super) fn prepare(
    slots: &Slots,
    verdicts: &Verdicts,
    request: &SwapRequest,
    tell: &dyn Fn(SwapStage),
) -> Result<SwapPlan, Refusal> {
    let start = Instant::now();
    let plan = hotseam_loader::without_pool(|| slots.plan(&request.assignment, &request.change))?;
    if plan.changes.is_empty() {
        return Ok(plan);
    }
    let (cells, layouts, ms) = (plan.changes.len(), plan.layouts.len(), start.elapsed().as_millis() as u64);
    tell(SwapStage::Planned { cells, layouts, ms });
    // What is gone back to has served before.
    if request.policy.conformance == CheckDepth::Off || request.change == Change::Back {
        return Ok(plan);
    }
    for generation in plan.generations() {
        let start = Instant::now();
        let depth = request.policy.conformance;
        let (verdict, cached) = verdicts.of(&generation, slots.registry().geometry(), depth)?;
        let variant = generation.spec.to_string();
        if let Some(failure) = verdict.failure {
            let remembered = if cached { " (remembered)" } else { "" };
            let message = format!(
                "E-PLUG-304 {variant}: conformance failed{remembered}: {failure}. hash {}. Correct the plugin, or swap with \
                 conformance `off` if it is meant to differ.",
                generation.hash
            );
            return Err(Refusal { code: Some(304), message });
        }
        let ms = start.elapsed().as_millis() as u64;
        let (hash, cases) = (generation.hash.clone(), verdict.cases);
        tell(SwapStage::Conformed { variant, hash, cached, cases, ms });
    }
    Ok(plan)
}
