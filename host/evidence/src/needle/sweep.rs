//! Running a sweep.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use hotseam_encoding::Tokenizer;
use hotseam_engine::Engine;

use super::plan::Probe;
use super::report::{NeedleReport, ProbeResult};
use crate::EvidenceError;
use crate::model::{EngineModel, Model, Question};

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

/// Asks an engine every probe, greedily, and calls `progress` after each with the number done.
///
/// # Errors
/// [`EvidenceError::Submit`] if the engine does not take a request, [`EvidenceError::Encoding`] if an answer is no text.
pub fn run(
    engine: &Engine,
    tokenizer: &Tokenizer,
    probes: &[Probe],
    sweep: &Sweep,
    progress: impl FnMut(usize, &ProbeResult),
) -> Result<NeedleReport, EvidenceError> {
    let digest = engine.slots().snapshot(&sweep.assignment).map(|snapshot| snapshot.digest().to_string());
    let model = EngineModel { engine, tokenizer };
    run_on(&model, &digest.unwrap_or_default(), probes, sweep, progress)
}

/// As [`run`], on whatever answers; `digest` is the identity of what the assignment runs.
///
/// # Errors
/// The first question that could not be put; those in flight are waited for.
pub fn run_on(
    model: &dyn Model,
    digest: &str,
    probes: &[Probe],
    sweep: &Sweep,
    mut progress: impl FnMut(usize, &ProbeResult),
) -> Result<NeedleReport, EvidenceError> {
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    let workers = sweep.in_flight.clamp(1, probes.len().max(1));
    let mut results: Vec<Option<ProbeResult>> = probes.iter().map(|_| None).collect();
    let mut failed = None;
    std::thread::scope(|scope| {
        let (done, finished) = mpsc::channel();
        for _ in 0..workers {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(probe) = probes.get(index) else { return };
                    if done.send((index, ask(model, probe, sweep))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        let mut count = 0;
        while let Ok((index, answer)) = finished.recv() {
            match answer {
                Ok(result) => {
                    count += 1;
                    progress(count, &result);
                    results[index] = Some(result);
                }
                Err(error) => {
                    // Nothing more is asked.
                    next.store(probes.len(), Ordering::Relaxed);
                    failed.get_or_insert(error);
                }
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let results = results.into_iter().flatten().collect();
    let seconds = begin.elapsed().as_secs_f64();
    Ok(NeedleReport::new(sweep.assignment.clone(), digest.to_owned(), results, seconds))
}

fn ask(model: &dyn Model, probe: &Probe, sweep: &Sweep) -> Result<ProbeResult, EvidenceError> {
    let question = Question {
        prompt: &probe.prompt,
        max_tokens: probe.max_tokens,
        assignment: &sweep.assignment,
        reuse_prefill: sweep.reuse_prefill,
    };
    Ok(match model.ask(&question)? {
        Ok(reply) => ProbeResult::answered(probe, reply.text),
        Err(failure) => ProbeResult::failed(probe, failure),
    })
}
