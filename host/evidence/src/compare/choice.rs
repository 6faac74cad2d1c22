//! Choices: entries of the indexer, experts of the router. Order is never compared; scores are recomputed.

use serde::{Deserialize, Serialize};

use super::metrics::At;
use crate::finite;

/// How far choices are from the best ones, over the rows of one call or many.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChoiceError {
    /// Rows that had to leave something out.
    pub rows: u64,
    /// Places in those rows.
    pub places: u64,
    /// Places whose choice is among the best, ties included.
    pub common: u64,
    /// Rows whose set is not the best one, ties aside.
    pub flipped_rows: u64,
    /// Numbers that do not exist at their row, or follow a -1.
    pub unreachable: u64,
    /// Numbers that were chosen before in the same row.
    pub duplicates: u64,
    /// Places left empty although there was something to choose.
    pub missing: u64,
    /// Best rank, from 0, of something that should have been chosen and was not.
    pub best_lost: Option<u64>,
    /// Furthest past the cut, in ranks, that something was chosen from.
    pub displaced: u64,
    /// Largest gap between the score of something lost and of what was chosen in its place, in floors.
    #[serde(with = "finite")]
    pub gap: f64,
    /// Where the largest gap, or else the first broken rule, is.
    pub at: Option<At>,
}

/// What one row chooses from.
pub(crate) struct Row<'a> {
    /// Score of each candidate.
    pub(crate) scores: &'a [f64],
    /// Places.
    pub(crate) k: usize,
    /// Size of the floor in the units of the scores.
    pub(crate) floor: f64,
    /// Number of the row.
    pub(crate) number: usize,
    /// Number of the call.
    pub(crate) call: u64,
}

impl ChoiceError {
    /// Judges the choice `ids` of a row, -1 for an empty place.
    pub(crate) fn row(&mut self, row: &Row<'_>, ids: &[i32]) {
        let n = row.scores.len();
        let mut chosen: Vec<usize> = Vec::with_capacity(ids.len());
        let mut ended = false;
        let mut broken = false;
        for id in ids {
            let known = usize::try_from(*id).ok().filter(|id| *id < n);
            match known {
                _ if *id == -1 => ended = true,
                Some(_) if ended => (self.unreachable, broken) = (self.unreachable + 1, true),
                Some(id) if chosen.contains(&id) => (self.duplicates, broken) = (self.duplicates + 1, true),
                Some(id) => chosen.push(id),
                None => (self.unreachable, broken) = (self.unreachable + 1, true),
            }
        }
        let numbers = row.scores.iter().filter(|s| !s.is_nan()).count();
        let least = if n <= row.k { n } else { numbers.min(row.k) };
        if chosen.len() < least {
            self.missing += (least - chosen.len()) as u64;
            broken = true;
        }
        let at = |rank: usize| At { call: row.call, coordinate: format!("row {} rank {rank}", row.number) };
        if broken && self.at.is_none() {
            self.at = Some(at(0));
        }
        if n > row.k {
            self.ranked(row, &chosen, at);
        }
    }

    fn ranked(&mut self, row: &Row<'_>, chosen: &[usize], at: impl Fn(usize) -> At) {
        let mut order: Vec<usize> = (0..row.scores.len()).filter(|e| !row.scores[*e].is_nan()).collect();
        order.sort_by(|a, b| row.scores[*b].total_cmp(&row.scores[*a]));
        let k = row.k.min(order.len());
        let Some(cut) = k.checked_sub(1).map(|last| row.scores[order[last]]) else { return };
        self.rows += 1;
        self.places += k as u64;
        let good = |e: &usize| row.scores[*e] >= cut;
        self.common += chosen.iter().filter(|e| good(e)).count().min(k) as u64;
        let is_chosen: std::collections::HashSet<usize> = chosen.iter().copied().collect();
        // What ties with the cut may be left out for something else that does.
        let lost = order[..k].iter().position(|e| row.scores[*e] > cut && !is_chosen.contains(e));
        let wrong: Vec<usize> = chosen.iter().copied().filter(|e| !good(e)).collect();
        if lost.is_none() && wrong.is_empty() && chosen.len() >= k {
            return;
        }
        self.flipped_rows += 1;
        if let Some(rank) = lost {
            self.best_lost = Some(self.best_lost.map_or(rank as u64, |best| best.min(rank as u64)));
        }
        let rank_of = |e: usize| order.iter().position(|o| *o == e);
        for e in &wrong {
            // A NaN has no rank; it stands behind every number.
            let rank = rank_of(*e).unwrap_or(order.len());
            self.displaced = self.displaced.max((rank + 1).saturating_sub(k) as u64);
        }
        let mut kept: Vec<f64> = chosen.iter().map(|e| row.scores[*e]).filter(|s| !s.is_nan()).collect();
        kept.sort_by(|a, b| b.total_cmp(a));
        for (rank, best) in order[..k].iter().enumerate() {
            let gap = match kept.get(rank) {
                Some(kept) => (row.scores[*best] - kept) / row.floor,
                None => f64::INFINITY,
            };
            if gap > self.gap {
                self.gap = gap;
                self.at = Some(at(rank));
            }
        }
    }

