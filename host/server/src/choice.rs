//! One choice of an answer: engine events to text.

use hotseam_encoding::{Control, Detokenizer, EncodingError, StopMatcher, Tokenizer};
use hotseam_engine::{FinishReason, StopToken};

/// Why a choice ended, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// A stop token or a stop string.
    Stop,
    /// The limit of tokens.
    Length,
    /// `/abort_request`, in SGLang's word.
    Abort,
}

/// What ended a choice with [`Finish::Stop`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Matched {
    Token(u32),
    Text(String),
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
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
    /// The tokens of that text, or all generated ones with [`Manner::every_token`].
    pub(crate) records: Vec<Record>,
    /// Tokens of the prompt whose probabilities were asked for.
    pub(crate) prompt: Vec<Record>,
    pub(crate) finish: Option<Finish>,
    pub(crate) matched: Option<Matched>,
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
        self.prompt.extend(later.prompt);
        self.finish = later.finish.or(self.finish);
        self.matched = later.matched.or(self.matched.take());
    }
}

/// How the tokens of a choice become text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manner {
    /// Strings that end the text.
    pub(crate) stops: Vec<String>,
    /// Tokens that end the text.
    pub(crate) stop_tokens: Vec<u32>,
    /// Whether the text begins with reasoning, up to `</think>`.
    pub(crate) thinking: bool,
    /// Whether every generated token is reported, as soon as it comes: also those whose text is held back or cut off, and
    /// the stop token.
    pub(crate) every_token: bool,
}

/// The state of one choice. Tokens go in, text comes out as soon as it is certain: whole characters, and
/// nothing that may turn out to be a stop string.
pub(crate) struct Choice {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    stop_tokens: Vec<u32>,
    every_token: bool,
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
    pub(crate) fn new(tokenizer: &Tokenizer, manner: Manner) -> Self {
        let Manner { stops, stop_tokens, thinking, every_token } = manner;
        Self {
            detokenizer: Detokenizer::new(tokenizer),
            stops: StopMatcher::new(stops),
            stop_tokens,
            every_token,
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

    /// Takes a token of the prompt.
    pub(crate) fn prompt(&self, id: u32, logprob: f32, top: Vec<(u32, f32)>) -> Delta {
        Delta { prompt: vec![Record { id, logprob, top, offset: 0 }], ..Delta::default() }
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
        let record = Record { id, logprob, top, offset: self.produced };
        if self.every_token { &mut delta.records } else { &mut self.held }.push(record);
        self.produced += piece.chars().count();
        let step = self.stops.push(&piece);
        self.show(step.text, &mut delta);
        if step.stopped {
            self.held.clear();
            self.finished = true;
            delta.finish = Some(Finish::Stop);
            delta.matched = self.stops.matched().map(|text| Matched::Text(text.to_owned()));
        }
        Ok(delta)
    }

    /// Takes the end of generation; `tokens` is the engine's count, `stop` the token that ended it.
    pub(crate) fn end(&mut self, finish: Finish, tokens: usize, stop: Option<StopToken>) -> Delta {
        let mut delta =
            Delta { matched: stop.as_ref().map(|stop| Matched::Token(stop.id)), ..Delta::default() };
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
        if let (true, Some(StopToken { id, logprob, top })) = (self.every_token, stop) {
            delta.records.push(Record { id, logprob, top, offset: self.produced });
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
