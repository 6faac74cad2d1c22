//! Rotary position embedding on the trailing channels, pairs interleaved.

/// Rotates the last `2 * cos.len()` channels of one head in place; the channels before are left alone.
///
/// Channel pair `i` turns by the angle with `cos[i]` and `sin[i]`, or by its opposite if `inverse`. Products and
/// sums are rounded one by one, as transformers computes them, so the result has the same bits.
///
/// # Panics
/// If `cos` and `sin` differ in length, or `x` is shorter than the rotated part.
pub fn rope(x: &mut [f32], cos: &[f32], sin: &[f32], inverse: bool) {
    let pairs = cos.len();
    assert_eq!(sin.len(), pairs, "rope: lengths of sin and cos");
    assert!(x.len() >= 2 * pairs, "rope: x has {} channels, {pairs} pairs do not fit", x.len());
    let start = x.len() - 2 * pairs;
    let sign = if inverse { -1.0 } else { 1.0 };
    let (pairs, _) = x[start..].as_chunks_mut::<2>();
    for (([even, odd], cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
        let sin = sin * sign;
        (*even, *odd) = (*even * cos - *odd * sin, *odd * cos + *even * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, bits};

    #[test]
    fn rotates_the_tail_only() {
        let mut random = Random::new(41);
        for half in [0, 1, 4, 32] {
            for nope in [0, 1, 24] {
                let x = random.normals(nope + 2 * half);
                let angles = random.normals(half);
                let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
                let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
                let mut y = x.clone();
                rope(&mut y, &cos, &sin, false);
                assert_eq!(bits(&y[..nope]), bits(&x[..nope]));
                for i in 0..half {
                    let (a, b) = (x[nope + 2 * i], x[nope + 2 * i + 1]);
                    assert_eq!(y[nope + 2 * i], a * cos[i] - b * sin[i]);
                    assert_eq!(y[nope + 2 * i + 1], b * cos[i] + a * sin[i]);
                }
                rope(&mut y, &cos, &sin, true);
                for (x, y) in x.iter().zip(&y) {
                    assert!((x - y).abs() <= 1e-6 * (1.0 + x.abs()), "{x} came back as {y}");
                }
            }
        }
    }
}
