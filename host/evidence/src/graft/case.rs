//! One prompt with what is expected, and one run of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::observe::Observer;
use hotseam_engine::{Engine, Event, Handle, Request};

use crate::divergence::{Passage, TAIL};
use crate::logits::{kl, log_softmax};
use crate::needle::Probe;
use crate::{EvidenceError, RequestFailure};

/// What is expected of a run.
#[derive(Debug)]
pub(super) enum Expect {
    /// The most likely tokens hold this word.
    Word(String),
    /// The distributions are those of the good end, up to a threshold.
    Rows {
        /// Log-probabilities of the good end by position.
        base: BTreeMap<u32, Vec<f32>>,
        /// First position that is decoded.
        decode: u32,
        /// Bar in nats.
        threshold: f64,
    },
}

/// A prompt, and the tokens that every run of it decodes.
#[derive(Debug)]
pub(super) struct Case {
    prompt: Vec<u32>,
    /// The good end's answer, or the text itself: decoding is forced, so that runs stay in step.
    forced: Vec<u32>,
    expect: Expect,
}

/// What a run said.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Most likely token at each place.
    tokens: Vec<u32>,
    /// Sum of the log-probabilities of the forced tokens.
    logprob: f64,
    rows: BTreeMap<u32, Vec<f32>>,
}

/// Result of a case.
#[derive(Debug, Clone)]
pub(super) struct CaseScore {
    pub(super) passed: bool,
    pub(super) metric: f64,
    pub(super) failure: Option<RequestFailure>,
}

impl Case {
    /// A needle prompt, with the answer of the good end; `None` if that misses the word.
    pub(super) fn needle(
        engine: &Engine,
        tokenizer: &Tokenizer,
        probe: &Probe,
        good: &str,
    ) -> Result<Option<Self>, EvidenceError> {
        let request = Request {
            assignment: good.to_owned(),
            stop_tokens: vec![tokenizer.control(Control::Eos)],
            ..Request::greedy(probe.prompt.clone(), probe.max_tokens)
        };
        let answer = listen(&engine.submit(request)?);
        let Ok(Heard { tokens: forced, .. }) = answer else { return Ok(None) };
        let hit = !forced.is_empty() && tokenizer.decode(&forced)?.contains(&probe.value);
        let (prompt, expect) = (probe.prompt.clone(), Expect::Word(probe.value.clone()));
        Ok(hit.then_some(Self { prompt, forced, expect }))
    }

    /// Held-out text, with the distributions of the good end.
    ///
    /// # Errors
    /// [`EvidenceError::Baseline`] if the good end fails.
    pub(super) fn passage(
        engine: &Engine,
        passage: &Passage,
        good: &str,
        threshold: f64,
    ) -> Result<Self, EvidenceError> {
        let (prompt, forced) = passage.tokens().split_at(passage.prefill());
        let expect = Expect::Rows { base: BTreeMap::new(), decode: prompt.len() as u32, threshold };
        let mut case = Self { prompt: prompt.to_vec(), forced: forced.to_vec(), expect };
        let heard =
            listen(&engine.submit(case.request(good))?).map_err(|failure| EvidenceError::Baseline {
                assignment: good.to_owned(),
                code: failure.code,
                message: failure.message,
            })?;
        if let Expect::Rows { base, .. } = &mut case.expect {
            *base = heard.rows;
        }
        Ok(case)
    }

    fn request(&self, assignment: &str) -> Request {
        Request {
            assignment: assignment.to_owned(),
            forced: self.forced.clone(),
            logprobs: 1,
            tap_logits: matches!(self.expect, Expect::Rows { .. }),
            ..Request::greedy(self.prompt.clone(), self.forced.len())
        }
    }

