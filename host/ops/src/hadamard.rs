//! Walsh-Hadamard transform, which spreads outliers over all channels before quantisation.

/// Multiplies one row in place with the orthonormal Hadamard matrix in natural (Sylvester) order: entry `[i, j]`
/// is `(-1)^popcount(i & j) / sqrt(n)`. The transform is its own inverse. Sums run as butterflies with strides
/// 1, 2, 4, ..., then the scale is applied.
///
/// # Panics
/// If the length is not a power of two.
pub fn hadamard(x: &mut [f32]) {
    let n = x.len();
    assert!(n.is_power_of_two(), "hadamard: {n} channels, a power of two is needed");
    let (eights, few) = x.as_chunks_mut::<8>();
    for x in eights {
        for stride in [1, 2, 4] {
            butterfly(x, stride);
        }
    }
    let mut stride = if few.is_empty() { 8 } else { 1 };
    while stride < n {
        butterfly(x, stride);
        stride *= 2;
    }
    crate::scale(1.0 / (n as f32).sqrt(), x);
}

/// Sums and differences of values `stride` apart.
#[inline(always)]
fn butterfly(x: &mut [f32], stride: usize) {
    for pair in x.chunks_exact_mut(2 * stride) {
        let (low, high) = pair.split_at_mut(stride);
        for (a, b) in low.iter_mut().zip(high) {
            (*a, *b) = (*a + *b, *a - *b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn matches_the_matrix_and_inverts_itself() {
        let mut random = Random::new(51);
        for log in 0..9u32 {
            let n = 1usize << log;
            let x = random.normals(n);
            let mut y = x.clone();
            hadamard(&mut y);
            for (i, &y) in y.iter().enumerate() {
                let exact: f64 = (0..n)
                    .map(|j| if (i & j).count_ones() % 2 == 0 { f64::from(x[j]) } else { -f64::from(x[j]) })
                    .sum::<f64>()
                    / (n as f64).sqrt();
                assert!((f64::from(y) - exact).abs() < 2e-6, "n {n}, i {i}: {y} is not {exact}");
            }
            hadamard(&mut y);
            for (x, y) in x.iter().zip(&y) {
                assert!((x - y).abs() < 2e-6, "n {n}: {x} came back as {y}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "12 channels")]
    fn other_lengths_are_refused() {
        hadamard(&mut [0.0; 12]);
    }
}
