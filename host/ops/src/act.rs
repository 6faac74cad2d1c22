//! Activations of the experts and of the router.

use crate::exp::exp;
use crate::isa::{Kernel, dispatch};
use crate::lanes::{LANES, Lanes, padded};

/// `out = silu(min(gate, limit)) * clamp(up, -limit, limit)` with `silu(x) = x / (1 + exp(-x))`: the activation
/// of an expert. An infinite `limit` clamps nothing. NaN stay NaN.
///
/// # Panics
/// If the lengths differ.
pub fn swiglu(gate: &[f32], up: &[f32], limit: f32, out: &mut [f32]) {
    assert_eq!(gate.len(), out.len(), "swiglu: lengths of gate and out");
    assert_eq!(up.len(), out.len(), "swiglu: lengths of up and out");
    dispatch(Swiglu { gate, up, limit, out });
}

struct Swiglu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    limit: f32,
    out: &'a mut [f32],
}

impl Kernel for Swiglu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (gate, gate_tail) = self.gate.as_chunks::<LANES>();
        let (up, up_tail) = self.up.as_chunks::<LANES>();
        let (out, out_tail) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gate.iter().zip(up).zip(out) {
            eight(lanes, gate, up, self.limit, out);
        }
        if !out_tail.is_empty() {
            let mut last = [0.0; LANES];
            eight(lanes, &padded(gate_tail), &padded(up_tail), self.limit, &mut last);
            out_tail.copy_from_slice(&last[..out_tail.len()]);
        }
    }
}

/// Eight values of [`swiglu`].
#[inline(always)]
fn eight<L: Lanes>(lanes: L, gate: &[f32; LANES], up: &[f32; LANES], limit: f32, out: &mut [f32; LANES]) {
    // The limit comes first, so that a NaN passes.
    let gate = lanes.min(lanes.splat(limit), lanes.get(gate));
    let up = lanes.max(lanes.splat(-limit), lanes.min(lanes.splat(limit), lanes.get(up)));
    let one = lanes.splat(1.0);
    let e = exp(lanes, lanes.mul(gate, lanes.splat(-1.0)));
    let silu = lanes.div(gate, lanes.add(one, e));
    lanes.put(lanes.mul(silu, up), out);
}

/// `1 / (1 + exp(-x))`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `sqrt(softplus(x))`, the score of the router: `softplus(x) = ln(1 + exp(x))`, and `x` itself above 20, as
/// torch computes it.
pub fn sqrt_softplus(x: f32) -> f32 {
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    softplus.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::testing::{Random, bits};

    #[test]
    fn swiglu_follows_its_formula_on_every_path() {
        let mut random = Random::new(21);
        for n in [0, 1, 7, 8, 9, 100] {
            for limit in [1.0, 10.0, f32::INFINITY] {
                let mut gate = random.normals(n);
                let mut up = random.normals(n);
                gate.iter_mut().chain(&mut up).for_each(|x| *x *= 8.0);
                let mut fast = vec![f32::NAN; n];
                swiglu(&gate, &up, limit, &mut fast);
                for (isa, run) in Isa::all() {
                    let mut out = vec![f32::NAN; n];
                    run.run(Swiglu { gate: &gate, up: &up, limit, out: &mut out });
                    assert_eq!(bits(&out), bits(&fast), "{isa}, n {n}, limit {limit}");
                }
                for i in 0..n {
                    let g = f64::from(gate[i].min(limit));
                    let exact = g / (1.0 + (-g).exp()) * f64::from(up[i].clamp(-limit, limit));
                    let error = (f64::from(fast[i]) - exact).abs();
                    assert!(
                        error <= 1e-6 * exact.abs() + 1e-30,
                        "gate {}, up {}, {}",
                        gate[i],
                        up[i],
                        fast[i]
                    );
                }
            }
        }
    }

    #[test]
    fn swiglu_keeps_nan() {
        let nan = f32::NAN;
        let mut out = [0.0; 3];
        swiglu(&[nan, 1.0, 1.0], &[1.0, nan, 1.0], 7.0, &mut out);
        assert!(out[0].is_nan() && out[1].is_nan() && out[2] > 0.7, "{out:?}");
    }

    #[test]
    fn scalar_functions_match_f64() {
        for i in -4000..4000 {
            let x = i as f32 * 0.01;
            let wide = f64::from(x);
            let near = |got: f32, exact: f64| (f64::from(got) - exact).abs() <= 3e-7 * exact;
            assert!(near(sigmoid(x), 1.0 / (1.0 + (-wide).exp())), "sigmoid({x})");
            assert!(near(sqrt_softplus(x), wide.exp().ln_1p().sqrt()), "sqrt_softplus({x})");
        }
        assert_eq!(sqrt_softplus(f32::NEG_INFINITY), 0.0);
        assert_eq!(sqrt_softplus(1e30), 1e15);
        assert!(sqrt_softplus(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
        assert_eq!((sigmoid(f32::NEG_INFINITY), sigmoid(f32::INFINITY)), (0.0, 1.0));
    }
}
