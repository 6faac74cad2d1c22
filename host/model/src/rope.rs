//! cos and sin tables, computed in the order of `transformers` (f32 frequencies, f32 angles).
//!
//! An angle in double precision would differ by 0.03 rad at position 524,288, so the single-precision products are part
//! of the model. cos and sin of that angle are correctly rounded here; PyTorch's vectorised versions are within one unit
//! in the last place of that and depend on the machine.

use crate::ModelConfig;

/// Which of the two ropes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeKind {
    /// Window layers: base `rope_theta`, never YaRN.
    Main,
    /// csa and hca layers: base `compress_rope_theta`, YaRN if configured.
    Compress,
}

/// cos and sin by position, `[positions, half]` row-major. Pair `i` of a rotated row is its channels `2i` and `2i+1`
/// counted from `len - 2*half`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Cosines.
    pub cos: Vec<f32>,
    /// Sines.
    pub sin: Vec<f32>,
    /// Pairs in a row: `qk_rope_head_dim / 2`.
    pub half: usize,
    /// Where copies of cosines and sines are in device memory; 0 for nowhere.
    pub device_addresses: [u64; 2],
}

impl RopeTable {
    /// Table for positions `0..max_positions`.
    pub fn new(cfg: &ModelConfig, kind: RopeKind, max_positions: usize) -> Self {
        let inv_freq = Self::inv_freq(cfg, kind);
        let half = inv_freq.len();
        let mut cos = Vec::with_capacity(max_positions * half);
        let mut sin = Vec::with_capacity(max_positions * half);
        for position in 0..max_positions {
            for &freq in &inv_freq {
                let angle = f64::from(position as f32 * freq);
                cos.push(angle.cos() as f32);
                sin.push(angle.sin() as f32);
            }
        }
        Self { cos, sin, half, device_addresses: [0; 2] }
    }

    /// cos and sin of one position. Panics if the table does not reach it.
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let range = position * self.half..(position + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }

    /// Positions covered.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half
    }

    /// Angle per position of each pair, radians, bit-equal to `transformers` (`compute_default_rope_parameters` and
    /// `_compute_yarn_parameters`).
    pub fn inv_freq(cfg: &ModelConfig, kind: RopeKind) -> Vec<f32> {
        let dim = cfg.qk_rope_head_dim;
        let theta = match kind {
            RopeKind::Main => cfg.rope_theta,
            RopeKind::Compress => cfg.compress_rope_theta,
        };
        // A single-precision power is the rounded double-precision one here: PyTorch agrees bit for bit.
        let power = |i: usize| theta.powf(f64::from((2 * i) as f32 / dim as f32)) as f32;
        let yarn = cfg.rope_scaling.filter(|_| kind == RopeKind::Compress);
        let Some(yarn) = yarn else { return (0..dim / 2).map(|i| 1.0 / power(i)).collect() };

        let correction = |rotations: f64| {
            let length = yarn.original_max_position_embeddings as f64;
            dim as f64 * (length / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * theta.ln())
        };
        let low = correction(yarn.beta_fast).floor().max(0.0);
        let mut high = correction(yarn.beta_slow).ceil().min((dim - 1) as f64);
        if low == high {
            high += 0.001; // no division by zero
        }
        let factor = yarn.factor as f32;
        (0..dim / 2)
            .map(|i| {
                let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                let keep = 1.0 - ramp;
                1.0 / (factor * power(i)) * (1.0 - keep) + 1.0 / power(i) * keep
            })
            .collect()
    }
}
