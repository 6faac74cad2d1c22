//! One request while it waits or runs.

use crate::observe::Observed;
use crate::request::{Event, FinishReason, Request, StopToken};
use crate::sampler::{Chosen, Draw, NotFinite, Sampler, logprob_of, most_likely};
use crossbeam_channel::Sender;
use hotseam_kv::{LayerLayout, SeqKv};
use hotseam_slots::Digest;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A request and the way back to its client.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) request: Request,
    pub(crate) events: Sender<Event>,
    pub(crate) cancelled: Arc<AtomicBool>,
    /// Who looks at its calls; its steps are then run alone.
    pub(crate) observer: Option<Observed>,
    /// Where it stood when it was sent back to prefill.
    pub(crate) resume: Option<Box<Resume>>,
    /// When it came.
    pub(crate) since: Instant,
    /// When a prefill worker first said that its room is to be asked for again.
    pub(crate) again: Option<Instant>,
}

/// What a request keeps that loses its KV.
#[derive(Debug)]
pub(crate) struct Resume {
    answer: Vec<u32>,
    generated: usize,
    tapped: usize,
    sampler: Sampler,
}

impl Ticket {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Reports a failure. A client that has left does not hear it.
    pub(crate) fn fail(&self, code: &str, message: impl Into<String>) {
        let _ = self.events.send(Event::Failed { code: code.into(), message: message.into() });
    }

    /// `bootstrap_room`, if another worker has a part in the request.
    pub(crate) fn room(&self) -> Option<u64> {
        self.request.disaggregation.as_ref().map(|bootstrap| bootstrap.room)
    }

    /// Positions that the request can come to hold.
    pub(crate) fn tokens(&self) -> usize {
        self.request.prompt.len() + self.request.max_tokens
    }
}

/// Where a running request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its KV is in the prefill store; `done` prompt tokens are in it.
    Prefill {
        /// Prompt tokens processed.
        done: usize,
        /// Chunks processed.
        chunk: u32,
    },
    /// Its prompt is complete and its KV goes to a decode worker.
    Sending,
    /// Its KV comes from a prefill worker.
    Receiving,
    /// Its KV is in the decode store; `next` is the token to feed.
    Decode {
        /// Token of the next row.
        next: u32,
        /// Chunks that prefilled it.
        chunk: u32,
    },
}

/// Which variants wrote the KV of a running request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Writers {
    /// No chunk yet.
    None,
    /// One prefill assignment, by digest, wrote all of it.
    One(Digest),
    /// A swap came between two chunks.
    Mixed,
}

/// A running request.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) ticket: Ticket,
    pub(crate) kv: SeqKv,
    pub(crate) layouts: Arc<[LayerLayout]>,
    pub(crate) stage: Stage,
    pub(crate) writers: Writers,
    /// Name of the assignment that serves it.
    pub(crate) assignment: Arc<str>,
    /// Turn of the engine in which it last decoded.
    pub(crate) turn: u64,
    sampler: Sampler,
    generated: usize,
    /// Tokens of the answer, the one that is to be fed next included.
    answer: Vec<u32>,
    /// How many of them are prefilled with the prompt.
    refill: usize,
    /// Positions whose logits the client has already.
    tapped: usize,
}

/// Requests that may share a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    assignment: Arc<str>,
    /// Address of the cancel flag of the only request, if it is observed.
    alone: Option<usize>,
}

/// Code and text of a request whose logits mean nothing.
pub(crate) const NOT_FINITE: (&str, &str) =
    ("E-STEP-502", "the model's logits are not finite numbers; see `hotseam trace` for what ran");

/// A token that was chosen and not yet reported.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Picked {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    /// The most likely tokens with theirs, as many as the client wants.
    pub(crate) top: Vec<(u32, f32)>,
}

/// What a step says of the row that a token is chosen from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Last<'a> {
    /// Its logits, for the host's sampler.
    Logits(&'a [f32]),
    /// The token that a device chose by [`Sequence::draw`].
    Chosen(Result<Chosen, NotFinite>),
}