    /// Share of the places whose choice is among the best; 1 if nothing had to be left out.
    pub fn overlap(&self) -> f64 {
        if self.places == 0 { 1.0 } else { self.common as f64 / self.places as f64 }
    }

    /// Broken rules: numbers that do not exist, duplicates, empty places.
    pub fn broken(&self) -> u64 {
        self.unreachable + self.duplicates + self.missing
    }

    /// Adds the choices of another call.
    pub(crate) fn add(&mut self, other: Self) {
        if other.at.is_some() && (self.at.is_none() || other.gap > self.gap) {
            self.at = other.at;
        }
        self.gap = self.gap.max(other.gap);
        self.displaced = self.displaced.max(other.displaced);
        self.best_lost = self.best_lost.into_iter().chain(other.best_lost).min();
        for (mine, its) in [
            (&mut self.rows, other.rows),
            (&mut self.places, other.places),
            (&mut self.common, other.common),
            (&mut self.flipped_rows, other.flipped_rows),
            (&mut self.unreachable, other.unreachable),
            (&mut self.duplicates, other.duplicates),
            (&mut self.missing, other.missing),
        ] {
            *mine += its;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(scores: &[f64], ids: &[i32]) -> ChoiceError {
        let mut e = ChoiceError::default();
        e.row(&Row { scores, k: ids.len(), floor: 0.1, number: 3, call: 9 }, ids);
        e
    }

    #[test]
    fn order_and_ties_do_not_matter() {
        for ids in [[0, 2], [2, 0], [3, 0], [0, 3]] {
            let e = judge(&[5.0, 1.0, 2.0, 2.0], &ids);
            assert_eq!(
                (e.overlap(), e.flipped_rows, e.broken(), e.gap, e.at.clone()),
                (1.0, 0, 0, 0.0, None)
            );
        }
    }

    #[test]
    fn a_lost_entry_has_rank_displacement_and_gap() {
        let e = judge(&[5.0, 1.0, 2.0, 0.5], &[2, 3]);
        assert_eq!((e.overlap(), e.best_lost, e.displaced, e.flipped_rows), (0.5, Some(0), 2, 1));
        assert!((e.gap - 30.0).abs() < 1e-9, "{}", e.gap);
        assert_eq!(e.at, Some(At { call: 9, coordinate: "row 3 rank 0".into() }));
        let near = judge(&[5.0, 1.0, 2.0, 1.99], &[0, 3]);
        assert!((near.gap - 0.1).abs() < 1e-9 && near.best_lost.is_none(), "{near:?}");
        assert_eq!((near.displaced, near.flipped_rows), (1, 1));
    }

    #[test]
    fn broken_rules_are_counted() {
        assert_eq!(judge(&[1.0; 4], &[4, 0]).unreachable, 1);
        assert_eq!(judge(&[1.0; 4], &[-2, 0]).unreachable, 1);
        assert_eq!(judge(&[1.0; 4], &[0, 0]).duplicates, 1);
        assert_eq!(judge(&[1.0; 4], &[0, -1]).missing, 1);
        assert_eq!(judge(&[1.0; 4], &[-1, 0]).unreachable, 1);
        assert_eq!(judge(&[1.0, f64::NAN], &[1, 0]).broken(), 0, "all are returned when they fit");
        let e = judge(&[1.0, f64::NAN, 2.0], &[1, 2]);
        assert_eq!((e.displaced, e.gap), (1, f64::INFINITY));
    }

    #[test]
    fn calls_add_up() {
        let mut sum = judge(&[5.0, 1.0, 2.0], &[0, 2]);
        sum.add(judge(&[5.0, 1.0, 2.0], &[1, 2]));
        assert_eq!((sum.rows, sum.places, sum.common, sum.flipped_rows), (2, 4, 3, 1));
        assert!(sum.at.is_some());
    }
}
