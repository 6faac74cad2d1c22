//! Chance: Beta distributions, Fisher's exact test, information.

use hotseam_target::Counts;

/// Jeffreys' prior of a failure rate: Beta(1/2, 1/2). Stronger priors make claims overconfident.
pub(crate) const JEFFREYS: f64 = 0.5;

/// Failures and passes of some draws; fractions where draws were not independent of each other.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Tally {
    pub(crate) fail: f64,
    pub(crate) pass: f64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.fail += other.fail;
        self.pass += other.pass;
    }

    pub(crate) fn plus(mut self, other: Self) -> Self {
        self.add(other);
        self
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self { fail: self.fail - other.fail, pass: self.pass - other.pass }
    }

    pub(crate) fn total(self) -> f64 {
        self.fail + self.pass
    }

    /// Mean of the rate.
    pub(crate) fn mean(self) -> f64 {
        (self.fail + JEFFREYS) / (self.total() + 2.0 * JEFFREYS)
    }

    /// Logarithm of the probability of these draws, the rate integrated out.
    pub(crate) fn evidence(self) -> f64 {
        ln_beta(self.fail + JEFFREYS, self.pass + JEFFREYS) - ln_beta(JEFFREYS, JEFFREYS)
    }

    /// Logarithm of the probability that draws with the rate of `self` are `next`.
    pub(crate) fn predicts(self, next: Self) -> f64 {
        self.plus(next).evidence() - self.evidence()
    }
}

impl From<Counts> for Tally {
    fn from(counts: Counts) -> Self {
        Self { fail: f64::from(counts.fail), pass: f64::from(counts.total - counts.fail.min(counts.total)) }
    }
}

/// Logarithm of the gamma function of `x` > 0: Stirling's series, after a shift up for small `x`.
pub(crate) fn ln_gamma(mut x: f64) -> f64 {
    let mut product = 1.0;
    while x < 8.0 {
        product *= x;
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    let series = (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.918_938_533_204_672_7 + series - product.ln()
}

fn ln_beta(a: f64, b: f64) -> f64 {
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
}

/// Share of the Beta(a, b) distribution below `x`: the continued fraction of Numerical Recipes, 6.4.
pub(crate) fn beta_below(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta_below(b, a, 1.0 - x);
    }
    let front = (a * x.ln() + b * (1.0 - x).ln() - ln_beta(a, b)).exp() / a;
    let tiny = 1e-300;
    let (mut c, mut d) = (1.0, 1.0 - (a + b) * x / (a + 1.0));
    d = 1.0 / if d.abs() < tiny { tiny } else { d };
    let mut sum = d;
    for step in 1..300 {
        let m = f64::from(step);
        for term in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 + term * d;
            d = 1.0 / if d.abs() < tiny { tiny } else { d };
            c = 1.0 + term / c;
            c = if c.abs() < tiny { tiny } else { c };
            sum *= d * c;
        }
        if (d * c - 1.0).abs() < 1e-12 {
            break;
        }
    }
    front * sum
}

/// The 95 % Jeffreys interval of a rate.
pub(crate) fn interval(tally: Tally) -> (f64, f64) {
    let (a, b) = (tally.fail + JEFFREYS, tally.pass + JEFFREYS);
    let quantile = |share: f64| {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..50 {
            let middle = (low + high) / 2.0;
            if beta_below(a, b, middle) < share { low = middle } else { high = middle }
        }
        (low + high) / 2.0
    };
    // Brown, Cai and DasGupta: a bound at the edge of the data is the edge of the interval.
    let low = if tally.fail == 0.0 { 0.0 } else { quantile(0.025) };
    let high = if tally.pass == 0.0 { 1.0 } else { quantile(0.975) };
    (low, high)
}

/// Probability that the rate of `more` is above the rate of `less`.
pub(crate) fn probability_above(more: Tally, less: Tally) -> f64 {
    const STEPS: usize = 200;
    let cut = |tally: Tally, step: usize| {
        beta_below(tally.fail + JEFFREYS, tally.pass + JEFFREYS, step as f64 / STEPS as f64)
    };
    let (mut sum, mut before) = (0.0, [0.0, 0.0]);
    for step in 1..=STEPS {
        let now = [cut(more, step), cut(less, step)];
        // Mass of `more` in this step, times the mass of `less` below the middle of it.
        sum += (now[0] - before[0]) * (now[1] + before[1]) / 2.0;
        before = now;
    }
    sum
}

