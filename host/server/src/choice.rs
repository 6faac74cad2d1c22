//! One choice of an answer: engine events to text.

use hotseam_encoding::{Control, Detokenizer, EncodingError, StopMatcher, Tokenizer};
use hotseam_engine::FinishReason;

/// Why a choice ended, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// A stop token or a stop string.
    Stop,
    /// The limit of tokens.
    Length,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }

    /// The engine's reason; a cancelled request has no reader left, so its name does not matter.
    pub(crate) fn from_engine(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop | FinishReason::Cancelled => Self::Stop,
            FinishReason::Length => Self::Length,
        }
    }
}

/// A generated token with its log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    /// Most likely tokens, best first.
    pub(crate) top: Vec<(u32, f32)>,
    /// Characters of the choice's text before the token.
    pub(crate) offset: usize,
}

/// What became known of a choice.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Delta {
    /// Text of the answer.
    pub(crate) text: String,
    /// Text before `</think>`, in thinking form.
    pub(crate) reasoning: String,
    /// The tokens of that text.
    pub(crate) records: Vec<Record>,
    pub(crate) finish: Option<Finish>,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what came later.
    pub(crate) fn append(&mut self, later: Delta) {
        self.text += &later.text;
        self.reasoning += &later.reasoning;
        self.records.extend(later.records);
        self.finish = later.finish.or(self.finish);
    }
}

/// The state of one choice. Tokens go in, text comes out as soon as it is certain: whole characters, and
/// nothing that may turn out to be a stop string.
pub(crate) struct Choice {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    stop_tokens: Vec<u32>,
    end_think: u32,
    thinking: bool,
    /// Characters that the detokeniser has given, and of those the ones that were shown.
    produced: usize,
    shown: usize,
    /// Tokens whose text is held back.
    held: Vec<Record>,
    /// Tokens generated, stop token included.
    tokens: usize,
    finished: bool,
}

impl Choice {
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        stops: Vec<String>,
        stop_tokens: Vec<u32>,
        thinking: bool,
    ) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer),
            stops: StopMatcher::new(stops),
            stop_tokens,
            end_think: tokenizer.control(Control::EndThink),
            thinking,
            produced: 0,
            shown: 0,
            held: Vec::new(),
            tokens: 0,
            finished: false,
        }
    }

    /// Tokens generated so far.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// True after a finish reason was given.
    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// Takes a token. With `finish` in the result, a stop string was found and the engine can stop.
    pub(crate) fn token(
        &mut self,
        id: u32,
        logprob: f32,
        top: Vec<(u32, f32)>,
    ) -> Result<Delta, EncodingError> {
        self.tokens += 1;
        let mut delta = Delta::default();
        if self.stop_tokens.contains(&id) {
            return Ok(delta);
        }
        if self.thinking {
            delta.reasoning = self.detokenizer.push(id)?;
            if id == self.end_think {
                delta.reasoning += &self.detokenizer.finish();
                self.thinking = false;
            }
            delta.records.push(Record { id, logprob, top, offset: 0 });
            return Ok(delta);
        }
        let piece = self.detokenizer.push(id)?;
        self.held.push(Record { id, logprob, top, offset: self.produced });
        self.produced += piece.chars().count();
        let step = self.stops.push(&piece);
        self.show(step.text, &mut delta);
        if step.stopped {
            self.held.clear();
            self.finished = true;
            delta.finish = Some(Finish::Stop);
        }
        Ok(delta)
    }

    /// Takes the end of generation; `tokens` is the engine's count.
    pub(crate) fn end(&mut self, finish: Finish, tokens: usize) -> Delta {
        let mut delta = Delta::default();
        self.tokens = tokens;
        let rest = self.detokenizer.finish();
        if self.thinking {
            delta.reasoning = rest;
        } else {
            self.produced += rest.chars().count();
            let step = self.stops.push(&rest);
            let text = if step.stopped { step.text } else { step.text + &self.stops.finish() };
            self.show(text, &mut delta);
            if !step.stopped {
                delta.records.append(&mut self.held);
            }
        }
        self.finished = true;
        delta.finish = Some(finish);
        delta
    }

    /// Moves `text` and the tokens that begin in it to `delta`.
    fn show(&mut self, text: String, delta: &mut Delta) {
        self.shown += text.chars().count();
        let ready = self.held.iter().take_while(|record| record.offset < self.shown).count();
        delta.records.extend(self.held.drain(..ready));
        delta.text = text;
    }
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
