//! What a bisection runs against.
//!
//! A [`Target`] knows the two ends of a bisection, the [`Plan`] of changes between them, and how to judge an [`Arm`]:
//! the good end plus some of those changes. The search itself (`hotseam-bisect`) knows nothing of engines or plugins.
//! [`InProcess`] is the target that owns an engine.

mod error;
mod in_process;
mod outcome;
mod plan;

pub use error::TargetError;
pub use in_process::{InProcess, Progress, Setup};
pub use outcome::{Conformance, Outcome, Verdict};
pub use plan::{Arm, Atom, Change, Class, Delta, Plan, Span};

/// Something whose changes can be switched on and off, and measured.
pub trait Target {
    /// The changes between the ends. Fixed for the life of the target.
    fn plan(&self) -> &Plan;

    /// Identity of what `arm` runs: equal digests are the same code and options in every cell, so one measurement
    /// stands for both.
    ///
    /// # Errors
    /// [`TargetError::Arm`] if the arm is not a valid assignment.
    fn digest(&mut self, arm: &Arm) -> Result<String, TargetError>;

    /// Runs the oracle on `arm`. The empty arm, the good end, must be measured first: it sets the bar.
    ///
    /// # Errors
    /// [`TargetError`] if no verdict came about. A run in which the model fails is a verdict, [`Verdict::Bad`].
    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError>;

    /// The atoms whose cells were not called when the bad end was measured; none, if that run did not come to its end.
    fn not_run(&self) -> Arm;

    /// Checks one variant against the truth.
    ///
    /// # Errors
    /// [`TargetError`] if the variant cannot be made; a failed check is an answer, not an error.
    fn conformance(&mut self, variant: &str) -> Result<Conformance, TargetError>;

    /// One line that names the oracle and its bar.
    fn oracle(&self) -> String;
}
