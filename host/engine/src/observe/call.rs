//! The observer and the calls it sees.

use super::handed::Handed;
use super::memory::Memory;
use super::on_host::{HostCopies, OnHost};
use super::places::{Place, places, rows};
use super::scratch::{PoolLayout, Scratch};
use crate::bench::Timer;
use crate::guard::Guard;
use crate::shadow;
use crate::swaps::trial::Trial;
use hotseam_abi::{ERR_INTERNAL, StepCtx};
use hotseam_cuda::CudaError;
use hotseam_slots::{Args, Bound, CallError, CellId, Generation, Phase, StepArgs, StepFn};
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Watches one request. Its methods run on the engine thread, so they hold up every other request; a panic in one fails
/// the observed request only.
pub trait Observer: Send {
    /// A step of the request begins.
    fn step(&mut self, step: Stepping<'_>) {
        let _ = step;
    }

    /// Stands in for a seam call: makes it with [`Call::run`], or writes its outputs in another way.
    ///
    /// # Errors
    /// Fails the request, as an error of the call would.
    fn call(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        call.run()
    }

    /// A hand-off between two stores is done; decode has not begun.
    fn handed(&mut self, moved: &mut [Handed<'_>]) {
        let _ = moved;
    }
}

/// So that the caller can keep a hold of what it hands over.
impl<T: Observer + ?Sized> Observer for Arc<Mutex<T>> {
    fn step(&mut self, step: Stepping<'_>) {
        self.lock().unwrap_or_else(PoisonError::into_inner).step(step);
    }

    fn call(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).call(call)
    }

    fn handed(&mut self, moved: &mut [Handed<'_>]) {
        self.lock().unwrap_or_else(PoisonError::into_inner).handed(moved);
    }
}

/// A step that begins.
#[derive(Debug, Clone, Copy)]
pub struct Stepping<'a> {
    /// Its phase.
    pub phase: Phase,
    /// `[rows]` input tokens.
    pub tokens: &'a [i32],
    /// `[rows]` positions.
    pub positions: &'a [i32],
    /// Number of the prefill chunk; in decode the number of chunks that prefilled the request.
    pub chunk: u32,
}

/// A seam call that is about to be made.
pub struct Call<'a> {
    /// The cell.
    pub cell: CellId,
    /// What serves it.
    pub generation: &'a Arc<Generation>,
    /// Context of the call.
    pub ctx: &'a StepCtx,
    /// Arguments of the call. Its pointers are valid while the call is looked at.
    pub args: Args<'a>,
    /// Rows of the call.
    pub rows: usize,
    /// Where they point, and where the call writes.
    pub memory: Memory,
    copies: Option<&'a HostCopies>,
    run: &'a dyn Fn() -> Result<(), CallError>,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("cell", &self.cell).field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Call<'_> {
    /// Makes the call as the assignment has it, and counts it in the receipts.
    ///
    /// # Errors
    /// The plugin's code and text.
    pub fn run(&self) -> Result<(), CallError> {
        (self.run)()
    }

    /// Positions of the rows; -1 for padding.
    ///
    /// # Errors
    /// If the device failed, under this or under what was enqueued before.
    pub fn positions(&self) -> Result<Vec<i32>, CudaError> {
        // SAFETY: the engine built the arguments and keeps them for the length of the call.
        unsafe { self.memory.read((*self.args.batch()).positions, rows(self.args.batch())) }
    }

    /// Scratch outputs on the call's inputs; entries are written in `layout`, or in that of the call's pool.
    ///
    /// # Errors
    /// If the device failed, or has not the memory.
    pub fn scratch(&self, layout: Option<PoolLayout>) -> Result<Scratch, CudaError> {
        // SAFETY: as in `positions`.
        unsafe { Scratch::new(self.args, self.memory, layout) }
    }

    /// The inputs of this call in host memory: what truth runs on. Weights are not copied.
    ///
    /// # Errors
    /// If the device failed, under this or under what was enqueued before.
    pub fn on_host(&self) -> Result<OnHost<'_>, CudaError> {
        // SAFETY: as in `positions`.
        unsafe { self.changed_on_host(self.args) }
    }

    /// As [`Call::on_host`], of arguments that were changed.
    ///
    /// # Errors
    /// As [`Call::on_host`].
    ///
    /// # Safety
    /// What `args` has of its own is as the contract says, in the call's memory.
    pub unsafe fn changed_on_host<'b>(&self, args: Args<'b>) -> Result<OnHost<'b>, CudaError> {
        // SAFETY: the caller's contract.
        unsafe { OnHost::new(args, self.memory, self.copies) }
    }

    /// Runs the call's op on another generation of the same device with scratch outputs.
    ///
    /// # Errors
    /// The plugin's code and text.
    pub fn invoke(&self, generation: &Arc<Generation>, scratch: &Scratch) -> Result<(), CallError> {
        generation.invoke(self.cell, self.ctx, scratch.args())
    }

    /// Writes the outputs of a scratch of this call in place of its own.
    ///
    /// # Errors
    /// If the device failed.
    pub fn replace(&self, scratch: &Scratch) -> Result<(), CudaError> {
        // SAFETY: as in `positions`; the engine waits for the observer.
        unsafe { scratch.commit(self.args) }
    }

    /// The outputs of the call itself.
    ///
    /// # Errors
    /// If the device failed, under this or under what was enqueued before.
    pub fn places(&self) -> Result<Vec<Place>, CudaError> {
        // SAFETY: as in `positions`.
        unsafe { places(self.args, self.memory) }
    }

    /// The bytes of all outputs of the call itself, in the order of [`Call::places`].
    ///
    /// # Errors
    /// As [`Call::places`].
    pub fn outputs(&self) -> Result<Vec<Vec<u8>>, CudaError> {
        // SAFETY: as in `positions`.
        self.places()?.iter().map(|place| unsafe { place.gather(self.memory) }).collect()
    }

    /// Writes bytes that [`Call::outputs`] of a call with the same rows gave in place of this call's outputs. Returns false,
    /// and writes nothing, if the numbers of bytes differ.
    ///
    /// # Errors
    /// If the device failed.
    pub fn overwrite(&self, outputs: &[Vec<u8>]) -> Result<bool, CudaError> {
        let places = self.places()?;
        let fits = places.len() == outputs.len()
            && places.iter().zip(outputs).all(|(p, bytes)| p.items.len() * p.item_bytes == bytes.len());
        if fits {
            for (place, bytes) in places.iter().zip(outputs) {
                // SAFETY: as in `replace`.
                unsafe { place.scatter(self.memory, bytes)? };
            }
        }
        Ok(fits)
    }

    /// An error of this call that is not the plugin's.
    pub fn error(&self, message: impl Into<String>) -> CallError {
        let variant = self.generation.spec.to_string();
        CallError { cell: self.cell, variant, code: ERR_INTERNAL, message: message.into() }
    }
}

