//! Changes that fail only together.

use super::hunt::{Hunt, Stop};
use super::order::{self, Suspect};
use super::prefix;
use super::verdict::Found;

/// Finds a minimal failing set that contains the last of the first `length` suspects, which together fail and without
/// it pass: fix it, find the smallest prefix that fails with what is fixed, fix the last of that, repeat.
///
/// `None` if no set of at most `max_set` was found.
pub(crate) fn find(
    hunt: &mut Hunt<'_>,
    suspects: &[Suspect],
    length: usize,
    max_set: usize,
) -> Result<Option<Found>, Stop> {
    let mut fixed = vec![&suspects[length - 1]];
    let mut bound = length - 1;
    hunt.note(&format!(
        "{} passes alone: looking for what it needs to fail",
        hunt.plan.changes[fixed[0].change].place()
    ));
    while fixed.len() < max_set && bound > 0 {
        let weights: Vec<f64> = suspects[..bound].iter().map(|suspect| suspect.weight).collect();
        let partner = prefix::smallest_failing(&weights, |length, left| {
            let atoms = order::union(fixed.iter().copied().chain(&suspects[..length]));
            let arm = hunt.plan.with_required(&atoms);
            let why = format!("fixed {} + first {length} suspects", fixed.len());
            hunt.test(&arm, &why, Some(left)).map(|tested| tested.bad)
        })?;
        fixed.push(&suspects[partner - 1]);
        bound = partner - 1;
        let arm = hunt.plan.with_required(&order::union(fixed.iter().copied()));
        let why = format!("{} changes together", fixed.len());
        let tested = hunt.test(&arm, &why, None)?;
        if tested.bad {
            return Ok(Some(Found::set(&fixed, tested.trial)));
        }
    }
    Ok(None)
}
