//! The observer behind an explanation.

use std::collections::BTreeMap;
use std::ops::Range;

use hotseam_abi::{CoreArgs, SelectArgs, layer_class};
use hotseam_conformance::reference::{Mass, attention_mass, index_scores};
use hotseam_engine::observe::{Args, Call, Observer};
use hotseam_slots::CallError;

use super::report::{Carrier, NeedleEntry};

/// Looks at the rows at some positions.
pub(super) struct Look {
    /// Positions of the rows that must know the word.
    rows: Vec<usize>,
    /// Positions of the fact.
    needle: Range<usize>,
    /// Scores of the last `indexer.select`, by position.
    scores: BTreeMap<usize, Vec<f32>>,
    topk: usize,
    /// By layer and row.
    pub(super) layers: BTreeMap<(u32, usize), Carrier>,
}

impl Look {
    pub(super) fn new(rows: Vec<usize>, needle: Range<usize>) -> Self {
        Self { rows, needle, scores: BTreeMap::new(), topk: 0, layers: BTreeMap::new() }
    }

    /// Index in the call, and position, of the rows of interest.
    fn of_interest(&self, positions: Vec<i32>) -> Vec<(usize, usize)> {
        let known =
            positions.into_iter().enumerate().filter_map(|(row, p)| Some((row, usize::try_from(p).ok()?)));
        known.filter(|(_, p)| self.rows.contains(p)).collect()
    }

    fn select(&mut self, a: &SelectArgs, rows: &[(usize, usize)]) -> Result<(), String> {
        // SAFETY: the arguments of a call that is looked at.
        let scores = unsafe { index_scores(a, hotseam_loader::pool()) }.map_err(|e| e.message)?;
        self.topk = a.topk as usize;
        for (row, position) in rows {
            self.scores.insert(*position, scores[*row].clone());
        }
        Ok(())
    }

    fn core(&mut self, call: &Call<'_>, a: &CoreArgs, row: usize, position: usize) -> Result<(), String> {
        let ratio = a.ratio as usize;
        let complete = (position + 1).checked_div(ratio).unwrap_or(0);
        let every: Vec<usize> = (0..complete).collect();
        let mass = |ids: Option<&[usize]>| {
            // SAFETY: the arguments of a call that is looked at.
            unsafe { attention_mass(a, row, ids) }.map_err(|e| e.message)
        };
        let (now, all): (Mass, Mass) = (mass(None)?, mass(Some(&every))?);
        let share = |list: &[(usize, f64)], of: &dyn Fn(usize) -> bool| -> f64 {
            list.iter().filter(|(i, _)| of(*i)).fold(0.0, |sum, (_, m)| sum + m)
        };
        let in_needle = |p: usize| self.needle.contains(&p);
        // With overlap an entry also holds the group before its own.
        let overlap = call.ctx.layer_class == layer_class::CSA;
        let holds = |entry: usize| {
            let from = if overlap { (entry * ratio).saturating_sub(ratio) } else { entry * ratio };
            from < self.needle.end && (entry + 1) * ratio > self.needle.start
        };
        let csa = call.ctx.layer_class == layer_class::CSA;
        let scores = self.scores.get(&position).filter(|_| csa);
        let attended: Vec<usize> = now.entries.iter().map(|(e, _)| *e).collect();
        let entries = (0..complete).filter(|e| holds(*e)).map(|entry| {
            let score = scores.and_then(|s| s.get(entry)).copied();
            let rank = score.zip(scores).map(|(own, all)| 1 + all.iter().filter(|s| **s > own).count());
            let mass = all.entries.iter().find(|(e, _)| *e == entry).map_or(0.0, |(_, m)| *m);
            NeedleEntry { entry, rank, score, kept: attended.contains(&entry), mass }
        });
        let cut_score = scores.filter(|s| s.len() > self.topk && self.topk > 0).map(|s| {
            let mut sorted = s.clone();
            sorted.sort_by(|x, y| y.total_cmp(x));
            sorted[self.topk - 1]
        });
        let layer = call.cell.layer.unwrap_or(u32::MAX);
        let carrier = Carrier {
            layer,
            class: match call.ctx.layer_class {
                layer_class::CSA => "csa",
                layer_class::HCA => "hca",
                _ => "window",
            }
            .to_owned(),
            row: position,
            window: a.window as usize,
            in_window: self.needle.end > (position + 1).saturating_sub(a.window as usize),
            window_mass: share(&now.window, &in_needle),
            complete,
            topk: csa.then_some(self.topk),
            cut_score,
            mass: share(&now.entries, &holds),
            mass_if_all: share(&all.entries, &holds),
            sink: now.sink,
            entries: entries.collect(),
        };
        self.layers.insert((layer, position), carrier);
        Ok(())
    }
}

impl Observer for Look {
    fn call(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        let failed = |error: &dyn std::fmt::Display| call.error(error.to_string());
        if !matches!(call.args, Args::Select(_) | Args::Core(_)) {
            return call.run();
        }
        let rows = self.of_interest(call.positions().map_err(|error| failed(&error))?);
        if rows.is_empty() {
            if matches!(call.args, Args::Core(_)) {
                self.scores.clear();
            }
            return call.run();
        }
        let host = call.on_host().map_err(|error| failed(&error))?;
        match host.args() {
            Args::Select(a) => {
                self.select(a, &rows).map_err(|why| call.error(why))?;
            }
            Args::Core(a) => {
                for (row, position) in rows {
                    self.core(call, a, row, position).map_err(|why| call.error(why))?;
                }
                self.scores.clear();
            }
            _ => {}
        }
        call.run()
    }
}
