//! What a bisection runs against.
//!
//! A [`Target`] knows the two ends of a bisection, the [`Plan`] of changes between them, and how to judge an [`Arm`]:
//! the good end plus some of those changes. The search itself (`hotseam-bisect`) knows nothing of engines or plugins.
//! [`InProcess`] is the target that owns an engine, [`Endpoints`] one that is a running instance.

mod command;
mod endpoints;
mod error;
mod handoff;
mod in_process;
mod judge;
mod outcome;
mod plan;
mod planning;
mod progress;
pub mod simulated;

pub use command::Places;
pub use endpoints::{Cleaner, Endpoints, EndpointsSetup};
pub use error::TargetError;
pub use handoff::{Damage, Handoff, Moved};
pub use in_process::{Expose, Exposed, InProcess, Setup};
pub use outcome::{Axis, Conformance, Counts, Evidence, HANG, Noise, Outcome, Probe, Suspicion, Verdict};
pub use plan::{Arm, Atom, Change, Class, Delta, Plan, Span};
pub use progress::Progress;

/// Name of the axis and of the change that are about where prefill and decode keep their KV.
pub const TOPOLOGY: &str = "topology";

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

    /// Whether outcomes are verdicts or draws.
    fn noise(&self) -> Noise {
        Noise::Exact
    }

    /// Starts a new launch, such as a fresh engine or server, and returns its id. Targets that have only one launch
    /// return 0.
    ///
    /// # Errors
    /// [`TargetError::Setup`] if it does not come up.
    fn relaunch(&mut self) -> Result<u64, TargetError> {
        Ok(0)
    }

    /// Measures several arms, at the same time if the target can. One answer an arm, in order.
    fn measure_many(&mut self, arms: &[Arm]) -> Vec<Result<Outcome, TargetError>> {
        arms.iter().map(|arm| self.measure(arm)).collect()
    }

    /// Cheap evidence about the changes, at most a few lines each. Asked once, after both ends reproduced.
    ///
    /// # Errors
    /// [`TargetError`] if the evidence cannot be taken.
    fn suspicions(&mut self) -> Result<Vec<Suspicion>, TargetError> {
        Ok(Vec::new())
    }

    /// Audits hand-offs of `arm` from prefill to decode: what each component of the KV brought. `None` if the target
    /// hands nothing over, or cannot audit.
    ///
    /// # Errors
    /// [`TargetError`] if the audit does not come about. A hand-off that is damaged is an answer.
    fn handoff(&mut self, arm: &Arm) -> Result<Option<Handoff>, TargetError> {
        let _ = arm;
        Ok(None)
    }

    /// The settings that can be changed without a patch.
    fn axes(&self) -> Vec<Axis> {
        Vec::new()
    }

    /// Runs the oracle on `arm` with some axes set to other values. What holds for [`Target::measure`] holds here.
    ///
    /// # Errors
    /// [`TargetError::Setup`] if the target has no such axis or value.
    fn measure_axes(&mut self, settings: &[(String, String)], arm: &Arm) -> Result<Outcome, TargetError> {
        let _ = arm;
        let names: Vec<&str> = settings.iter().map(|(name, _)| name.as_str()).collect();
        Err(TargetError::Setup(format!("this target has no axes to change; asked for {}", names.join(", "))))
    }

    /// What a recorded answer depends on besides the arm: configuration, oracle, model, plugins. Answers of targets
    /// with different identities are never mixed.
    fn identity(&self) -> String {
        self.oracle()
    }
}
