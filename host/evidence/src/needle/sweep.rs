//! Running a sweep on an engine.

use std::collections::VecDeque;
use std::time::Instant;

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::{Engine, Handle, Request, Sampling};

use super::plan::Probe;
use super::report::{NeedleReport, ProbeResult};
use crate::{EvidenceError, ask};

/// How a sweep is run.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Assignment that answers.
    pub assignment: String,
    /// Requests in flight.
    pub in_flight: usize,
    /// Start from a saved prefill state, where the same prompt was prefilled by the same code.
    pub reuse_prefill: bool,
}

/// Asks every probe, greedily, and calls `progress` after each with the number done.
///
/// # Errors
/// [`EvidenceError::Submit`] if the engine does not take a request, [`EvidenceError::Encoding`] if an answer is no text.
pub fn run(
    engine: &Engine,
    tokenizer: &Tokenizer,
    probes: &[Probe],
    sweep: &Sweep,
    mut progress: impl FnMut(usize, &ProbeResult),
) -> Result<NeedleReport, EvidenceError> {
    let begin = Instant::now();
    let digest = engine.slots().snapshot(&sweep.assignment).map(|snapshot| snapshot.digest().to_string());
    let mut waiting: VecDeque<(&Probe, Handle)> = VecDeque::new();
    let mut results = Vec::new();
    let mut next = probes.iter();
    loop {
        while waiting.len() < sweep.in_flight.max(1) {
            let Some(probe) = next.next() else { break };
            waiting.push_back((probe, engine.submit(request(tokenizer, probe, sweep))?));
        }
        let Some((probe, handle)) = waiting.pop_front() else { break };
        let result = match ask::finish(&handle, |_, _| {}) {
            Ok(tokens) => ProbeResult::answered(probe, tokenizer.decode(&tokens)?),
            Err(failure) => ProbeResult::failed(probe, failure),
        };
        results.push(result);
        progress(results.len(), &results[results.len() - 1]);
    }
    let seconds = begin.elapsed().as_secs_f64();
    Ok(NeedleReport::new(sweep.assignment.clone(), digest.unwrap_or_default(), results, seconds))
}

fn request(tokenizer: &Tokenizer, probe: &Probe, sweep: &Sweep) -> Request {
    Request {
        sampling: Sampling::GREEDY,
        stop_tokens: vec![tokenizer.control(Control::Eos)],
        assignment: sweep.assignment.clone(),
        reuse_prefill: sweep.reuse_prefill,
        ..Request::greedy(probe.prompt.clone(), probe.max_tokens)
    }
}
