//! The best entries of a row.

use hotseam_cpu_kernels::scratch::lease;

/// Writes the numbers of the `ids.len()` largest scores in rising order, then -1. Ties go to the lower number, a NaN is
/// taken only when there is no number left.
pub(crate) fn best(scores: &[f32], ids: &mut [i32]) {
    let (n, k) = (scores.len(), ids.len());
    if n > k && k > 0 {
        let mut order = lease::<u64>(n);
        for (j, (place, score)) in order.iter_mut().zip(scores).enumerate() {
            *place = u64::from(!rising(*score)) << 32 | j as u64;
        }
        order.select_nth_unstable(k - 1);
        for (id, place) in ids.iter_mut().zip(&*order) {
            *id = *place as u32 as i32;
        }
        ids.sort_unstable();
    } else {
        for (j, id) in ids.iter_mut().enumerate() {
            *id = if j < n { j as i32 } else { -1 };
        }
    }
}

/// Bits that rise with the value; 0 for a NaN, below those of minus infinity.
fn rising(value: f32) -> u32 {
    let bits = value.to_bits();
    match (value.is_nan(), value.is_sign_negative()) {
        (true, _) => 0,
        (_, true) => !bits,
        (_, false) => bits | 0x8000_0000,
    }
}

#[cfg(test)]
mod tests {
    use super::best;

    fn ids<const K: usize>(scores: &[f32]) -> [i32; K] {
        let mut ids = [7; K];
        best(scores, &mut ids);
        ids
    }

    #[test]
    fn negative_scores_ties_and_nan() {
        assert_eq!(ids(&[-3.0, -1.0, -2.0, -0.5]), [1, 3]);
        assert_eq!(ids(&[1.0, 2.0, 1.0, 1.0]), [0, 1]);
        assert_eq!(ids(&[f32::NAN, f32::NEG_INFINITY, -f32::NAN, 0.0]), [1, 3]);
        assert_eq!(ids(&[f32::NAN, 1.0, f32::NAN]), [0, 1]);
    }

    #[test]
    fn few_scores_are_all_kept() {
        assert_eq!(ids(&[0.5, 9.0]), [0, 1, -1]);
        assert_eq!(ids::<2>(&[]), [-1, -1]);
        assert_eq!(ids(&[1.0; 3]), [0, 1, 2]);
    }
}