/// Fisher's exact p, two-sided: how probable a split of the failures is that is no likelier than this one, if both have
/// the same rate.
pub(crate) fn fisher(one: Counts, other: Counts) -> f64 {
    let (n, m) = (u64::from(one.total), u64::from(other.total));
    let failures = u64::from(one.fail) + u64::from(other.fail);
    let choose =
        |n: u64, k: u64| ln_gamma(n as f64 + 1.0) - ln_gamma(k as f64 + 1.0) - ln_gamma((n - k) as f64 + 1.0);
    let chance = |k: u64| (choose(n, k) + choose(m, failures - k) - choose(n + m, failures)).exp();
    let seen = chance(u64::from(one.fail));
    let splits = failures.saturating_sub(m)..=failures.min(n);
    splits.map(chance).filter(|chance| *chance <= seen * (1.0 + 1e-7)).sum::<f64>().min(1.0)
}

/// Entropy of a coin in bits.
pub(crate) fn entropy(p: f64) -> f64 {
    if p <= 0.0 || p >= 1.0 {
        return 0.0;
    }
    -(p * p.log2() + (1.0 - p) * (1.0 - p).log2())
}

/// Bits that one draw can tell about which of two rates it has.
pub(crate) fn capacity(p0: f64, p1: f64) -> f64 {
    let information = |share: f64| {
        entropy(share * p1 + (1.0 - share) * p0) - share * entropy(p1) - (1.0 - share) * entropy(p0)
    };
    (1..64).map(|step| information(f64::from(step) / 64.0)).fold(0.0, f64::max)
}

/// Divergence of a coin `p` from a coin `q`, in nats.
fn divergence(p: f64, q: f64) -> f64 {
    let term = |p: f64, q: f64| if p <= 0.0 { 0.0 } else { p * (p / q.max(1e-6)).ln() };
    term(p, q) + term(1.0 - p, 1.0 - q)
}

/// Draws that are expected to tell apart what carries `bits` of doubt, and then to confirm both ways at `confidence`
/// (Burnashev's form of the bound).
pub(crate) fn expected_draws(bits: f64, p0: f64, p1: f64, confidence: f64) -> f64 {
    let odds = (confidence / (1.0 - confidence)).ln();
    let both = odds / divergence(p1, p0).max(1e-3) + odds / divergence(p0, p1).max(1e-3);
    bits / capacity(p0, p1).max(1e-3) + both
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-6 * expected.abs().max(1.0), "{value} is not {expected}");
    }

    #[test]
    fn gamma_of_halves_and_integers() {
        near(ln_gamma(0.5), std::f64::consts::PI.ln() / 2.0);
        near(ln_gamma(1.0), 0.0);
        near(ln_gamma(6.0), 120_f64.ln());
        near(ln_gamma(101.0), 363.739_375_555_563_5);
    }

    #[test]
    fn beta_is_the_binomial_sum() {
        // P(Beta(3, 5) < x) = P(Binomial(7, x) >= 3).
        let x: f64 = 0.3;
        let choose = [1.0, 7.0, 21.0, 35.0, 35.0, 21.0, 7.0, 1.0];
        let tail: f64 = (3..=7).map(|k| choose[k] * x.powi(k as i32) * (1.0 - x).powi(7 - k as i32)).sum();
        near(beta_below(3.0, 5.0, x), tail);
        near(beta_below(0.5, 0.5, 0.5), 0.5);
    }

    #[test]
    fn jeffreys_intervals() {
        let (low, high) = interval(Tally { fail: 0.0, pass: 10.0 });
        assert!(low == 0.0 && (high - 0.2172).abs() < 1e-3, "{high}");
        let (low, high) = interval(Tally { fail: 5.0, pass: 5.0 });
        assert!((low - 0.2235).abs() < 1e-3 && (high - 0.7765).abs() < 1e-3, "{low} {high}");
    }

    #[test]
    fn rates_are_compared() {
        let tally = |fail: f64, pass: f64| Tally { fail, pass };
        let same = probability_above(tally(3.0, 9.0), tally(3.0, 9.0));
        assert!((same - 0.5).abs() < 5e-3, "{same}");
        assert!(probability_above(tally(8.0, 0.0), tally(0.0, 8.0)) > 0.999);
        assert!(probability_above(tally(0.0, 8.0), tally(8.0, 0.0)) < 0.001);
    }

    #[test]
    fn fisher_of_the_wrong_control() {
        // 24 of 24 against 18 of 24 (scenario 3).
        let p = fisher(Counts { fail: 0, total: 24 }, Counts { fail: 6, total: 24 });
        assert!((p - 0.0219).abs() < 5e-4, "{p}");
        near(fisher(Counts { fail: 2, total: 9 }, Counts { fail: 2, total: 9 }), 1.0);
    }

    #[test]
    fn channels_of_the_research_table() {
        for (p0, p1, bits) in [(0.0, 1.0, 1.0), (0.0, 0.75, 0.56), (0.05, 0.5, 0.21), (0.1, 0.4, 0.09)] {
            assert!((capacity(p0, p1) - bits).abs() < 0.01, "{p0} {p1}: {}", capacity(p0, p1));
        }
        assert!(expected_draws(6.0, 0.1, 0.4, 0.95) > expected_draws(6.0, 0.0, 0.75, 0.95));
    }
}