/// What follows from a row of logits.
pub(crate) enum Next {
    /// Feed this token.
    Feed(u32),
    /// The request has ended, and its client knows.
    Ended,
}

impl Sequence {
    pub(crate) fn new(mut ticket: Ticket, kv: SeqKv, layouts: Arc<[LayerLayout]>) -> Self {
        let resume = ticket.resume.take().map(|resume| *resume).unwrap_or_else(|| Resume {
            answer: Vec::with_capacity(ticket.request.max_tokens),
            generated: 0,
            tapped: 0,
            sampler: Sampler::new(ticket.request.sampling),
        });
        let stage = Stage::Prefill { done: 0, chunk: 0 };
        let assignment = ticket.request.assignment.as_str().into();
        Self {
            ticket,
            kv,
            layouts,
            stage,
            writers: Writers::None,
            assignment,
            turn: 0,
            sampler: resume.sampler,
            generated: resume.generated,
            refill: resume.answer.len(),
            answer: resume.answer,
            tapped: resume.tapped,
        }
    }

    /// Turns it back into a request that waits and will go on where it is now. The KV is the caller's to close.
    pub(crate) fn into_ticket(self) -> (Ticket, SeqKv) {
        let tapped = self.tapped.max(self.kv.len());
        let Self { mut ticket, kv, answer, generated, sampler, .. } = self;
        ticket.resume = Some(Box::new(Resume { answer, generated, tapped, sampler }));
        (ticket, kv)
    }

    /// Whether it prefills for another time.
    pub(crate) fn is_resumed(&self) -> bool {
        self.refill > 0
    }

    /// Tokens that prefill has to process.
    pub(crate) fn to_prefill(&self) -> usize {
        self.ticket.request.prompt.len() + self.refill
    }

    /// The token at a position of those.
    pub(crate) fn source(&self, position: usize) -> u32 {
        let prompt = &self.ticket.request.prompt;
        prompt.get(position).copied().unwrap_or_else(|| self.answer[position - prompt.len()])
    }

    /// The requests that may share a step with it: of the same assignment and not observed, or it alone.
    pub(crate) fn group(&self) -> Group {
        Group { assignment: Arc::clone(&self.assignment), alone: self.alone() }
    }

    /// Whether it may be in a step of `group`.
    pub(crate) fn belongs(&self, group: &Group) -> bool {
        *self.assignment == *group.assignment && self.alone() == group.alone
    }

    fn alone(&self) -> Option<usize> {
        self.ticket.observer.as_ref().map(|_| Arc::as_ptr(&self.ticket.cancelled).addr())
    }

    /// Rows that the next prefill step may take, of at most `room`; a whole chunk has `full` rows.
    pub(crate) fn prefill_rows(&self, room: usize, full: usize) -> usize {
        let Stage::Prefill { done, chunk } = self.stage else { return 0 };
        let left = self.to_prefill() - done;
        let request = &self.ticket.request;
        let size = match request.chunks.get(chunk as usize) {
            Some(size) => Some(*size),
            // Saved states are known by their chunks, so these must not depend on who else is in the step.
            None => request.reuse_prefill.then_some(full),
        };
        match size.map(|size| size.min(left)) {
            // A chunk of a given size is taken whole or not in this step.
            Some(size) if size > room => 0,
            Some(size) => size,
            None => left.min(room),
        }
    }

    /// Notes that the prefill assignment `digest` wrote a chunk.
    pub(crate) fn written_by(&mut self, digest: Digest) {
        match &self.writers {
            Writers::None => self.writers = Writers::One(digest),
            Writers::One(before) if *before != digest => self.writers = Writers::Mixed,
            Writers::One(_) | Writers::Mixed => {}
        }
    }

    /// First position of a prefill whose logits are wanted for more than the choice of a token; `end` for none.
    pub(crate) fn wanted_from(&self, end: usize) -> usize {
        match (self.ticket.request.tap_logits, self.ticket.request.prompt_logprobs) {
            (true, _) => 0,
            // A row tells of the token after it.
            (false, Some(start)) => start.saturating_sub(1),
            (false, None) => end,
        }
    }

