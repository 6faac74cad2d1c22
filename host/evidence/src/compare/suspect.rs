//! From a comparison to the suspicion that each change deserves.

use hotseam_slots::CellId;
use serde::{Deserialize, Serialize};

use super::report::Comparison;
use super::tally::{CellTally, Side};

/// A change whose first call was the first divergence.
const FIRST: f64 = 40.0;
/// A change that is beyond the floor somewhere.
const WRONG: f64 = 20.0;
/// A change whose stock is beyond the floor and which itself is not.
const HEALS: f64 = 0.5;
/// A change that is numerically as good as stock. Equal numbers on some inputs clear no wiring, so this is not small.
const CLEAN: f64 = 0.2;

/// What cheap evidence says about a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Weighed {
    /// Likelihood ratio of the change being a culprit: 1 if nothing is known, never zero.
    pub weight: f64,
    /// What was seen.
    pub evidence: String,
}

/// Weighs changes, each given by its cells; `None` where no cell of a change was compared.
pub fn suspicions(comparison: &Comparison, changes: &[Vec<CellId>]) -> Vec<Option<Weighed>> {
    changes.iter().map(|cells| weigh(comparison, cells)).collect()
}

fn weigh(comparison: &Comparison, cells: &[CellId]) -> Option<Weighed> {
    let compared = |tally: &&CellTally| tally.calls > tally.skipped.as_ref().map_or(0, |(n, _)| *n);
    let tallies: Vec<&CellTally> =
        cells.iter().filter_map(|cell| comparison.cell(cell)).filter(compared).collect();
    let worst = tallies.iter().max_by(|a, b| {
        let rank = |c: &CellTally| (matches!(c.side(), Side::Patched | Side::Both), c.floors());
        let ((wrong_a, a), (wrong_b, b)) = (rank(a), rank(b));
        wrong_a.cmp(&wrong_b).then(a.total_cmp(&b))
    })?;
    let calls: u64 = tallies.iter().map(|c| c.calls).sum();
    let first = comparison.first.as_ref().is_some_and(|alarm| cells.contains(&alarm.place.cell));
    let alarm = |alarm: &Option<super::Alarm>| {
        alarm.as_ref().map_or(String::new(), |a| format!("{}: {}", a.place.cell, a.what))
    };
    let stock_alone = tallies.iter().find(|c| c.side() == Side::Stock);
    let (weight, evidence) = match (worst.side(), stock_alone) {
        (Side::Patched | Side::Both, _) => {
            let place = if first { ", the first divergence" } else { "" };
            (if first { FIRST } else { WRONG }, format!("{}{place}", alarm(&worst.first_patched)))
        }
        (_, Some(stock)) => (HEALS, format!("stock is the wrong one: {}", alarm(&stock.first_stock))),
        _ => {
            // Near the floor is a little more suspicious than far below it.
            let near = worst.floors().min(1.0);
            let text = format!(
                "within the floor of truth in {calls} calls, error {:.2} floors, {:.1}x stock's",
                worst.floors(),
                worst.ratio()
            );
            (CLEAN * (1.0 + near), text)
        }
    };
    Some(Weighed { weight, evidence: format!("E3 shadow: {evidence}") })
}
