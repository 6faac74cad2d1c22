//! What a target in this process is made of.

use std::any::Any;
use std::path::PathBuf;

use hotseam_config::Oracle;
use hotseam_encoding::Tokenizer;
use hotseam_engine::Engine;
use hotseam_slots::Rule;

use crate::Progress;
use crate::command::Places;

/// An engine that can be reached from outside this process, for oracles that are commands.
pub struct Exposed {
    /// Where.
    pub places: Places,
    /// Dropped when the engine is no longer to be reached.
    pub guard: Box<dyn Any + Send + Sync>,
}

/// Makes an engine reachable; the message says why it cannot.
pub type Expose = Box<dyn Fn(&Engine, &Tokenizer) -> Result<Exposed, String>>;

/// What an [`InProcess`](super::InProcess) target is made of.
pub struct Setup {
    /// A running engine that serves nobody else.
    pub engine: Engine,
    /// Tokenizer of its model.
    pub tokenizer: Tokenizer,
    /// Name and rules of the good end.
    pub good: (String, Vec<Rule>),
    /// Name and rules of the bad end.
    pub bad: (String, Vec<Rule>),
    /// What tells them apart.
    pub oracle: Oracle,
    /// Held-out text.
    pub haystack: Vec<PathBuf>,
    /// Seed of the needles.
    pub seed: u64,
    /// Whether the good end runs at topology `single` and the bad end at `paired`, so that the hand-off is a change. The engine
    /// is that of the bad end.
    pub single_to_paired: bool,
    /// Called as a run proceeds.
    pub progress: Box<dyn FnMut(Progress)>,
    /// Makes an engine reachable for a command; `None` runs commands without an address.
    pub expose: Option<Expose>,
}
