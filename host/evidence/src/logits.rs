//! Arithmetic of rows of logits.

/// Turns logits into log-probabilities. Anything not finite among them makes every entry NaN.
pub(crate) fn log_softmax(logits: &mut [f32]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    let shift = f64::from(max) + sum.ln();
    for x in logits {
        *x = (f64::from(*x) - shift) as f32;
    }
}

/// KL(base, arm) of two rows of log-probabilities, in nats; infinite if the arm is not finite.
pub(crate) fn kl(base: &[f32], arm: &[f32]) -> f64 {
    let sum: f64 =
        base.iter().zip(arm).map(|(p, q)| f64::from(*p).exp() * (f64::from(*p) - f64::from(*q))).sum();
    if sum.is_nan() { f64::INFINITY } else { sum.max(0.0) }
}

/// Index of the largest value.
pub(crate) fn argmax(row: &[f32]) -> Option<usize> {
    row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kl_of_known_distributions() {
        let mut p = [0.0_f32, 2.0_f32.ln()];
        log_softmax(&mut p);
        assert!((p[0] - (1.0_f32 / 3.0).ln()).abs() < 1e-6);
        let mut q = [0.0_f32, 0.0];
        log_softmax(&mut q);
        let want = (1.0 / 3.0) * (2.0_f64 / 3.0).ln() + (2.0 / 3.0) * (4.0_f64 / 3.0).ln();
        assert!((kl(&p, &q) - want).abs() < 1e-6);
        assert_eq!(kl(&p, &p), 0.0);
        assert_eq!((argmax(&p), argmax(&[3.0, 1.0])), (Some(1), Some(0)));
    }

    #[test]
    fn rows_that_are_not_finite_are_infinitely_far() {
        let mut p = [0.0_f32, 1.0];
        log_softmax(&mut p);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut q = [0.0, bad];
            log_softmax(&mut q);
            assert_eq!(kl(&p, &q), f64::INFINITY);
        }
    }
}
