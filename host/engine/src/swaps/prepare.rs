//! Plan and conformance of a swap, beside the step loop.

use crossbeam_channel::{SendError, Sender, unbounded};
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

/// The thread that prepares. One serves all swaps, since an allocator keeps what a thread has freed, whole plugin files
/// among it, for that thread.
#[derive(Default)]
pub(super) struct Preparer(Option<Sender<Task>>);

pub(super) type Task = Box<dyn FnOnce() + Send>;

impl Preparer {
    /// Runs a task on it, beside the caller.
    pub(super) fn run(&mut self, task: Task) -> std::io::Result<()> {
        let task = match &self.0 {
            None => task,
            Some(tasks) => match tasks.send(task) {
                Ok(()) => return Ok(()),
                // It has panicked.
                Err(SendError(task)) => task,
            },
        };
        let (tasks, queue) = unbounded::<Task>();
        std::thread::Builder::new().name("swap-prepare".into()).spawn(move || {
            be_nice();
            queue.into_iter().for_each(|task| task());
        })?;
        self.0 = Some(tasks);
        self.run(task)
    }

    /// Leaves it to itself: it hangs. The next task gets another.
    pub(super) fn give_up(&mut self) {
        self.0 = None;
    }
}

/// Gives this thread the lowest priority. It cannot be raised again, so the thread must be its own.
fn be_nice() {
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
                 `--check off` if it is meant to differ.",
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
