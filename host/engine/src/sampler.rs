//! From logits to a token.

use crate::request::Sampling;

/// Random numbers of one request (splitmix64), so that an answer depends only on its own seed.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    state: u64,
    order: Vec<(f32, u32)>,
}

/// A chosen token and its natural-log probability at temperature 1.
pub(crate) struct Chosen {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
}

/// The logits hold a NaN or no finite value.
pub(crate) struct NotFinite;

impl Sampler {
    pub(crate) fn new(sampling: Sampling) -> Self {
        Self { sampling, state: sampling.seed, order: Vec::new() }
    }

    pub(crate) fn choose(&mut self, logits: &[f32]) -> Result<Chosen, NotFinite> {
        let best = argmax(logits)?;
        let id = match self.sampling.temperature > 0.0 {
            true => self.draw(logits),
            false => best,
        };
        Ok(Chosen { id, logprob: logprob_of(logits, id) })
    }

    /// As if a token had been chosen: the random numbers that follow are those that would.
    pub(crate) fn skip(&mut self) {
        if self.sampling.temperature > 0.0 {
            self.uniform();
        }
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        self.order.clear();
        // The best token is at 0, so that no temperature, however small, makes an infinity of it.
        let scaled = |logit: &f32| ((logit - best) / self.sampling.temperature).max(f32::MIN);
        self.order.extend(logits.iter().enumerate().map(|(id, logit)| (scaled(logit), id as u32)));
        // Ties go to the lower id, so that the choice does not depend on the sort.
        self.order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut total = 0.0f64;
        for (value, _) in &mut self.order {
            *value = value.exp();
            total += f64::from(*value);
        }
        let limit = total * f64::from(self.sampling.top_p);
        let mut kept = 0.0f64;
        let count = self.order.iter().take_while(|(p, _)| {
            let take = kept < limit;
            kept += if take { f64::from(*p) } else { 0.0 };
            take
        });
        let count = count.count().max(1);
        let mut left = self.uniform() * kept;
        for (p, id) in &self.order[..count] {
            left -= f64::from(*p);
            if left < 0.0 {
                return *id;
            }
        }
        self.order[count - 1].1
    }

    /// Uniform in [0, 1).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn argmax(logits: &[f32]) -> Result<u32, NotFinite> {
    let mut best = (f32::NEG_INFINITY, None);
    for (id, logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return Err(NotFinite);
        }
        if *logit > best.0 {
            best = (*logit, Some(id as u32));
        }
    }
    best.1.filter(|_| best.0.is_finite()).ok_or(NotFinite)
}

/// Natural-log probability of a token.
pub(crate) fn logprob_of(logits: &[f32], id: u32) -> f32 {
    logits[id as usize] - log_sum_exp(logits)
}

fn log_sum_exp(logits: &[f32]) -> f32 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from((l - top).exp())).sum();
    top + sum.ln() as f32
}

/// The `n` most likely tokens with their natural-log probabilities, best first.
pub(crate) fn most_likely(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    if n == 0 {
        return Vec::new();
    }
    let norm = log_sum_exp(logits);
    let mut all: Vec<(u32, f32)> = logits.iter().enumerate().map(|(id, l)| (id as u32, l - norm)).collect();
    let by = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let n = n.min(all.len());
    all.select_nth_unstable_by(n - 1, by);
    all.truncate(n);
    all.sort_unstable_by(by);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f32, top_p: f32, seed: u64) -> Sampler {
        Sampler::new(Sampling { temperature, top_p, seed })
    }

    #[test]
    fn greedy_takes_the_first_of_equal_logits_and_reports_its_probability() {
        let chosen = sampler(0.0, 1.0, 1).choose(&[0.0, 3.0, 3.0, 1.0]).ok().unwrap();
        assert_eq!(chosen.id, 1);
        let expected = (3f32.exp() / (1.0 + 2.0 * 3f32.exp() + 1f32.exp())).ln();
        assert!((chosen.logprob - expected).abs() < 1e-6);
    }

    #[test]
    fn draws_follow_the_distribution_and_the_seed() {
        let logits = [0.5f32.ln(), 0.25f32.ln(), 0.25f32.ln()];
        let mut counts = [0usize; 3];
        let mut s = sampler(1.0, 1.0, 3);
        for _ in 0..20_000 {
            counts[s.choose(&logits).ok().unwrap().id as usize] += 1;
        }
        for (count, expected) in counts.iter().zip([10_000.0, 5_000.0, 5_000.0]) {
            assert!((*count as f64 - expected).abs() < 300.0, "{counts:?}");
        }
        let run = |seed| {
            let mut s = sampler(1.0, 1.0, seed);
            (0..32).map(|_| s.choose(&logits).ok().unwrap().id).collect::<Vec<_>>()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }

    #[test]
    fn a_tiny_temperature_is_greedy() {
        for temperature in [1e-3, 1e-30, 1e-38, f32::MIN_POSITIVE / 4.0] {
            assert_eq!(sampler(temperature, 1.0, 9).choose(&[5.0, 30.0, -2.0, 29.0]).ok().unwrap().id, 1);
        }
    }

    #[test]
    fn top_p_cuts_the_tail() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        let mut s = sampler(1.0, 0.7, 1);
        assert!((0..2000).all(|_| s.choose(&logits).ok().unwrap().id < 2));
        let mut s = sampler(1.0, 0.0, 1);
        assert!((0..200).all(|_| s.choose(&logits).ok().unwrap().id == 0));
    }

    #[test]
    fn nan_and_all_minus_infinity_are_refused() {
        assert!(sampler(0.0, 1.0, 1).choose(&[0.0, f32::NAN]).is_err());
        assert!(sampler(1.0, 1.0, 1).choose(&[f32::NEG_INFINITY; 3]).is_err());
    }

    #[test]
    fn most_likely_is_sorted_and_normalised() {
        let top = most_likely(&[1.0, 2.0, 2.0, 0.0], 3);
        assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 0]);
        let all = most_likely(&[1.0, 2.0, 2.0, 0.0], 9);
        assert!((all.iter().map(|t| t.1.exp()).sum::<f32>() - 1.0).abs() < 1e-6);
    }
}
