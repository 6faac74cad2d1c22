//! What the public endpoints need of an engine: narrow, so that they are tested without a model.

use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;
use hotseam_engine::{Engine, Event, Handle, PAGE_TOKENS, Request, Role, SubmitError};
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

/// How much an engine has to do and room for, as of its last step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Steps run since the start.
    pub steps: u64,
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that can run at once.
    pub max_running: usize,
    /// Rooms of requests that other workers have a part in.
    pub rooms: usize,
    /// Positions in KV pages that are taken.
    pub used_tokens: usize,
    /// Positions in all KV pages.
    pub total_tokens: usize,
    /// Positions of a KV page.
    pub page_tokens: usize,
    /// Rows of a prefill step, at most.
    pub chunk: usize,
    /// Prompt tokens computed since the start.
    pub prompt_tokens: u64,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
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

    /// What it does of a request.
    fn role(&self) -> Role;

    /// How much it has to do. Must not block.
    fn load(&self) -> Load;

    /// Forgets prefill states that are kept for reuse. False if it cannot any more.
    fn flush(&self) -> bool;

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

    fn role(&self) -> Role {
        self.config().role
    }

    fn load(&self) -> Load {
        let (stats, config) = (self.stats(), self.config());
        Load {
            steps: stats.step,
            running: stats.running,
            waiting: stats.waiting,
            max_running: config.max_seqs,
            rooms: stats.rooms,
            used_tokens: (stats.total_pages - stats.free_pages.min(stats.total_pages)) * PAGE_TOKENS,
            total_tokens: stats.total_pages * PAGE_TOKENS,
            page_tokens: PAGE_TOKENS,
            chunk: config.chunk,
            prompt_tokens: stats.prompt_tokens,
            generated_tokens: stats.generated_tokens,
        }
    }

    fn flush(&self) -> bool {
        self.flush_prefixes()
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
