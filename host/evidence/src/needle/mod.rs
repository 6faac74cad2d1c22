//! The needle sweep: one fact hidden at a depth of a long text, then asked for.
//!
//! Form of a prompt: `<BOS><User>`, held-out sentences with ` The secret word of Lisbon is tiger.` among them,
//! ` What is the secret word of Lisbon?`, `<Assistant></think>`. The expected greedy answer is
//! `The secret word of Lisbon is tiger.`; a probe is a hit if the answer contains the word. No pair of a
//! name and a word of the lists was told in the training of the embedded checkpoint. [`Task`] has the other forms.

mod plan;
mod prompt;
mod report;
mod sweep;
mod words;

pub use plan::{NEEDLES, NeedlePlan, Probe, TURNS, Task, depths};
pub use report::{LengthRecall, NeedleReport, ProbeResult};
pub use sweep::{Sweep, run, run_on};
