//! Inputs and comparisons for the tests of this crate.

/// A small reproducible generator (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Roughly normal values: sums of four uniform ones.
    pub(crate) fn normals(&mut self, n: usize) -> Vec<f32> {
        let uniform = |bits: u64| (bits & 0xffff) as f32 / 32768.0 - 1.0;
        (0..n)
            .map(|_| {
                let bits = self.next();
                uniform(bits) + uniform(bits >> 16) + uniform(bits >> 32) + uniform(bits >> 48)
            })
            .collect()
    }
}

/// Bits of all values, for comparisons that tell apart the zeros.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
