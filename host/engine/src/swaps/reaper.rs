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

/// What waits for its end.
struct Pending {
    remains: Remains,
    since: Instant,
    told: bool,
}

fn reap(remains: &Receiver<Remains>, slots: &Slots, log: &Log, published: &Published, patience: Duration) {
    let mut pending: Vec<Pending> = Vec::new();
    loop {
        if pending.is_empty() {
            let Ok(remains) = remains.recv() else { return };
            pending.push(Pending { remains, since: Instant::now(), told: false });
        }
        // All at once: what a later swap leaves may hold what an earlier one waits for.
        let new = remains.try_iter();
        pending.extend(new.map(|remains| Pending { remains, since: Instant::now(), told: false }));
        for Pending { remains, .. } in &mut pending {
            if remains.trial.as_ref().is_none_or(|trial| Arc::strong_count(trial) == 1) {
                remains.trial = None;
                remains.plan = None;
            }
        }
        let holders = slots.reap() + pending.iter().filter(|p| p.remains.trial.is_some()).count();
        let step = published.step.load(Ordering::Relaxed);
        for Pending { remains: Remains { id, assignment, .. }, since, told } in &mut pending {
            let ms = since.elapsed().as_millis() as u64;
            if holders == 0 {
                log.tell(*id, assignment, step, SwapStage::Retired { ms });
            } else if since.elapsed() > patience && !*told {
                *told = true;
                tracing::warn!(id, holders, ms, "E-PLUG-503 replaced generations are still in use");
                log.tell(*id, assignment, step, SwapStage::RetireStuck { holders, ms });
            }
        }
        let released = pending.iter().all(|p| p.remains.trial.is_none());
        if holders == 0 || (released && published.stopped.load(Ordering::Relaxed)) {
            pending.clear();
            continue;
        }
        // Of those that are stuck the last one stands for all.
        let last = pending.len() - 1;
        let mut index = 0;
        pending.retain(|p| {
            index += 1;
            index > last || !p.told || p.remains.trial.is_some()
        });
        std::thread::sleep(PERIOD);
    }
}
