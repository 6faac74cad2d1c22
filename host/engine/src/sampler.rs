//! From logits to a token.
//!
//! A token's mass is its probability, scaled by the temperature, as an integer, so that sums do not depend on their order: a device
//! takes the same token from the same logits (`plugins/cuda-kernels/cuda/sampling.cuh`).

use crate::request::Sampling;

/// Random numbers of one request (splitmix64), so that an answer depends only on its own seed.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    state: u64,
    order: Vec<(f32, u32)>,
}

/// A chosen token and its natural-log probability at temperature 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Chosen {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
}

/// What a token is drawn by, as a device is given it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Draw {
    /// As [`Sampling::temperature`].
    pub(crate) temperature: f32,
    /// As [`Sampling::top_p`].
    pub(crate) top_p: f32,
    /// In [0, 1).
    pub(crate) uniform: f64,
}

/// The logits hold a NaN or no finite value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NotFinite;

impl Sampler {
    pub(crate) fn new(sampling: Sampling) -> Self {
        Self { sampling, state: sampling.seed, order: Vec::new() }
    }

    pub(crate) fn choose(&mut self, logits: &[f32]) -> Result<Chosen, NotFinite> {
        let best = argmax(logits)?;
        let draw = self.next();
        self.skip();
        let id = match draw.temperature > 0.0 {
            true => self.draw(logits, draw),
            false => best,
        };
        Ok(Chosen { id, logprob: logprob_of(logits, id) })
    }

    /// What the next token is drawn by. Asking again gives the same until a token has been chosen.
    pub(crate) fn next(&self) -> Draw {
        let Sampling { temperature, top_p, .. } = self.sampling;
        let uniform = if temperature > 0.0 { uniform(self.state.wrapping_add(STEP)) } else { 0.0 };
        Draw { temperature, top_p, uniform }
    }

    /// As if a token had been chosen: the random numbers that follow are those that would.
    pub(crate) fn skip(&mut self) {
        if self.sampling.temperature > 0.0 {
            self.state = self.state.wrapping_add(STEP);
        }
    }

    fn draw(&mut self, logits: &[f32], Draw { temperature, top_p, uniform }: Draw) -> u32 {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // The best token is at 0, so that no temperature, however small, makes an infinity of it.
        // Never a negative zero, which would sort behind its equals.
        let scaled = |logit: &f32| ((logit - best) / temperature).max(f32::MIN) + 0.0;
        self.order.clear();
        self.order.extend(logits.iter().enumerate().map(|(id, logit)| (scaled(logit), id as u32)));
        // Ties go to the lower id, so that the choice does not depend on the sort.
        self.order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let total: u64 = self.order.iter().map(|(scaled, _)| mass(*scaled)).sum();
        // Tokens are kept until their mass reaches this; the first one always is.
        let wanted = ((total as f64 * f64::from(top_p)).ceil() as u64).clamp(1, total);
        let mut sums = self.order.iter().scan(0, |sum, (scaled, _)| {
            *sum += mass(*scaled);
            Some(*sum)
        });
        let kept = sums.find(|sum| *sum >= wanted).unwrap_or(total);
        let above = ((uniform * kept as f64) as u64).min(kept - 1);
        let mut sum = 0;
        let drawn = self.order.iter().find(|(scaled, _)| {
            sum += mass(*scaled);
            sum > above
        });
        drawn.unwrap_or(&self.order[0]).1
    }
}

/// Between two states of a request's random numbers.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Uniform in [0, 1).
fn uniform(state: u64) -> f64 {
    let mut z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// `exp(x)` times 2^32, rounded; `x` is at most 0, the scaled logit of the best token.
fn mass(x: f32) -> u64 {
    /// Of `exp(r)`, the highest power first: the inverse factorials.
    const FACTORS: [f64; 10] = [
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let x = f64::from(x);
    if x <= -23.0 {
        return 0;
    }
    let n = (x * std::f64::consts::LOG2_E + 0.5).floor();
    let r = x - n * std::f64::consts::LN_2;
    let p = FACTORS[1..].iter().fold(FACTORS[0], |p, factor| p * r + factor);
    let scale = f64::from_bits(((1023 + 32 + n as i64) as u64) << 52);
    (p * scale + 0.5) as u64
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
    fn masses_are_exponentials() {
        for i in 0..30_000 {
            let x = -(i as f32) * 1e-3;
            let exact = f64::from(x).exp() * (1u64 << 32) as f64;
            assert!(
                (mass(x) as f64 - exact).abs() <= 0.51 + if x <= -23.0 { 0.5 } else { 0.0 },
                "{x}: {}",
                mass(x)
            );
        }
        assert_eq!((mass(0.0), mass(f32::MIN), mass(f32::NEG_INFINITY)), (1 << 32, 0, 0));
    }

    #[test]
    fn a_tiny_temperature_is_greedy() {
        for temperature in [1e-3, 1e-30, 1e-38, f32::MIN_POSITIVE / 4.0] {
            assert_eq!(sampler(temperature, 1.0, 9).choose(&[5.0, 30.0, -2.0, 29.0]).ok().unwrap().id, 1);
        }
    }

    #[test]
    fn zeros_of_both_signs_are_equal() {
        for logits in [[-0.0, 0.0, -0.0], [0.0, -0.0, 0.0]] {
            assert_eq!(sampler(0.0, 1.0, 4).choose(&logits).ok().unwrap().id, 0);
            assert_eq!(sampler(1.0, 0.0, 4).choose(&logits).ok().unwrap().id, 0);
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
