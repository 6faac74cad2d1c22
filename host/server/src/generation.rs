//! Engine requests of one HTTP request: submitted together, heard together, cancelled together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hotseam_engine::{Event, Request, SubmitError};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::backend::{Backend, Running, Waited};
use crate::choice::{Delta, Finish};
use crate::error::ApiError;
use crate::form::{Form, Usage};
use crate::live::{Live, Presence};

/// How long a forwarding thread sleeps before it looks whether its reader is gone.
const LOOK_UP: Duration = Duration::from_millis(50);
/// Events buffered for a slow client before its forwarding thread waits.
const BUFFER: usize = 64;

/// The running choices of one HTTP request. Dropping it cancels them.
pub(crate) struct Generation {
    form: Box<dyn Form>,
    choices: Vec<Slot>,
    events: mpsc::Receiver<(usize, News)>,
    prompt_tokens: usize,
    /// `kv_transfer_params` of the answer.
    transfer: Option<Value>,
    _permit: OwnedSemaphorePermit,
}

struct Slot {
    choice: crate::choice::Choice,
    /// Tells the forwarding thread that nobody needs more tokens.
    enough: Arc<AtomicBool>,
    _presence: Presence,
}

/// What a forwarding thread tells.
enum News {
    /// Of the engine.
    Heard(Waited),
    /// Somebody asked for the end of this choice.
    Aborted,
}

/// What a generation begins with.
pub(crate) struct Start {
    /// Form of the answer.
    pub(crate) form: Box<dyn Form>,
    /// One for each choice.
    pub(crate) requests: Vec<Request>,
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// `kv_transfer_params` of the answer.
    pub(crate) transfer: Option<Value>,
}

impl Generation {
    /// Submits all requests or none. `limit` bounds the choices that run at one time in this server.
    pub(crate) fn start(
        backend: &dyn Backend,
        start: Start,
        limit: &Arc<Semaphore>,
        live: &Live,
    ) -> Result<Self, ApiError> {
        let Start { form, requests, prompt_tokens, transfer } = start;
        let count = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let permit = limit
            .clone()
            .try_acquire_many_owned(count)
            .map_err(|_| ApiError::busy("too many requests are running; try again later"))?;
        let running: Vec<Box<dyn Running>> = requests
            .into_iter()
            .map(|request| backend.submit(request).map_err(refusal))
            .collect::<Result<_, _>>()?;
        let (sender, events) = mpsc::channel(BUFFER);
        let choices = running
            .into_iter()
            .enumerate()
            .map(|(index, running)| {
                let enough = Arc::new(AtomicBool::new(false));
                let presence = live.enter(form.names(index));
                let (sender, stop, aborted) = (sender.clone(), enough.clone(), presence.aborted.clone());
                // One blocking thread for each choice; `limit` bounds them.
                tokio::task::spawn_blocking(move || forward(index, &*running, &sender, &stop, &aborted));
                Slot { choice: form.new_choice(index), enough, _presence: presence }
            })
            .collect();
        Ok(Self { form, choices, events, prompt_tokens, transfer, _permit: permit })
    }

    pub(crate) fn form(&mut self) -> &mut dyn Form {
        &mut *self.form
    }

    /// The whole answer.
    pub(crate) fn whole(&mut self, choices: Vec<Delta>) -> Value {
        let mut answer = self.form.whole(choices, self.usage());
        if let (Some(transfer), Some(fields)) = (self.transfer.take(), answer.as_object_mut()) {
            fields.insert("kv_transfer_params".to_owned(), transfer);
        }
        answer
    }

    pub(crate) fn choices(&self) -> usize {
        self.choices.len()
    }

    /// Tokens so far.
    pub(crate) fn usage(&self) -> Usage {
        let completion = self.choices.iter().map(|slot| slot.choice.tokens()).sum();
        Usage { prompt: self.prompt_tokens, completion }
    }