    /// Runs it under `assignment`, watched by `observer`, and judges it. `decode_only` leaves the rows of the prompt out,
    /// which nothing can change that is done after prefill.
    pub(super) fn run<O: Observer + 'static>(
        &self,
        engine: &Engine,
        tokenizer: &Tokenizer,
        assignment: &str,
        observer: O,
        decode_only: bool,
    ) -> Result<(CaseScore, O), EvidenceError> {
        let observer = Arc::new(Mutex::new(observer));
        let handle = engine.observe(self.request(assignment), Box::new(Arc::clone(&observer)))?;
        let heard = listen(&handle);
        drop(handle);
        let score = match heard {
            Ok(heard) => self.judge(tokenizer, &heard, decode_only)?,
            Err(failure) => CaseScore {
                passed: false,
                metric: if matches!(self.expect, Expect::Word(_)) {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                },
                failure: Some(failure),
            },
        };
        Ok((score, reclaim(observer)))
    }

    fn judge(
        &self,
        tokenizer: &Tokenizer,
        heard: &Heard,
        decode_only: bool,
    ) -> Result<CaseScore, EvidenceError> {
        let (passed, metric) = match &self.expect {
            Expect::Word(word) => {
                let said = tokenizer.decode(&heard.tokens)?;
                (said.contains(word), heard.logprob / self.forced.len().max(1) as f64)
            }
            Expect::Rows { base, decode, threshold } => {
                let far = far(base, &heard.rows, *decode, decode_only);
                (far <= *threshold, far)
            }
        };
        Ok(CaseScore { passed, metric, failure: None })
    }
}

/// The observer, once the engine has let go of it: it does so a moment after it has told of the end.
fn reclaim<O>(mut shared: Arc<Mutex<O>>) -> O {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(observer) => return observer.into_inner().unwrap_or_else(PoisonError::into_inner),
            Err(still) => {
                shared = still;
                std::thread::yield_now();
            }
        }
    }
}

/// The larger of the two phases' mean divergence and the scaled tail, as [`crate::divergence`] judges.
fn far(
    base: &BTreeMap<u32, Vec<f32>>,
    rows: &BTreeMap<u32, Vec<f32>>,
    decode: u32,
    decode_only: bool,
) -> f64 {
    let mut phases = [Vec::new(), Vec::new()];
    for (position, base) in base {
        let in_decode = *position >= decode;
        if in_decode || !decode_only {
            let row = rows.get(position);
            phases[usize::from(in_decode)].push(row.map_or(f64::INFINITY, |row| kl(base, row)));
        }
    }
    let mean = |values: &Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let worst = phases.iter().map(mean).fold(0.0, f64::max);
    let mut all = phases.concat();
    all.sort_by(f64::total_cmp);
    let tail = all.get((all.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
    worst.max(tail / TAIL)
}

fn listen(handle: &Handle) -> Result<Heard, RequestFailure> {
    let mut heard = Heard::default();
    loop {
        match handle.recv() {
            Some(Event::Token { id, logprob, top }) => {
                heard.tokens.push(top.first().map_or(id, |(best, _)| *best));
                heard.logprob += f64::from(logprob);
            }
            Some(Event::Logits { position, mut logits }) => {
                log_softmax(&mut logits);
                heard.rows.insert(position, logits);
            }
            Some(Event::Prompt { .. }) => {}
            Some(Event::Done { .. }) => return Ok(heard),
            Some(Event::Failed { code, message }) => return Err(RequestFailure { code, message }),
            None => return Err(RequestFailure::engine_stopped()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_judged_by_the_worse_phase() {
        let row = |a: f32| {
            let mut row = vec![a, 0.0];
            log_softmax(&mut row);
            row
        };
        let base: BTreeMap<_, _> = (0..4).map(|p| (p, row(1.0))).collect();
        let mut arm = base.clone();
        assert_eq!(far(&base, &arm, 2, false), 0.0);
        arm.insert(0, row(2.0));
        let one = kl(&row(1.0), &row(2.0));
        assert_eq!(far(&base, &arm, 2, false), one / 2.0);
        assert_eq!(far(&base, &arm, 2, true), 0.0);
        arm.remove(&3);
        assert_eq!(far(&base, &arm, 2, true), f64::INFINITY);
    }
}
