//! The noise floor: how far variations that harm nothing move an assignment.
//!
//! Smaller prefill chunks and other requests in the same steps only reorder sums, if anything. The third variation is
//! the size of what a patch may do and still be right: every normed activation is scaled by a factor next to one that
//! is as far off as rounding it to bf16 can be. The factors are fixed, so the floor is the same in each run. The number
//! of threads is not varied: one pool serves the process, and no sum of the host depends on its size.

use std::fmt;
use std::sync::Arc;

use hotseam_engine::{Engine, EngineConfig, Request};
use hotseam_model::{Model, Tensor, Weights};
use hotseam_slots::Slots;
use serde::{Deserialize, Serialize};

use super::{Baseline, Passage, compare, compare_request};
use crate::EvidenceError;
use crate::random::Random;

/// Requests that share the steps in the second variation.
const COMPANY: usize = 3;
/// Half a unit in the last place of bf16, relative to the value.
const HALF_ULP: f64 = 1.0 / 512.0;

/// How far each variation moved the assignment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// Name and [`worst`](super::DivergenceReport::worst) of each variation, in nats.
    pub variations: Vec<(String, f64)>,
}

impl Floor {
    /// The largest.
    pub fn worst(&self) -> f64 {
        self.variations.iter().map(|(_, kl)| *kl).fold(0.0, f64::max)
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self
            .variations
            .iter()
            .map(|(name, kl)| if *kl == 0.0 { format!("{name} 0") } else { format!("{name} {kl:.1e}") })
            .collect();
        out.write_str(&parts.join(", "))
    }
}

/// Measures the floor of `assignment`, whose undisturbed run is `baseline`. `slots` makes the assignment anew for a
/// second engine.
///
/// # Errors
/// [`EvidenceError`] if a run could not be made, [`EvidenceError::Baseline`] if a variation failed inside the model.
pub fn measure(
    engine: &Engine,
    passage: &Passage,
    baseline: &Baseline,
    assignment: &str,
    slots: impl FnOnce() -> Result<Arc<Slots>, EvidenceError>,
) -> Result<Floor, EvidenceError> {
    let mut variations = Vec::new();
    let mut note = |name: &str, report: super::DivergenceReport| match &report.failure {
        None => {
            variations.push((name.to_owned(), report.worst().0));
            Ok(())
        }
        Some(failure) => Err(EvidenceError::Baseline {
            assignment: format!("{assignment}, {name}"),
            code: failure.code.clone(),
            message: failure.message.clone(),
        }),
    };
    let plain = passage.request(assignment);
    // Odd, so that chunks do not end where pages and compressed groups do.
    let size = (engine.config().chunk / 2).max(1) | 1;
    let size = size.min(engine.config().chunk);
    let chunks = vec![size; passage.prefill().div_ceil(size)];
    let request = Request { chunks, ..plain.clone() };
    note("chunks halved", compare_request(engine, passage, baseline, request, f64::INFINITY)?)?;

    if engine.config().max_seqs > 1 {
        let others: Vec<_> = (1..=COMPANY.min(engine.config().max_seqs - 1))
            .map(|shift| engine.submit(company(&plain, shift * 7)))
            .collect::<Result<_, _>>()?;
        note("in company", compare(engine, passage, baseline, assignment, f64::INFINITY)?)?;
        drop(others);
    }

    let model = engine.model();
    let weights = disturbed(&model.weights);
    let near = Model::new(model.config.clone(), weights, engine.config().max_context);
    let sizes = EngineConfig { prefix_cache_bytes: 0, ..engine.config().clone() };
    let second = Engine::start(Arc::new(near), slots()?, sizes)?;
    let report = compare(&second, passage, baseline, assignment, f64::INFINITY);
    second.shutdown();
    note("bf16 rounding", report?)?;
    Ok(Floor { variations })
}

/// A request of the same size with other text, whose rows nobody reads.
fn company(request: &Request, shift: usize) -> Request {
    let mut prompt = request.prompt.clone();
    let text = prompt.get_mut(2..).unwrap_or_default();
    let by = shift % text.len().max(1);
    text.rotate_left(by);
    Request { prompt, tap_logits: false, ..request.clone() }
}

/// The weights with every norm weight off by at most half a unit of bf16.
fn disturbed(weights: &Weights) -> Weights {
    let mut random = Random::new(&[0xb16]);
    let mut near = weights.clone();
    let mut shake = |tensor: &mut Tensor| {
        let values: Vec<f32> = tensor
            .to_f32_vec()
            .into_iter()
            .map(|value| {
                let off = (random.below(2001) as f64 / 1000.0 - 1.0) * HALF_ULP;
                (f64::from(value) * (1.0 + off)) as f32
            })
            .collect();
        // The shape is its own, so the length fits.
        if let Ok(shaken) = Tensor::from_f32(tensor.shape.clone(), &values) {
            *tensor = shaken;
        }
    };
    shake(&mut near.norm);
    for layer in &mut near.layers {
        for tensor in [&mut layer.attn_norm, &mut layer.ffn_norm, &mut layer.q_norm, &mut layer.kv_norm] {
            shake(tensor);
        }
        if let Some(compressor) = &mut layer.compressor {
            shake(&mut compressor.norm);
        }
        if let Some(indexer) = &mut layer.indexer {
            shake(&mut indexer.compressor.norm);
        }
    }
    near
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_worst_variation_and_names_all() {
        let variations = vec![("a".to_owned(), 0.0), ("b".to_owned(), 2e-4), ("c".to_owned(), 1e-4)];
        let floor = Floor { variations };
        assert_eq!(floor.worst(), 2e-4);
        assert_eq!(floor.to_string(), "a 0, b 2.0e-4, c 1.0e-4");
    }

    #[test]
    fn company_has_other_text_of_the_same_length() {
        let request = Request::greedy(vec![0, 3, 10, 11, 12, 13], 4);
        let other = company(&request, 7);
        assert_eq!(other.prompt, [0, 3, 13, 10, 11, 12]);
        assert_eq!(company(&Request::greedy(vec![0], 1), 7).prompt, [0]);
    }
}
