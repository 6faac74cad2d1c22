//! The observer and the calls it sees.

use super::handed::Handed;
use super::places::{Place, places};
use super::scratch::{PoolLayout, Scratch};
use crate::bench::Timer;
use crate::guard::Guard;
use crate::shadow;
use crate::swaps::trial::Trial;
use hotseam_abi::{ERR_INTERNAL, StepCtx};
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

    /// Scratch outputs on the call's inputs; entries are written in `layout`, or in that of the call's pool.
    pub fn scratch(&self, layout: Option<PoolLayout>) -> Scratch {
        // SAFETY: the engine built the arguments and keeps them for the length of the call.
        unsafe { Scratch::new(self.args, layout) }
    }

    /// Runs the call's op on another generation with scratch outputs.
    ///
    /// # Errors
    /// The plugin's code and text.
    pub fn invoke(&self, generation: &Arc<Generation>, scratch: &Scratch) -> Result<(), CallError> {
        generation.invoke(self.cell, self.ctx, scratch.args())
    }

    /// Writes the outputs of a scratch of this call in place of its own.
    pub fn replace(&self, scratch: &Scratch) {
        // SAFETY: as in `scratch`; the engine waits for the observer.
        unsafe { scratch.commit(self.args) }
    }

    /// The outputs of the call itself.
    pub fn places(&self) -> Vec<Place> {
        // SAFETY: as in `scratch`.
        unsafe { places(self.args) }
    }

    /// The bytes of all outputs of the call itself, in the order of [`Call::places`].
    pub fn outputs(&self) -> Vec<Vec<u8>> {
        // SAFETY: as in `scratch`.
        self.places().iter().map(|place| unsafe { place.gather() }).collect()
    }

    /// Writes bytes that [`Call::outputs`] of a call with the same rows gave in place of this call's outputs. Returns false,
    /// and writes nothing, if the numbers of bytes differ.
    pub fn overwrite(&self, outputs: &[Vec<u8>]) -> bool {
        let places = self.places();
        let fits = places.len() == outputs.len()
            && places.iter().zip(outputs).all(|(p, bytes)| p.items.len() * p.item_bytes == bytes.len());
        if fits {
            // SAFETY: as in `replace`.
            places.iter().zip(outputs).for_each(|(place, bytes)| unsafe { place.scatter(bytes) });
        }
        fits
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
#[derive(Clone, Copy)]
pub(crate) struct Probe<'a> {
    /// The observer of the only request of the step.
    pub(crate) observer: Option<&'a RefCell<Observed>>,
    /// The guard, where calls are guarded.
    pub(crate) guard: Option<&'a Guard>,
    /// The swap whose new variants run beside.
    pub(crate) shadow: Option<&'a Trial>,
    /// What times the calls.
    pub(crate) timer: Option<&'a Timer>,
}

impl Probe<'_> {
    /// Whether anyone looks.
    pub(crate) fn is_on(&self) -> bool {
        self.observer.is_some() || self.guard.is_some()
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
            (Some(observer), guard, _) => observe(observer, guard, bound, ctx, args, rows),
        }
    }
}

#[cold]
fn observe<A: StepArgs>(
    observer: &RefCell<Observed>,
    guard: Option<&Guard>,
    bound: &Bound<StepFn<A>>,
    ctx: &StepCtx,
    args: &A,
    rows: usize,
) -> Result<(), CallError> {
    let run = || match guard {
        Some(guard) => guard.call(bound, ctx, args, rows),
        None => bound.call(ctx, args, rows),
    };
    let call =
        Call { cell: bound.cell(), generation: &bound.generation, ctx, args: args.any(), rows, run: &run };
    catch_unwind(AssertUnwindSafe(|| observer.borrow_mut().0.call(&call)))
        .unwrap_or_else(|_| Err(call.error("the observer of this request panicked")))
}
