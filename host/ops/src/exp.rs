//! Exponential function on lanes, the same bits on every path.
//!
//! `exp(x) = 2^n exp(r)` with `n = round(x / ln 2)` and `r = x - n ln 2` in two parts; `exp(r)` is the polynomial
//! of Cephes `expf`. `2^n` is applied in two factors, so results below the normal range round once, correctly.

use crate::isa::{Kernel, dispatch};
use crate::lanes::{LANES, Lanes, padded};

/// Beyond this, every result is zero.
const LOWEST: f32 = -105.0;
/// Beyond this, every result is infinite.
const HIGHEST: f32 = 90.0;
/// ln 2 in two parts; products of the first with small integers are exact.
const LN2: (f32, f32) = (355.0 / 512.0, -2.121_944_4e-4);
/// Coefficients of `(exp(r) - 1 - r) / r^2`, the highest power first.
const POLYNOMIAL: [f32; 6] =
    [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// Replaces each value by its exponential: at most 2 ulp off, 0 for negative infinity, NaN for NaN.
pub fn exp_in_place(x: &mut [f32]) {
    dispatch(Exp(x));
}

pub(crate) struct Exp<'a>(pub(crate) &'a mut [f32]);

impl Kernel for Exp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (eights, tail) = self.0.as_chunks_mut::<LANES>();
        for x in eights {
            lanes.put(exp(lanes, lanes.get(x)), x);
        }
        if !tail.is_empty() {
            let mut last = padded(tail);
            lanes.put(exp(lanes, lanes.get(&last)), &mut last);
            tail.copy_from_slice(&last[..tail.len()]);
        }
    }
}

/// Exponential of eight values.
#[inline(always)]
pub fn exp<L: Lanes>(lanes: L, x: L::V) -> L::V {
    // The constant comes first: a NaN in `x` passes.
    let x = lanes.min(lanes.splat(HIGHEST), lanes.max(lanes.splat(LOWEST), x));
    let n = lanes.round(lanes.mul(x, lanes.splat(std::f32::consts::LOG2_E)));
    let r = lanes.fma(n, lanes.splat(-LN2.0), x);
    let r = lanes.fma(n, lanes.splat(-LN2.1), r);
    let mut p = lanes.splat(POLYNOMIAL[0]);
    let mut i = 1;
    while i < POLYNOMIAL.len() {
        p = lanes.fma(p, r, lanes.splat(POLYNOMIAL[i]));
        i += 1;
    }
    let y = lanes.add(lanes.fma(p, lanes.mul(r, r), r), lanes.splat(1.0));
    let half = lanes.round(lanes.mul(n, lanes.splat(0.5)));
    let rest = lanes.fma(half, lanes.splat(-1.0), n);
    lanes.mul(lanes.mul(y, lanes.exp2_int(half)), lanes.exp2_int(rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::testing::bits;

    /// Distance in units of the last place of the exact result.
    fn ulp(got: f32, exact: f64) -> f64 {
        let above = f64::from(f32::from_bits((exact as f32).to_bits() + 1));
        (f64::from(got) - exact).abs() / (above - f64::from(exact as f32))
    }

    #[test]
    fn within_two_ulp_and_equal_on_every_path() {
        let mut worst = 0.0f64;
        let inputs: Vec<f32> = (0..1_400_001).map(|i| -87.0 + i as f32 * 1.25e-4).collect();
        let mut fast = inputs.clone();
        exp_in_place(&mut fast);
        for (isa, run) in Isa::all() {
            let mut values = inputs.clone();
            run.run(Exp(&mut values));
            assert_eq!(bits(&values), bits(&fast), "{isa}");
        }
        for (x, y) in inputs.iter().zip(&fast) {
            worst = worst.max(ulp(*y, f64::from(*x).exp()));
        }
        assert!(worst <= 2.0, "{worst} ulp");
        assert_eq!(inputs.last().map(|x| x.round()), Some(88.0));
    }

    #[test]
    fn special_values() {
        for length in 1..20 {
            for (x, y) in [
                (f32::NEG_INFINITY, 0.0),
                (-1e30, 0.0),
                (-104.0, 0.0),
                (0.0, 1.0),
                (-0.0, 1.0),
                (89.0, f32::INFINITY),
                (f32::INFINITY, f32::INFINITY),
            ] {
                let mut values = vec![x; length];
                exp_in_place(&mut values);
                assert_eq!(bits(&values), bits(&vec![y; length]), "exp({x})");
            }
            let mut values = vec![f32::NAN; length];
            exp_in_place(&mut values);
            assert!(values.iter().all(|x| x.is_nan()));
        }
    }

    #[test]
    fn results_below_the_normal_range_are_gradual() {
        let inputs: Vec<f32> = (0..17_001).map(|i| -87.0 - i as f32 * 1e-3).collect();
        let mut fast = inputs.clone();
        exp_in_place(&mut fast);
        for (isa, run) in Isa::all() {
            let mut values = inputs.clone();
            run.run(Exp(&mut values));
            assert_eq!(bits(&values), bits(&fast), "{isa}");
        }
        for (x, y) in inputs.iter().zip(&fast) {
            let exact = f64::from(*x).exp();
            assert!((f64::from(*y) - exact).abs() <= 2e-7 * exact + 1.5e-45, "exp({x}) = {y}");
        }
    }
}
