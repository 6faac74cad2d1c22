//! The guard: every seam call is made on outputs of its own, poisoned and between red zones, and is checked before the
//! host takes them over. So the seam that writes wrongly is named, not the one that trips over it later, and no other
//! request's memory is harmed. For finding faults, not for serving: it copies what a call reads and writes.
//!
//! Checked are: writes past an output or to an entry or state row that is not the call's; values that were not
//! written; numbers that are not finite; ids out of range, twice or missing; gates and weights out of bounds; inputs
//! that were changed; and that a KV hand-off delivers the bytes that were sent.

mod check;
mod inputs;
mod report;

pub use report::{GuardReport, Violation, ViolationKind};

use crate::observe::{Handed, Memory, Place, Scratch};
use check::Finding;
use hotseam_abi::{ERR_INTERNAL, StepCtx, component};
use hotseam_cuda::CudaError;
use hotseam_slots::{Bound, CallError, CellId, Generation, StepArgs, StepFn, TransportCell};
use report::Log;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// The engine thread's side of the guard.
#[derive(Debug)]
pub(crate) struct Guard {
    log: Arc<Log>,
    /// The last cell that passed.
    last: Cell<Option<CellId>>,
    /// What failed the running step.
    found: RefCell<Option<Violation>>,
}

/// What anyone may read.
pub(crate) type GuardLog = Arc<Log>;

impl Guard {
    pub(crate) fn new(log: GuardLog) -> Self {
        log.turn_on();
        Self { log, last: Cell::new(None), found: RefCell::new(None) }
    }

    /// The violation that failed a step, once.
    pub(crate) fn take(&self) -> Option<Violation> {
        self.found.take()
    }

    /// Makes a call under guard.
    ///
    /// # Errors
    /// The plugin's own, or a violation, which [`Guard::take`] then has in full.
    pub(crate) fn call<A: StepArgs>(
        &self,
        bound: &Bound<StepFn<A>>,
        ctx: &StepCtx,
        args: &A,
        rows: usize,
    ) -> Result<(), CallError> {
        self.log.count_call();
        let any = args.any();
        let memory = Memory::of(any, ctx);
        // On a device every reading waits for what came before, so a failure below is this call's, or of the host's own work
        // before it.
        let failed = |error: CudaError| CallError {
            cell: bound.cell(),
            variant: bound.generation.spec.to_string(),
            code: ERR_INTERNAL,
            message: format!("the device failed under guard: {error}"),
        };
        // SAFETY: the engine built the arguments and keeps them for the length of the call.
        let inputs = unsafe { inputs::inputs(any, memory) }.map_err(failed)?;
        // SAFETY: as above.
        let before = inputs.iter().map(|place| unsafe { place.gather(memory) });
        let before = before.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        if let Some(finding) = check::inputs(&inputs, &before, self.last.get()) {
            return Err(self.violated(bound.cell(), &bound.generation, ctx, finding));
        }
        // SAFETY: as above; the scratch is dropped before the arguments are.
        let scratch = unsafe { Scratch::strict(any, memory) }.map_err(failed)?;
        let own = A::of(scratch.args());
        let ran = match own {
            Some(own) => bound.call(ctx, own, rows),
            None => unreachable!("a scratch has the arguments of the call that it is for"),
        };
        let changed = restore(&inputs, &before, memory);
        ran?;
        // An input that was changed explains everything else, so it comes first; then writes outside, which explain
        // what is missing inside.
        let finding = match changed.map_err(failed)? {
            Some(finding) => Some(finding),
            None => match scratch.stray().map_err(failed)? {
                Some(stray) => Some(Finding::stray(stray)),
                // SAFETY: the arguments are valid, and nothing but the call has written the scratch.
                None => unsafe { check::outputs(any, &scratch, bound.capabilities) }.map_err(failed)?,
            },
        };
        if let Some(finding) = finding {
            return Err(self.violated(bound.cell(), &bound.generation, ctx, finding));
        }
        // SAFETY: as above; the engine waits for the call.
        unsafe { scratch.commit(any) }.map_err(failed)?;
        self.last.set(Some(bound.cell()));
        Ok(())
    }

    /// Compares what a hand-off delivered with what was sent.
    pub(crate) fn handed(&self, cell: &TransportCell, moved: &mut [Handed<'_>]) -> Option<Violation> {
        for handed in moved {
            for item in 0..handed.len() {
                let (sent, received) = (handed.sent(item), handed.received(item));
                let Some(byte) = (0..sent.len()).find(|i| sent[*i] != received[*i]) else { continue };
                let differing = sent.iter().zip(&received).filter(|(a, b)| a != b).count();
                let finding = Finding {
                    kind: ViolationKind::Transfer,
                    argument: component::NAMES[handed.component as usize],
                    place: format!("item {item}, byte {byte}"),
                    detail: format!("{differing} of {} bytes are not those that were sent", sent.len()),
                };
                let layer = Some(handed.layer);
                let violation = self.violation(cell.put.cell(), &cell.put.generation, layer, 0, finding);
                self.log.push(violation.clone());
                return Some(violation);
            }
        }
        None
    }

    fn violation(
        &self,
        cell: CellId,
        generation: &Generation,
        layer: Option<u32>,
        step: u64,
        finding: Finding,
    ) -> Violation {
        Violation {
            cell,
            layer,
            variant: generation.spec.to_string(),
            hash: generation.hash.clone(),
            kind: finding.kind,
            argument: finding.argument.to_owned(),
            place: finding.place,
            detail: finding.detail,
            step,
        }
    }

    #[cold]
    fn violated(&self, cell: CellId, generation: &Generation, ctx: &StepCtx, finding: Finding) -> CallError {
        let violation = self.violation(cell, generation, cell.layer, ctx.step, finding);
        let message = violation.to_string();
        self.log.push(violation.clone());
        self.found.replace(Some(violation));
        CallError { cell, variant: generation.spec.to_string(), code: ERR_INTERNAL, message }
    }
}

/// Puts inputs back that the call changed, and names the first.
fn restore(inputs: &[Place], before: &[Vec<u8>], memory: Memory) -> Result<Option<Finding>, CudaError> {
    let mut found = None;
    for (place, before) in inputs.iter().zip(before) {
        // SAFETY: the arguments are still valid and the call is over, or all of it is on its stream.
        let after = unsafe { place.gather(memory)? };
        if let Some(at) = (0..before.len()).find(|i| before[*i] != after[*i]) {
            found.get_or_insert_with(|| Finding {
                kind: ViolationKind::InputChanged,
                argument: place.name,
                place: check::locate(place, at),
                detail: "the call changed its input".to_owned(),
            });
            // SAFETY: as above.
            unsafe { place.scatter(memory, before)? };
        }
    }
    Ok(found)
}
