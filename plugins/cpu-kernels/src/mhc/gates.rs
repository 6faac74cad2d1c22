//! From the mixing product to the gates. Eight rows at a time, one a lane, because a row alone has no work for vectors.

use hotseam_sdk::ops::lanes::{LANES, Lanes};
use hotseam_sdk::ops::{Kernel, dispatch, exp, exp_in_place};

/// Rows handled together.
pub(super) const GROUP: usize = LANES;
/// Most streams, as the views allow.
const MOST: usize = 16;

/// One value of each row of a group.
type Lane = [f32; LANES];

/// What turns a row `m [(2 + hc) * hc]` into its gates.
pub(super) struct MixGates<'a> {
    /// Streams.
    pub(super) hc: usize,
    /// Sinkhorn iterations.
    pub(super) iters: usize,
    /// Floor of gates and normalisations.
    pub(super) hc_eps: f32,
    /// `[(2 + hc) * hc]`.
    pub(super) base: &'a [f32],
    /// `[3]`.
    pub(super) scale: &'a [f32],
}

impl MixGates<'_> {
    /// Fills `pre [rows, hc]`, `post [rows, hc]` and `comb [rows, hc, hc]`.
    pub(super) fn apply(&self, m: &[f32], pre: &mut [f32], post: &mut [f32], comb: &mut [f32]) {
        let (hc, mix) = (self.hc, (2 + self.hc) * self.hc);
        let mut values = [[0.0; LANES]; (2 + MOST) * MOST];
        let values = &mut values[..mix];
        for (group, m) in m.chunks(GROUP * mix).enumerate() {
            let count = m.len() / mix;
            for (j, value) in values.iter_mut().enumerate() {
                let scale = self.scale[(j / hc).min(2)];
                // Lanes without a row compute with the base alone.
                *value = std::array::from_fn(|r| if r < count { m[r * mix + j] } else { 0.0 });
                value.iter_mut().for_each(|v| *v = *v * scale + self.base[j]);
            }
            let (gates, square) = values.split_at_mut(2 * hc);
            sigmoid(gates);
            dispatch(Sinkhorn { square: &mut *square, hc, iters: self.iters, eps: self.hc_eps });
            for r in 0..count {
                let row = group * GROUP + r;
                for j in 0..hc {
                    pre[row * hc + j] = gates[j][r] + self.hc_eps;
                    post[row * hc + j] = 2.0 * gates[hc + j][r];
                }
                for (c, value) in comb[row * hc * hc..][..hc * hc].iter_mut().zip(&*square) {
                    *c = value[r];
                }
            }
        }
    }
}

/// Turns rows `m [rows, hc]` into `sigmoid(m * scale + base) + hc_eps`.
pub(super) fn head_gates(m: &mut [f32], base: &[f32], scale: f32, hc_eps: f32) {
    for row in m.chunks_exact_mut(base.len()) {
        for (m, base) in row.iter_mut().zip(base) {
            *m = -(*m * scale + base);
        }
        exp_in_place(row);
        row.iter_mut().for_each(|e| *e = 1.0 / (1.0 + *e) + hc_eps);
    }
}

fn sigmoid(values: &mut [Lane]) {
    let values = values.as_flattened_mut();
    values.iter_mut().for_each(|v| *v = -*v);
    exp_in_place(values);
    values.iter_mut().for_each(|e| *e = 1.0 / (1.0 + *e));
}

/// From the arguments of the softmax over rows of `square [hc, hc]` to the mix: softmax plus `eps`, one normalisation of
/// the columns, then `iters - 1` times of rows and columns, each by the reciprocal of (sum + `eps`).
struct Sinkhorn<'a> {
    square: &'a mut [Lane],
    hc: usize,
    iters: usize,
    eps: f32,
}

impl Kernel for Sinkhorn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { square, hc, iters, eps } = self;
        let zero = lanes.splat(0.0);
        // The usual size has a copy of its own, in which everything is unrolled and stays in registers.
        if hc == 4 {
            let mut values: [L::V; 16] = [zero; 16];
            values.iter_mut().zip(&*square).for_each(|(value, from)| *value = lanes.get(from));
            sinkhorn(lanes, &mut values, 4, iters, eps);
            values.iter().zip(square).for_each(|(value, to)| lanes.put(*value, to));
        } else {
            let mut values = [zero; MOST * MOST];
            values.iter_mut().zip(&*square).for_each(|(value, from)| *value = lanes.get(from));
            sinkhorn(lanes, &mut values[..hc * hc], hc, iters, eps);
            values.iter().zip(square).for_each(|(value, to)| lanes.put(*value, to));
        }
    }
}

#[inline(always)]
fn sinkhorn<L: Lanes>(lanes: L, square: &mut [L::V], hc: usize, iters: usize, eps: f32) {
    let (zero, eps) = (lanes.splat(0.0), lanes.splat(eps));
    for i in 0..hc {
        let mut most = square[i * hc];
        for j in 1..hc {
            most = lanes.max(square[i * hc + j], most);
        }
        for j in 0..hc {
            let value = &mut square[i * hc + j];
            *value = exp(lanes, lanes.fma(most, lanes.splat(-1.0), *value));
        }
        normalise(lanes, square, i * hc, 1, hc, zero);
    }
    for value in square.iter_mut() {
        *value = lanes.add(*value, eps);
    }
    for j in 0..hc {
        normalise(lanes, square, j, hc, hc, eps);
    }
    for _ in 1..iters {
        for i in 0..hc {
            normalise(lanes, square, i * hc, 1, hc, eps);
        }
        for j in 0..hc {
            normalise(lanes, square, j, hc, hc, eps);
        }
    }
}

/// Divides `n` values from `first` on, `step` apart, by their sum plus `eps`.
#[inline(always)]
fn normalise<L: Lanes>(lanes: L, square: &mut [L::V], first: usize, step: usize, n: usize, eps: L::V) {
    let mut sum = square[first];
    for i in 1..n {
        sum = lanes.add(sum, square[first + i * step]);
    }
    let factor = lanes.div(lanes.splat(1.0), lanes.add(sum, eps));
    for i in 0..n {
        let value = &mut square[first + i * step];
        *value = lanes.mul(*value, factor);
    }
}
