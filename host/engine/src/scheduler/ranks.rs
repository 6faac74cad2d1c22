//! Steps of a tensor-parallel group: told to the other ranks, run here, and good only if they were good everywhere.

use super::Scheduler;
use crate::EngineError;
use crate::engine::Incoming;
use crate::forward::Step;
use crate::ranks::{Elsewhere, Leader, StepHead, Steps};
use crate::watch::StepFault;
use crossbeam_channel::Receiver;
use hotseam_abi::ERR_PANIC;
use hotseam_slots::Snapshot;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Code of a request whose group has ended.
const LOST: &str = "E-RANK-001";

/// The other ranks, as the engine thread reaches them.
pub(super) struct Ranks {
    leader: Arc<Leader>,
    steps: Steps,
    /// Why no further step can run.
    lost: Option<String>,
}

impl Ranks {
    /// Waits until all ranks can run steps.
    pub(super) fn of(leader: Arc<Leader>, mut steps: Steps) -> Result<Self, EngineError> {
        steps.wait()?;
        Ok(Self { leader, steps, lost: None })
    }

    /// Tells the other ranks to run a step.
    pub(super) fn begin(&mut self, step: &Step<'_>) -> Result<(), StepFault> {
        let head = StepHead {
            number: step.number,
            table: step.snapshot.number(),
            phase: step.phase,
            looked_at: step.looked_at,
        };
        self.steps.begin(head, step.tokens, step.plan).map_err(|error| self.lose(&error))
    }

    /// What came of a step on all ranks, of which `ran` is this one's part.
    pub(super) fn finish(&mut self, table: &Snapshot, ran: Result<(), StepFault>) -> Result<(), StepFault> {
        if let Err(StepFault::Lost(error)) = &ran {
            return Err(self.lose(error));
        }
        let elsewhere = self.steps.finish();
        match (ran, elsewhere) {
            (_, Err(Elsewhere::Gone(error))) => Err(self.lose(&error)),
            (Err(fault), _) => Err(fault),
            (Ok(()), Ok(())) => Ok(()),
            (Ok(()), Err(Elsewhere::Failed(text))) => Err(StepFault::Device(text)),
            (Ok(()), Err(Elsewhere::Call(error))) => {
                if error.code == ERR_PANIC {
                    table.poison(error.cell);
                }
                Err(StepFault::Call(error))
            }
        }
    }

    /// Notes that the group has ended.
    fn lose(&mut self, error: &dyn std::fmt::Display) -> StepFault {
        let why = self.leader.ended().unwrap_or_else(|| error.to_string());
        tracing::error!("the tensor-parallel group has ended: {why}");
        StepFault::Lost(self.lost.get_or_insert(why).clone())
    }
}

impl Scheduler {
    /// Whether a rank is gone, so that no step can run any more.
    pub(super) fn is_lost(&self) -> bool {
        self.ranks.as_ref().is_some_and(|ranks| ranks.lost.is_some())
    }

    /// Fails every request that is left when the group has ended.
    pub(super) fn end_lost(&mut self, incoming: &Receiver<Incoming>) {
        let Some(why) = self.ranks.as_ref().and_then(|ranks| ranks.lost.clone()) else { return };
        let message = format!("the tensor-parallel group has ended: {why}. Start the server again.");
        for index in (0..self.running.len()).rev() {
            self.running[index].ticket.fail(LOST, &message);
            self.remove(index);
        }
        let late = incoming.try_iter().filter_map(|news| match news {
            Incoming::Request(ticket) => Some(*ticket),
            Incoming::Flush | Incoming::Wake => None,
        });
        let waiting = std::mem::take(&mut self.waiting).into_iter().chain(late);
        waiting.for_each(|ticket| ticket.fail(LOST, &message));
        self.published.waiting.store(0, Ordering::Relaxed);
        self.publish();
    }
}
