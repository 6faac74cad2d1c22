//! Perplexity of held-out text at chosen lengths.
//!
//! Short text says nothing of what lies beyond the window and the indexer's selection, so the lengths matter.

use hotseam_engine::Engine;
use serde::{Deserialize, Serialize};

use crate::divergence::Passage;
use crate::logits::log_softmax;
use crate::{EvidenceError, RequestFailure, ask};

/// Likelihood of one text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// Tokens of the text.
    pub length: usize,
    /// Mean negative log-likelihood in nats per token; NaN if a row was not finite.
    pub nll: f64,
    /// Of the rows of prefill alone.
    pub prefill: f64,
    /// Of the rows of decode alone.
    pub decode: f64,
}

impl Perplexity {
    /// `exp(nll)`; infinite if that is not a number.
    pub fn value(&self) -> f64 {
        let value = self.nll.exp();
        if value.is_nan() { f64::INFINITY } else { value }
    }
}

/// Runs `passage` under `assignment`; the inner error is a request that failed inside the model.
///
/// # Errors
/// [`EvidenceError::Submit`].
pub fn run(
    engine: &Engine,
    passage: &Passage,
    assignment: &str,
) -> Result<Result<Perplexity, RequestFailure>, EvidenceError> {
    let handle = engine.submit(passage.request(assignment))?;
    let mut losses: Vec<(usize, f64)> = Vec::new();
    let ended = ask::finish(&handle, |position, mut logits| {
        log_softmax(&mut logits);
        let next = passage.tokens().get(position + 1);
        if let Some(logprob) = next.and_then(|token| logits.get(*token as usize)) {
            losses.push((position, -f64::from(*logprob)));
        }
    });
    let mean = |of: &dyn Fn(usize) -> bool| {
        let own: Vec<f64> = losses.iter().filter(|(at, _)| of(*at)).map(|(_, loss)| *loss).collect();
        own.iter().sum::<f64>() / own.len() as f64
    };
    let split = passage.prefill();
    Ok(ended.map(|_| Perplexity {
        length: passage.len(),
        nll: mean(&|_| true),
        prefill: mean(&|at| at < split),
        decode: mean(&|at| at >= split),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_not_finite_is_infinitely_unlikely() {
        let of = |nll| Perplexity { length: 1, nll, prefill: nll, decode: nll }.value();
        assert_eq!(of(0.0), 1.0);
        assert_eq!(of(f64::NAN), f64::INFINITY);
        assert_eq!(of(f64::INFINITY), f64::INFINITY);
    }
}