    /// The next news: which choice, and what became known of it. `None` when all have ended. May be dropped
    /// and called again without loss.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Delta), ApiError>> {
        loop {
            if self.choices.iter().all(|slot| slot.choice.finished()) {
                return None;
            }
            // Every unfinished choice has a forwarding thread, which ends with an event; without one it panicked.
            let Some((index, news)) = self.events.recv().await else {
                return Some(Err(ApiError::internal("E-SERVER-FORWARD")));
            };
            let slot = &mut self.choices[index];
            if slot.choice.finished() {
                continue;
            }
            let waited = match news {
                News::Heard(waited) => waited,
                News::Aborted => {
                    let tokens = slot.choice.tokens();
                    return Some(Ok((index, slot.choice.end(Finish::Abort, tokens, None))));
                }
            };
            match waited {
                Waited::Event(Event::Token { id, logprob, top }) => match slot.choice.token(id, logprob, top)
                {
                    Ok(delta) => {
                        if delta.finish.is_some() {
                            slot.enough.store(true, Ordering::Relaxed);
                        }
                        return Some(Ok((index, delta)));
                    }
                    Err(error) => {
                        tracing::error!(%error, "the engine generated a token that the tokenizer does not have");
                        return Some(Err(ApiError::internal("E-SERVER-TOKEN")));
                    }
                },
                Waited::Event(Event::Prompt { id, logprob, top }) => {
                    return Some(Ok((index, slot.choice.prompt(id, logprob, top))));
                }
                Waited::Event(Event::Done { reason, stop, completion_tokens, .. }) => {
                    let delta = slot.choice.end(Finish::from_engine(reason), completion_tokens, stop);
                    return Some(Ok((index, delta)));
                }
                Waited::Event(Event::Failed { code, message }) => {
                    tracing::error!(code, message, "request failed in the engine");
                    return Some(Err(ApiError::internal(&code)));
                }
                Waited::Event(Event::Logits { .. }) | Waited::Quiet => {}
                Waited::Gone => {
                    return Some(Err(ApiError::unavailable("engine_stopped", "the engine has stopped")));
                }
            }
        }
    }
}

/// Moves events of one choice into the async world until it ends or nobody listens.
fn forward(
    index: usize,
    running: &dyn Running,
    sender: &mpsc::Sender<(usize, News)>,
    enough: &AtomicBool,
    aborted: &AtomicBool,
) {
    loop {
        let waited = running.wait(LOOK_UP);
        if sender.is_closed() || enough.load(Ordering::Relaxed) {
            return;
        }
        if aborted.load(Ordering::Relaxed) {
            // A reader that has left does not miss it.
            let _ = sender.blocking_send((index, News::Aborted));
            return;
        }
        let last = matches!(waited, Waited::Gone | Waited::Event(Event::Done { .. } | Event::Failed { .. }));
        if waited != Waited::Quiet && sender.blocking_send((index, News::Heard(waited))).is_err() {
            return;
        }
        if last {
            return;
        }
    }
}

/// The engine's refusal as a response.
fn refusal(error: SubmitError) -> ApiError {
    match &error {
        SubmitError::Full(_) => ApiError::busy("the waiting line is full; try again later"),
        SubmitError::Stopped => ApiError::unavailable("engine_stopped", "the engine has stopped"),
        SubmitError::Context { .. } => {
            ApiError::new(warp::http::StatusCode::BAD_REQUEST, "context_length_exceeded", error.to_string())
        }
        SubmitError::Assignment { .. } => {
            ApiError::field("assignment", "unknown_assignment", error.to_string())
        }
        SubmitError::Role { .. } => {
            ApiError::new(warp::http::StatusCode::BAD_REQUEST, "wrong_role", error.to_string())
        }
        SubmitError::EmptyPrompt
        | SubmitError::NoTokens
        | SubmitError::Token { .. }
        | SubmitError::Sampling { .. }
        | SubmitError::ObservedRanks(_)
        | SubmitError::Host { .. } => {
            ApiError::new(warp::http::StatusCode::BAD_REQUEST, "invalid_value", error.to_string())
        }
    }
}
