//! Ends replaced generations on a thread of its own, since ending may take long.

use super::log::Log;
use super::trial::Trial;
use crate::engine::Published;
use crossbeam_channel::{Receiver, Sender, unbounded};
use hotseam_slots::{Slots, SwapPlan, SwapStage};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often it looks.
const PERIOD: Duration = Duration::from_millis(20);

/// What a swap leaves behind.
pub(super) struct Remains {
    pub(super) id: u64,
    pub(super) assignment: String,
    /// Held here so that what it holds does not end on the engine thread.
    pub(super) trial: Option<Arc<Trial>>,
    pub(super) plan: Option<Box<SwapPlan>>,
}

pub(super) fn start(
    slots: Arc<Slots>,
    log: Arc<Log>,
    published: Arc<Published>,
    patience: Duration,
) -> std::io::Result<Sender<Remains>> {
    let (sender, receiver) = unbounded();
    std::thread::Builder::new()
        .name("reaper".into())
        .spawn(move || reap(&receiver, &slots, &log, &published, patience))?;
    Ok(sender)
}

fn reap(remains: &Receiver<Remains>, slots: &Slots, log: &Log, published: &Published, patience: Duration) {
    for Remains { id, assignment, trial, plan } in remains {
        let start = Instant::now();
        let mut trial = trial;
        let mut plan = plan;
        let mut told = false;
        loop {
            if trial.as_ref().is_none_or(|trial| Arc::strong_count(trial) == 1) {
                trial = None;
                plan = None;
            }
            let holders = slots.reap() + usize::from(trial.is_some());
            let ms = start.elapsed().as_millis() as u64;
            let step = published.step.load(Ordering::Relaxed);
            if holders == 0 {
                log.tell(id, &assignment, step, SwapStage::Retired { ms });
                break;
            }
            if start.elapsed() > patience && !told {
                told = true;
                tracing::warn!(id, holders, ms, "E-PLUG-503 replaced generations are still in use");
                log.tell(id, &assignment, step, SwapStage::RetireStuck { holders, ms });
            }
            // A later swap brings its own remains; what is left here is reaped with them.
            if told && !remains.is_empty() {
                break;
            }
            if published.stopped.load(Ordering::Relaxed) && plan.is_none() {
                break;
            }
            std::thread::sleep(PERIOD);
        }
    }
}
