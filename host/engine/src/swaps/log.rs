//! Records of swaps, and who listens to them.

use super::SwapError;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use hotseam_slots::{SwapEvent, SwapRecord, SwapStage};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Swaps that are remembered.
const RECORDS: usize = 64;
/// Events that a listener may lag behind before it loses some.
const LAG: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Log {
    inner: Mutex<Inner>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    running: Option<u64>,
    /// Whether nobody runs swaps any more.
    closed: bool,
    records: VecDeque<SwapRecord>,
    listeners: Vec<Sender<SwapEvent>>,
}

pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Log {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a swap, unless one runs or nobody would run it.
    pub(super) fn begin(&self, assignment: &str, who: &str, change: String) -> Result<u64, SwapError> {
        let mut inner = self.inner();
        if inner.closed {
            return Err(SwapError::Stopped);
        }
        if let Some(running) = inner.running {
            return Err(SwapError::Busy { running });
        }
        inner.next += 1;
        let id = inner.next;
        inner.running = Some(id);
        if inner.records.len() == RECORDS {
            inner.records.pop_front();
        }
        inner.records.push_back(SwapRecord {
            id,
            assignment: assignment.to_owned(),
            who: who.to_owned(),
            change,
            began_ms: now_ms(),
            hashes: Vec::new(),
            stage: None,
            end: None,
        });
        Ok(id)
    }

    /// Lets no swap begin any more, and refuses one that has begun.
    pub(super) fn close(&self, step: u64) {
        self.inner().closed = true;
        if let Some(SwapRecord { id, assignment, .. }) = self.running() {
            let message = SwapError::Stopped.to_string();
            self.tell(id, &assignment, step, SwapStage::Refused { code: None, message });
        }
    }

    /// Notes which generations a swap brings in.
    pub(super) fn planned(&self, id: u64, hashes: Vec<String>) {
        if let Some(record) = self.inner().records.iter_mut().find(|r| r.id == id) {
            record.hashes = hashes;
        }
    }

    /// Notes a stage and tells everyone who listens. Whoever lags too far behind loses events, whoever has left is
    /// forgotten.
    pub(super) fn tell(&self, id: u64, assignment: &str, step: u64, stage: SwapStage) {
        let mut inner = self.inner();
        let mut ended = false;
        if let Some(record) = inner.records.iter_mut().find(|r| r.id == id) {
            // What becomes of old generations is no stage of the swap.
            if record.end.is_none() || stage.is_end() {
                record.stage = Some(stage.clone());
            }
            if stage.is_end() {
                record.end = Some(stage.clone());
                ended = true;
            }
        }
        if ended && inner.running == Some(id) {
            inner.running = None;
        }
        let event = SwapEvent { id, assignment: assignment.to_owned(), at_ms: now_ms(), step, stage };
        tracing::info!(id, assignment, step, stage = ?event.stage, "swap");
        inner.listeners.retain(|listener| {
            !matches!(listener.try_send(event.clone()), Err(TrySendError::Disconnected(_)))
        });
        drop(inner);
        if ended {
            self.ended.notify_all();
        }
    }

    pub(super) fn subscribe(&self) -> Receiver<SwapEvent> {
        let (sender, receiver) = bounded(LAG);
        self.inner().listeners.push(sender);
        receiver
    }

    pub(super) fn records(&self) -> Vec<SwapRecord> {
        self.inner().records.iter().cloned().collect()
    }

    pub(super) fn record(&self, id: u64) -> Option<SwapRecord> {
        self.inner().records.iter().find(|r| r.id == id).cloned()
    }

    /// The last swap of an assignment that was kept.
    pub(super) fn last_kept(&self, assignment: &str) -> Option<u64> {
        let kept =
            |r: &&SwapRecord| r.assignment == assignment && matches!(r.end, Some(SwapStage::Kept { .. }));
        self.inner().records.iter().rev().find(kept).map(|r| r.id)
    }

    pub(super) fn running(&self) -> Option<SwapRecord> {
        let inner = self.inner();
        inner.running.and_then(|id| inner.records.iter().find(|r| r.id == id).cloned())
    }

    /// Waits for the end of a swap; `None` if it is not known (any more).
    pub(super) fn wait(&self, id: u64) -> Option<SwapRecord> {
        let mut inner = self.inner();
        loop {
            let record = inner.records.iter().find(|r| r.id == id)?;
            if record.end.is_some() {
                return Some(record.clone());
            }
            inner = self.ended.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
