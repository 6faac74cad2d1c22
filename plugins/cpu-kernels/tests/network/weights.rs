//! Random numbers.

use hotseam_sdk::ops::bf16;

/// A small generator (splitmix64), so that runs repeat.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Roughly normal, standard deviation 1.
    pub(crate) fn normal(&mut self) -> f32 {
        let sum: f64 = (0..6).map(|_| (self.bits() >> 11) as f64 / (1u64 << 53) as f64 - 0.5).sum();
        (sum * std::f64::consts::SQRT_2) as f32
    }

    pub(crate) fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// A bf16 matrix `[n, k]` that keeps the scale of its input.
    pub(crate) fn matrix(&mut self, n: usize, k: usize) -> Vec<u16> {
        let scale = (k as f32).sqrt().recip();
        (0..n * k).map(|_| bf16::from_f32(self.normal() * scale)).collect()
    }
}
