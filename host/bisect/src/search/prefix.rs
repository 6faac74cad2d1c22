//! Smallest failing prefix, by weighted halving.

/// Where a prefix turns from passing to failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// The smallest failing prefix has this length.
    At(usize),
    /// The prefix of the first length passes, that of the second fails, and none between can be judged.
    Between(usize, usize),
}

/// The smallest `k` in `1 ..= weights.len()` for which the prefix of length `k` fails, given that the empty one passes
/// and the whole fails; neither is asked. `weights` say where the boundary is expected: each question splits what
/// weight is left into `jobs` + 1 parts. If failing is not monotone, the result is still a place where it begins.
///
/// `test` is asked for lengths, with the numbers of candidates that a passing and a failing answer will leave; `None`
/// is a prefix that cannot be judged.
///
/// # Errors
/// The first error of `test`.
pub(crate) fn smallest_failing<E>(
    weights: &[f64],
    jobs: usize,
    mut test: impl FnMut(&[(usize, [usize; 2])]) -> Result<Vec<Option<bool>>, E>,
) -> Result<Boundary, E> {
    let (mut passes, mut fails) = (0, weights.len());
    let mut skipped: Vec<usize> = Vec::new();
    while fails - passes > 1 {
        let lengths = splits(weights, passes, fails, jobs, &skipped);
        if lengths.is_empty() {
            return Ok(Boundary::Between(passes, fails));
        }
        // Candidates left if the prefix passes, and if it fails.
        let asked: Vec<(usize, [usize; 2])> =
            lengths.iter().map(|&length| (length, [fails - length, length - passes])).collect();
        let answers = test(&asked)?;
        for (&length, answer) in lengths.iter().zip(answers) {
            match answer {
                None => skipped.push(length),
                Some(true) if length < fails => fails = length,
                Some(false) if length < fails => passes = passes.max(length),
                Some(_) => {}
            }
        }
    }
    Ok(Boundary::At(fails))
}

/// Up to `jobs` rising lengths between `passes` and `fails` that cut the weight into even parts.
fn splits(weights: &[f64], passes: usize, fails: usize, jobs: usize, skipped: &[usize]) -> Vec<usize> {
    let open: Vec<usize> = (passes + 1..fails).filter(|length| !skipped.contains(length)).collect();
    let mut sums = Vec::with_capacity(open.len());
    let (mut sum, mut at) = (0.0, passes);
    for &length in &open {
        sum += weights[at..length].iter().sum::<f64>();
        at = length;
        sums.push(sum);
    }
    let total: f64 = weights[passes..fails].iter().sum();
    let parts = jobs.max(1).min(open.len());
    let mut chosen = Vec::new();
    for part in 1..=parts {
        let wanted = total * part as f64 / (parts + 1) as f64;
        let nearest = open
            .iter()
            .zip(&sums)
            .filter(|(length, _)| !chosen.contains(*length))
            .min_by(|a, b| (a.1 - wanted).abs().total_cmp(&(b.1 - wanted).abs()));
        if let Some((&length, _)) = nearest {
            chosen.push(length);
        }
    }
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(weights: &[f64], jobs: usize, boundary: usize) -> (Boundary, usize, usize) {
        let (mut rounds, mut runs) = (0, 0);
        let found = smallest_failing::<()>(weights, jobs, |lengths| {
            rounds += 1;
            runs += lengths.len();
            Ok(lengths.iter().map(|(length, _)| Some(*length >= boundary)).collect())
        });
        (found.unwrap(), rounds, runs)
    }

    #[test]
    fn finds_every_boundary_in_logarithmic_runs() {
        for n in 1..70_usize {
            for boundary in 1..=n {
                let (found, runs, _) = find(&vec![1.0; n], 1, boundary);
                assert_eq!(found, Boundary::At(boundary), "of {n}");
                assert!(runs <= n.next_power_of_two().trailing_zeros() as usize, "{runs} runs for {n}");
            }
        }
    }

    #[test]
    fn several_at_once_take_fewer_rounds() {
        for boundary in 1..=81 {
            let (found, rounds, runs) = find(&[1.0; 81], 2, boundary);
            assert_eq!(found, Boundary::At(boundary));
            assert!(rounds <= 5 && runs <= 10, "{rounds} rounds, {runs} runs");
        }
    }

    #[test]
    fn weight_shortens_the_way_to_the_suspect() {
        let mut weights = vec![1.0; 16];
        weights[0] = 24.0;
        assert_eq!(find(&weights, 1, 1), (Boundary::At(1), 1, 1));
        assert_eq!(find(&weights, 1, 16).0, Boundary::At(16));
    }

    #[test]
    fn tells_how_many_are_left() {
        let mut seen: Vec<(usize, [usize; 2])> = Vec::new();
        let _ = smallest_failing::<()>(&[1.0; 8], 1, |lengths| {
            seen.extend(lengths);
            Ok(lengths.iter().map(|(length, _)| Some(*length >= 3)).collect())
        });
        assert_eq!(seen, [(4, [4, 4]), (2, [2, 2]), (3, [1, 1])]);
    }

    #[test]
    fn prefixes_that_cannot_be_judged_are_gone_around() {
        for boundary in 1..=16_usize {
            for skip in 1..16_usize {
                let found = smallest_failing::<()>(&[1.0; 16], 1, |lengths| {
                    let answer =
                        |&(length, _): &(usize, _)| (length / 2 != skip / 2).then_some(length >= boundary);
                    Ok(lengths.iter().map(answer).collect())
                });
                match found.unwrap() {
                    Boundary::At(at) => assert_eq!(at, boundary),
                    Boundary::Between(passes, fails) => {
                        assert!(passes < boundary && boundary <= fails && fails - passes <= 3);
                    }
                }
            }
        }
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(smallest_failing(&[1.0; 4], 1, |_| Err("stop")), Err("stop"));
    }
}