/// The observer of a request.
pub(crate) struct Observed(pub(crate) Box<dyn Observer>);

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observed")
    }
}

/// Who looks at the calls of a step: nobody, as a rule.
#[derive(Clone, Copy, Default)]
pub(crate) struct Probe<'a> {
    /// The observer of the only request of the step.
    pub(crate) observer: Option<&'a RefCell<Observed>>,
    /// The guard, where calls are guarded.
    pub(crate) guard: Option<&'a Guard>,
    /// The swap whose new variants run beside.
    pub(crate) shadow: Option<&'a Trial>,
    /// What times the calls.
    pub(crate) timer: Option<&'a Timer>,
    /// Where the host has the weights of a device, if there is an observer.
    pub(crate) copies: Option<&'a HostCopies>,
}

impl Probe<'_> {
    /// Whether anyone looks at what moves between stores.
    pub(crate) fn is_on(&self) -> bool {
        self.observer.is_some() || self.guard.is_some()
    }

    /// Whether anyone looks at calls, or times them: each is then made, and none is launched as part of a graph.
    pub(crate) fn sees_calls(&self) -> bool {
        self.is_on() || self.shadow.is_some() || self.timer.is_some()
    }

    pub(crate) fn step(&self, step: Stepping<'_>) {
        if let Some(observer) = self.observer {
            // A panic is met again at the first call, where it can fail the request.
            let _ = catch_unwind(AssertUnwindSafe(|| observer.borrow_mut().0.step(step)));
        }
    }

    pub(crate) fn handed(&self, moved: &mut [Handed<'_>]) {
        if let Some(observer) = self.observer {
            let _ = catch_unwind(AssertUnwindSafe(|| observer.borrow_mut().0.handed(moved)));
        }
    }

    /// Makes a call, or hands it to the observer.
    #[inline]
    pub(crate) fn call<A: StepArgs>(
        &self,
        bound: &Bound<StepFn<A>>,
        ctx: &StepCtx,
        args: &A,
        rows: usize,
    ) -> Result<(), CallError> {
        match (self.observer, self.guard, self.shadow) {
            (None, None, None) => match self.timer {
                None => bound.call(ctx, args, rows),
                Some(timer) => {
                    let variant = || bound.generation.spec.to_string();
                    timer.call(bound.cell(), variant, ctx, || bound.call(ctx, args, rows))
                }
            },
            (None, Some(guard), None) => guard.call(bound, ctx, args, rows),
            (None, guard, Some(trial)) => shadow::call(trial, bound, ctx, args, || match guard {
                Some(guard) => guard.call(bound, ctx, args, rows),
                None => bound.call(ctx, args, rows),
            }),
            // An observed request has no shadow.
            (Some(observer), guard, _) => observe(observer, guard, self.copies, bound, ctx, args, rows),
        }
    }
}

#[cold]
fn observe<A: StepArgs>(
    observer: &RefCell<Observed>,
    guard: Option<&Guard>,
    copies: Option<&HostCopies>,
    bound: &Bound<StepFn<A>>,
    ctx: &StepCtx,
    args: &A,
    rows: usize,
) -> Result<(), CallError> {
    let run = || match guard {
        Some(guard) => guard.call(bound, ctx, args, rows),
        None => bound.call(ctx, args, rows),
    };
    let (cell, generation, args) = (bound.cell(), &bound.generation, args.any());
    let memory = Memory::of(args, ctx);
    let call = Call { cell, generation, ctx, args, rows, memory, copies, run: &run };
    catch_unwind(AssertUnwindSafe(|| observer.borrow_mut().0.call(&call)))
        .unwrap_or_else(|_| Err(call.error("the observer of this request panicked")))
}
