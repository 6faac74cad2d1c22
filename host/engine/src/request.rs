//! What a client asks for, and what it hears.

use crossbeam_channel::Receiver;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token; above 0 the logits are divided by it.
    pub temperature: f32,
    /// Samples from the smallest set of tokens whose probability reaches this; 1 samples from all.
    pub top_p: f32,
    /// Start of the random numbers of this request.
    pub seed: u64,
}

impl Sampling {
    /// The most likely token, always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0 };
}

/// Where the two workers of a disaggregated request meet: the router gives both the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bootstrap {
    /// Host of the bootstrap registry, that of the prefill worker.
    pub host: String,
    /// Port of the registry.
    pub port: u16,
    /// `bootstrap_room` of the request: a number that no other running request of these workers has.
    pub room: u64,
    /// On a prefill worker: answer as soon as the prompt is computed and keep its KV until the decode worker asks for it.
    /// Otherwise the prompt is computed once the decode worker has asked, and answered when its KV has arrived there.
    pub hold: bool,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the answer; they are not reported.
    pub stop_tokens: Vec<u32>,
    /// Most likely tokens to report with each token; 0 for none.
    pub logprobs: usize,
    /// Assignment that serves the request.
    pub assignment: String,
    /// Tokens to feed instead of the sampled ones, in order (teacher forcing); generation ends after the last.
    pub forced: Vec<u32>,
    /// Sizes of the first prefill chunks, where they matter; then the engine's own.
    pub chunks: Vec<usize>,
    /// Whether the logits of every row are reported.
    pub tap_logits: bool,
    /// Position of the first prompt token whose probability is reported; `None` for none. The token at position 0 has none.
    /// Costs a row of the head for each token.
    pub prompt_logprobs: Option<usize>,
    /// Whether to start from, and leave behind, a saved state of the same prompt prefilled by the same variants.
    pub reuse_prefill: bool,
    /// Where to meet the other worker; asked for by the roles `prefill` and `decode`, refused by `single`.
    pub disaggregation: Option<Bootstrap>,
}

impl Request {
    /// A greedy request to the assignment `live`.
    pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            max_tokens,
            sampling: Sampling::GREEDY,
            stop_tokens: Vec::new(),
            logprobs: 0,
            assignment: "live".into(),
            forced: Vec::new(),
            chunks: Vec::new(),
            tap_logits: false,
            prompt_logprobs: None,
            reuse_prefill: false,
            disaggregation: None,
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token.
    Stop,
    /// `max_tokens`, or the end of the forced tokens.
    Length,
    /// The client left.
    Cancelled,
}

/// A stop token that ended an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct StopToken {
    /// Its id.
    pub id: u32,
    /// As of a reported token.
    pub logprob: f32,
    /// As of a reported token.
    pub top: Vec<(u32, f32)>,
}

/// What a request hears, in order. The last event is `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A generated token.
    Token {
        /// Its id.
        id: u32,
        /// Natural logarithm of its probability, before temperature.
        logprob: f32,
        /// The most likely tokens with theirs, best first.
        top: Vec<(u32, f32)>,
    },
    /// A token of the prompt, with `prompt_logprobs`; in order of position, before the first generated one.
    Prompt {
        /// Its id.
        id: u32,
        /// Natural logarithm of its probability after the tokens before it.
        logprob: f32,
        /// The most likely tokens at its position with theirs, best first.
        top: Vec<(u32, f32)>,
    },
    /// Logits of one row, with `tap_logits`.
    Logits {
        /// Position of the row.
        position: u32,
        /// `[vocab]`.
        logits: Vec<f32>,
    },
    /// The end.
    Done {
        /// Why.
        reason: FinishReason,
        /// The token behind [`FinishReason::Stop`].
        stop: Option<StopToken>,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens generated, stop token included.
        completion_tokens: usize,
    },
    /// The request failed; others did not.
    Failed {
        /// Stable code.
        code: String,
        /// What failed, for people.
        message: String,
    },
}

/// A running request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Handle {
    pub(crate) events: Receiver<Event>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Handle {
    /// The next event; `None` after the last.
    pub fn recv(&self) -> Option<Event> {
        self.events.recv().ok()
    }

    /// The stream of events, for callers that wait on several.
    pub fn events(&self) -> &Receiver<Event> {
        &self.events
    }

    /// Waits for the end and returns the tokens, or the failure as (code, message).
    pub fn tokens(self) -> Result<Vec<u32>, (String, String)> {
        let mut tokens = Vec::new();
        loop {
            match self.recv() {
                Some(Event::Token { id, .. }) => tokens.push(id),
                Some(Event::Logits { .. } | Event::Prompt { .. }) => {}
                Some(Event::Done { .. }) => return Ok(tokens),
                Some(Event::Failed { code, message }) => return Err((code, message)),
                None => return Err(("E-ENGINE-STOPPED".into(), "the engine stopped".into())),
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}
