//! Seeded choices that are the same on every machine and in every release.

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    /// A stream that depends on all of `seeds`.
    pub(crate) fn new(seeds: &[u64]) -> Self {
        let mut random = Self(0x9e37_79b9_7f4a_7c15);
        for seed in seeds {
            random.0 ^= *seed;
            random.0 = random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The bias for bounds far below 2^64 does not matter here.
        (self.next() % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_every_seed_and_repeat() {
        let draw = |seeds: &[u64]| {
            let mut random = Random::new(seeds);
            (0..8).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(&[1, 2]), draw(&[1, 2]));
        assert_ne!(draw(&[1, 2]), draw(&[2, 1]));
        assert_ne!(draw(&[1, 2]), draw(&[1, 3]));
    }
}
