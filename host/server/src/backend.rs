//! What the public endpoints need of an engine: narrow, so that they are tested without a model.

use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;
use hotseam_engine::{Engine, Event, Handle, Request, SubmitError};
use hotseam_pd::Registry;

/// The model as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name in requests and responses.
    pub id: String,
    /// Unix time at which it was loaded.
    pub created: u64,
    /// Tokens of prompt and completion together, at most.
    pub max_context: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
}

/// Runs requests.
pub trait Backend: Send + Sync + 'static {
    /// Takes a request.
    ///
    /// # Errors
    /// Those of [`hotseam_engine::Engine::submit`]; nothing has run then.
    fn submit(&self, request: Request) -> Result<Box<dyn Running>, SubmitError>;

    /// Names what the assignment `name` runs now, for `system_fingerprint`; `None` if requests may not choose it.
    /// Must not block: it is asked for each request.
    fn fingerprint(&self, name: &str) -> Option<String>;

    /// Names of the assignments that requests may choose, sorted.
    fn assignments(&self) -> Vec<String>;

    /// False once no request can run any more.
    fn alive(&self) -> bool;

    /// The bootstrap registry of a prefill worker, which is served beside the other endpoints; `None` for other workers.
    fn registry(&self) -> Option<&Registry> {
        None
    }
}

/// A running request; dropping it cancels the request.
pub trait Running: Send {
    /// Blocks until an event comes, for `patience` at most.
    fn wait(&self, patience: Duration) -> Waited;
}

/// Result of [`Running::wait`].
#[derive(Debug, Clone, PartialEq)]
pub enum Waited {
    /// An event.
    Event(Event),
    /// Nothing yet.
    Quiet,
    /// The engine dropped the request without a last event.
    Gone,
}

impl Backend for Engine {
    fn submit(&self, request: Request) -> Result<Box<dyn Running>, SubmitError> {
        Ok(Box::new(Engine::submit(self, request)?))
    }

    fn fingerprint(&self, name: &str) -> Option<String> {
        // Equal digests run equal code with equal options in every cell.
        self.slots().snapshot(name).map(|snapshot| format!("fp_{:.16}", snapshot.digest().to_string()))
    }

    fn assignments(&self) -> Vec<String> {
        self.slots().names()
    }

    fn alive(&self) -> bool {
        self.is_running()
    }

    fn registry(&self) -> Option<&Registry> {
        Engine::registry(self).map(|registry| &**registry)
    }
}

impl Running for Handle {
    fn wait(&self, patience: Duration) -> Waited {
        match self.events().recv_timeout(patience) {
            Ok(event) => Waited::Event(event),
            Err(RecvTimeoutError::Timeout) => Waited::Quiet,
            Err(RecvTimeoutError::Disconnected) => Waited::Gone,
        }
    }
}
