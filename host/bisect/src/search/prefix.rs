//! Smallest failing prefix, by weighted halving.

/// The smallest `k` in `1 ..= weights.len()` for which `test(k)` is true, given that `test(0)` is false and
/// `test(weights.len())` is true; neither is called. `weights` say where the boundary is expected: each test halves
/// the weight that is left. If `test` is not monotone, the result is still a place where it turns from false to true.
///
/// `test` also gets the number of candidates that will be left.
///
/// # Errors
/// The first error of `test`.
pub(crate) fn smallest_failing<E>(
    weights: &[f64],
    mut test: impl FnMut(usize, [usize; 2]) -> Result<bool, E>,
) -> Result<usize, E> {
    let (mut passes, mut fails) = (0, weights.len());
    while fails - passes > 1 {
        let middle = split(&weights[passes..fails]) + passes;
        // Candidates left if the prefix passes, and if it fails.
        if test(middle, [fails - middle, middle - passes])? {
            fails = middle;
        } else {
            passes = middle;
        }
    }
    Ok(fails)
}

/// The length in `1 .. weights.len()` whose prefix weighs nearest to half.
fn split(weights: &[f64]) -> usize {
    let half = weights.iter().sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let mut best = (f64::INFINITY, 1);
    for (index, weight) in weights[..weights.len() - 1].iter().enumerate() {
        sum += weight;
        let distance = (sum - half).abs();
        if distance < best.0 {
            best = (distance, index + 1);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(weights: &[f64], boundary: usize) -> (usize, usize) {
        let mut runs = 0;
        let found = smallest_failing::<()>(weights, |length, _| {
            runs += 1;
            Ok(length >= boundary)
        });
        (found.unwrap(), runs)
    }

    #[test]
    fn finds_every_boundary_in_logarithmic_runs() {
        for n in 1..70_usize {
            for boundary in 1..=n {
                let (found, runs) = find(&vec![1.0; n], boundary);
                assert_eq!(found, boundary, "of {n}");
                assert!(runs <= n.next_power_of_two().trailing_zeros() as usize, "{runs} runs for {n}");
            }
        }
    }

    #[test]
    fn weight_shortens_the_way_to_the_suspect() {
        let mut weights = vec![1.0; 16];
        weights[0] = 24.0;
        assert_eq!(find(&weights, 1), (1, 1));
        assert_eq!(find(&weights, 16).0, 16);
    }

    #[test]
    fn tells_how_many_are_left() {
        let mut seen = Vec::new();
        let _ = smallest_failing::<()>(&[1.0; 8], |length, left| {
            seen.push((length, left));
            Ok(length >= 3)
        });
        assert_eq!(seen, [(4, [4, 4]), (2, [2, 2]), (3, [1, 1])]);
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(smallest_failing(&[1.0; 4], |_, _| Err("stop")), Err("stop"));
    }
}
