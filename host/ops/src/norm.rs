//! Root mean square normalisation.

use crate::vector::dot;

/// `out = x / sqrt(mean(x^2) + eps) * weight`, for one row; without a weight, only the normalisation.
///
/// The sum of squares has the order of [`dot`]. Each value is first scaled, then multiplied with its weight, as
/// transformers does.
///
/// # Panics
/// If the lengths differ.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "rms_norm: lengths of x and out");
    if x.is_empty() {
        return;
    }
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    match weight {
        Some(weight) => {
            assert_eq!(weight.len(), x.len(), "rms_norm: lengths of weight and x");
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = x * scale * weight;
            }
        }
        None => {
            for (out, x) in out.iter_mut().zip(x) {
                *out = x * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn matches_f64() {
        let mut random = Random::new(31);
        for n in [0, 1, 5, 8, 64, 257] {
            let (x, weight) = (random.normals(n), random.normals(n));
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
            for with_weight in [false, true] {
                let mut out = vec![f32::NAN; n];
                rms_norm(&x, with_weight.then_some(&weight), 1e-6, &mut out);
                for i in 0..n {
                    let factor = if with_weight { f64::from(weight[i]) } else { 1.0 };
                    let exact = f64::from(x[i]) / (mean + 1e-6).sqrt() * factor;
                    assert!((f64::from(out[i]) - exact).abs() <= 1e-6 * exact.abs(), "n {n}, i {i}");
                }
            }
        }
    }

    #[test]
    fn eps_keeps_zeros_finite() {
        let mut out = [f32::NAN; 9];
        rms_norm(&[0.0; 9], None, 1e-6, &mut out);
        assert_eq!(out, [0.0; 9]);
    }
}
