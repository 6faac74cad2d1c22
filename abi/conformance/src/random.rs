//! Seeded random numbers: splitmix64, the same on every machine.

/// A generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0 .. n`; the bias is below 2^-40 for the sizes used here.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }

    /// Mean 0, variance 1, nearly normal: the sum of four uniform numbers, so at most 3.46 from 0.
    pub(crate) fn normal(&mut self) -> f32 {
        let bits = self.next_u64();
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
        (sum as f32 - 131_070.0) * (3f32.sqrt() / 65_536.0)
    }

    /// `n` normal values times `scale`.
    pub(crate) fn normals(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * scale).collect()
    }

    /// `0 .. n` in random order.
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_zero_and_variance_one_and_repeat() {
        let values = Random::new(7).normals(20_000, 1.0);
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / 2e4;
        let variance = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / 2e4;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        assert_eq!(values, Random::new(7).normals(20_000, 1.0));
        assert_ne!(values, Random::new(8).normals(20_000, 1.0));
    }

    #[test]
    fn a_permutation_holds_every_number_once() {
        let mut order = Random::new(1).permutation(50);
        assert_ne!(order, (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }
}