    /// Reports what the client wants to know of a row: its logits, or what they say of the prompt's next token. A send
    /// fails only when the client has left.
    pub(crate) fn tell(&self, position: i32, logits: &[f32]) {
        let at = position as usize;
        if at < self.tapped {
            return;
        }
        let request = &self.ticket.request;
        if request.tap_logits {
            let _ =
                self.ticket.events.send(Event::Logits { position: position as u32, logits: logits.to_vec() });
        }
        let wanted = request.prompt_logprobs.is_some_and(|start| at + 1 >= start);
        if let (true, Some(id)) = (wanted, request.prompt.get(at + 1)) {
            let _ = self.ticket.events.send(Event::Prompt {
                id: *id,
                logprob: logprob_of(logits, *id),
                top: most_likely(logits, request.logprobs),
            });
        }
    }

    /// The next token, by what is known of the last row; `None` if its logits are not finite.
    pub(crate) fn pick(&mut self, last: Last<'_>) -> Option<Picked> {
        let request = &self.ticket.request;
        let logits = match last {
            Last::Logits(logits) => logits,
            Last::Chosen(chosen) => {
                self.sampler.skip();
                return chosen.ok().map(|Chosen { id, logprob }| Picked { id, logprob, top: Vec::new() });
            }
        };
        let chosen = self.sampler.choose(logits).ok()?;
        let (id, logprob) = match request.forced.get(self.generated) {
            Some(forced) => (*forced, logprob_of(logits, *forced)),
            None => (chosen.id, chosen.logprob),
        };
        Some(Picked { id, logprob, top: most_likely(logits, request.logprobs) })
    }

    /// What the next token is drawn by, if nothing but the token is wanted of its logits.
    pub(crate) fn draw(&self) -> Option<Draw> {
        let request = &self.ticket.request;
        let more = request.tap_logits
            || request.logprobs > 0
            || request.prompt_logprobs.is_some()
            || !request.forced.is_empty()
            || self.ticket.observer.is_some();
        (!more).then(|| self.sampler.next())
    }

    /// Goes on as if the sampler had chosen a token here, which another worker did.
    pub(crate) fn skip_choice(&mut self) {
        self.sampler.skip();
    }

    /// Chooses the next token by what is known of the last row, and reports it.
    pub(crate) fn accept(&mut self, last: Last<'_>) -> Next {
        match self.pick(last) {
            Some(picked) => self.take(picked),
            None => {
                self.ticket.fail(NOT_FINITE.0, NOT_FINITE.1);
                Next::Ended
            }
        }
    }

    /// Reports a chosen token.
    pub(crate) fn take(&mut self, picked: Picked) -> Next {
        let (request, id) = (&self.ticket.request, picked.id);
        self.generated += 1;
        if request.forced.is_empty() && request.stop_tokens.contains(&id) {
            let Picked { logprob, top, .. } = picked;
            self.end(FinishReason::Stop, Some(StopToken { id, logprob, top }));
            return Next::Ended;
        }
        self.answer.push(id);
        let token = Event::Token { id, logprob: picked.logprob, top: picked.top };
        if self.ticket.events.send(token).is_err() {
            return Next::Ended;
        }
        if self.generated == request.max_tokens
            || (!request.forced.is_empty() && self.generated == request.forced.len())
        {
            self.finish(FinishReason::Length);
            return Next::Ended;
        }
        Next::Feed(id)
    }

    pub(crate) fn finish(&self, reason: FinishReason) {
        self.end(reason, None);
    }

    fn end(&self, reason: FinishReason, stop: Option<StopToken>) {
        let (prompt_tokens, completion_tokens) = (self.ticket.request.prompt.len(), self.generated);
        let _ = self.ticket.events.send(Event::Done { reason, stop, prompt_tokens, completion_tokens });
    }
}
