//! The report of a comparison.

use std::fmt;

use hotseam_slots::{CellId, NumberSet};
use serde::{Deserialize, Serialize};

use super::tally::{Alarm, CellTally, Side};

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Assignment that drove the request.
    pub good: String,
    /// Assignment that was held against it.
    pub bad: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens decoded.
    pub decode_tokens: usize,
    /// Seam calls of the request.
    pub calls: u64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Who is wrong in some cell.
    pub verdict: Side,
    /// The first call in which the bad end's variant is beyond the floor.
    pub first: Option<Alarm>,
    /// The first call in which its choice is.
    pub first_discrete: Option<Alarm>,
    /// The first call in which the good end's variant is.
    pub first_stock: Option<Alarm>,
    /// The cells that differ.
    pub cells: Vec<CellTally>,
}

impl Comparison {
    pub(super) fn new(good: &str, bad: &str, cells: Vec<CellTally>) -> Self {
        let earliest = |pick: fn(&CellTally) -> &Option<Alarm>| {
            cells.iter().filter_map(|cell| pick(cell).clone()).min_by_key(|alarm| alarm.place.call)
        };
        let (patched, stock) = (
            cells.iter().any(|c| matches!(c.side(), Side::Patched | Side::Both)),
            cells.iter().any(|c| matches!(c.side(), Side::Stock | Side::Both)),
        );
        Self {
            good: good.to_owned(),
            bad: bad.to_owned(),
            prompt_tokens: 0,
            decode_tokens: 0,
            calls: 0,
            seconds: 0.0,
            verdict: match (patched, stock) {
                (false, false) => Side::Neither,
                (true, false) => Side::Patched,
                (false, true) => Side::Stock,
                (true, true) => Side::Both,
            },
            first: earliest(|c| &c.first_patched),
            first_discrete: earliest(|c| &c.first_discrete),
            first_stock: earliest(|c| &c.first_stock),
            cells,
        }
    }

    /// Whether something is beyond the floor.
    pub fn diverges(&self) -> bool {
        self.verdict != Side::Neither
    }

    /// The tally of a cell.
    pub fn cell(&self, cell: &CellId) -> Option<&CellTally> {
        self.cells.iter().find(|tally| tally.cell == *cell)
    }

    /// Cells that are alike, the worst first.
    fn groups(&self) -> Vec<Vec<&CellTally>> {
        let key = |c: &CellTally| {
            (c.cell.seam, c.cell.op, c.cell.phase, c.stock.clone(), c.patched.clone(), c.side())
        };
        let mut groups: Vec<Vec<&CellTally>> = Vec::new();
        for cell in &self.cells {
            match groups.iter_mut().find(|group| key(group[0]) == key(cell)) {
                Some(group) => group.push(cell),
                None => groups.push(vec![cell]),
            }
        }
        let worst = |group: &[&CellTally]| group.iter().map(|c| c.floors()).fold(0.0, f64::max);
        groups.sort_by(|a, b| {
            let wrong = |g: &[&CellTally]| g[0].side() != Side::Neither;
            wrong(b).cmp(&wrong(a)).then(worst(b).total_cmp(&worst(a)))
        });
        groups
    }
}

impl Side {
    fn words(self) -> &'static str {
        match self {
            Self::Neither => "within the floor",
            Self::Patched => "PATCHED IS WRONG",
            Self::Stock => "STOCK IS WRONG",
            Self::Both => "BOTH ARE WRONG",
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "compare  good {}  bad {}  {} prompt tokens, {} decoded  {} calls, {:.1} s",
            self.good, self.bad, self.prompt_tokens, self.decode_tokens, self.calls, self.seconds
        )?;
        if self.cells.is_empty() {
            return writeln!(out, "\nno cell differs: both ends run the same code with the same options");
        }
        writeln!(
            out,
            "{} cells differ; errors are distances from truth on the same inputs\n",
            self.cells.len()
        )?;
        for group in self.groups() {
            write_group(out, &group)?;
        }
        writeln!(out)?;
        match &self.first {
            Some(alarm) => write_alarm(out, "first divergence", alarm)?,
            None => writeln!(out, "no call of the bad end is beyond its floor")?,
        }
        if let Some(alarm) = self.first_discrete.as_ref().filter(|a| Some(*a) != self.first.as_ref()) {
            write_alarm(out, "first wrong choice", alarm)?;
        }
        if let Some(alarm) = &self.first_stock {
            write_alarm(out, "the good end itself is wrong", alarm)?;
        }
        Ok(())
    }
}

fn write_alarm(out: &mut fmt::Formatter<'_>, title: &str, alarm: &Alarm) -> fmt::Result {
    let place = &alarm.place;
    writeln!(
        out,
        "{title}: {}, call {}, chunk {}, position {}\n  {}",
        place.cell, place.call, place.chunk, place.first_position, alarm.what
    )
}

fn write_group(out: &mut fmt::Formatter<'_>, group: &[&CellTally]) -> fmt::Result {
    let head = group[0];
    let phase = head.cell.phase.map_or(String::new(), |phase| format!("@{phase}"));
    let layers: Vec<u32> = group.iter().filter_map(|c| c.cell.layer).collect();
    let layers = match layers.is_empty() {
        true => String::new(),
        false => format!(" layers {}", NumberSet::of(layers)),
    };
    let calls: u64 = group.iter().map(|c| c.calls).sum();
    writeln!(out, "  {}.{}{phase}{layers}  {}", head.cell.seam, head.cell.op, head.side().words())?;
    writeln!(out, "    {} -> {}, {calls} calls", head.stock, head.patched)?;
    if head.side() == Side::Neither {
        return write_clean(out, group);
    }
    if let Some(alarm) = group.iter().find_map(|c| c.first_patched.as_ref().or(c.first_stock.as_ref())) {
        writeln!(out, "    {}", alarm.what)?;
    }
    let width = head.outputs.len();
    for i in 0..width {
        let pick = |c: &&&CellTally| {
            c.outputs.get(i).map_or(0.0, |o| o.patched.rms / o.floor.max(f64::MIN_POSITIVE))
        };
        let Some(output) =
            group.iter().max_by(|a, b| pick(a).total_cmp(&pick(b))).and_then(|cell| cell.outputs.get(i))
        else {
            continue;
        };
        let (stock, patched) = (&output.stock, &output.patched);
        writeln!(
            out,
            "    {:<8} rms {:.1e} stock, {:.1e} patched; ratio {}, {} floors; worst row {:.1e}; max {:.1e}{}",
            output.output,
            stock.rms,
            patched.rms,
            number(output.ratio),
            number(patched.rms / output.floor.max(f64::MIN_POSITIVE)),
            patched.row,
            patched.max_abs,
            patched.at.as_ref().map_or(String::new(), |at| format!(" at {}", at.coordinate)),
        )?;
        if patched.non_finite > 0 {
            writeln!(out, "    {:<8} {} places are not the numbers that truth has", "", patched.non_finite)?;
        }
    }
    for (name, pick) in [("stock", true), ("patched", false)] {
        let choices = group
            .iter()
            .filter_map(|c| if pick { c.stock_choice.as_ref() } else { c.patched_choice.as_ref() });
        let sum = choices.cloned().reduce(|mut sum, choice| {
            sum.add(choice);
            sum
        });
        let Some(choice) = sum else { continue };
        write!(out, "    {name:<8} chose {:.2} % of the best", choice.overlap() * 100.0)?;
        if choice.flipped_rows > 0 {
            write!(out, "; {} of {} rows differ", choice.flipped_rows, choice.rows)?;
            write!(out, ", {} ranks past the cut, gap {} floors", choice.displaced, number(choice.gap))?;
        }
        if let Some(rank) = choice.best_lost {
            write!(out, ", best lost rank {}", rank + 1)?;
        }
        if choice.broken() > 0 {
            let (u, d, m) = (choice.unreachable, choice.duplicates, choice.missing);
            write!(out, "; {u} unreachable, {d} duplicate, {m} missing")?;
        }
        writeln!(out)?;
    }
    if let Some((count, why)) = group.iter().find_map(|c| c.skipped.as_ref()) {
        writeln!(out, "    {count} calls a layer were not compared: {why}")?;
    }
    Ok(())
}

/// The worst output of cells that are sound, and what could not be compared.
fn write_clean(out: &mut fmt::Formatter<'_>, group: &[&CellTally]) -> fmt::Result {
    let worst = group
        .iter()
        .flat_map(|c| &c.outputs)
        .max_by(|a, b| (a.patched.rms / a.floor).total_cmp(&(b.patched.rms / b.floor)));
    if let Some(output) = worst {
        let (stock, patched) = (&output.stock, &output.patched);
        writeln!(
            out,
            "    {:<8} rms {:.1e} stock, {:.1e} patched; ratio {}, {} floors; worst row {:.1e}",
            output.output,
            stock.rms,
            patched.rms,
            number(output.ratio),
            number(patched.rms / output.floor.max(f64::MIN_POSITIVE)),
            patched.row
        )?;
    }
    let flips = group.iter().filter_map(|c| c.patched_choice.as_ref()).filter(|c| c.flipped_rows > 0);
    if let Some(choice) = flips.max_by(|a, b| a.gap.total_cmp(&b.gap)) {
        let (flipped, rows) = (choice.flipped_rows, choice.rows);
        let gap = number(choice.gap);
        writeln!(out, "    {:<8} {flipped} of {rows} rows differ by ties, gap {gap} floors", "choice")?;
    }
    if let Some((count, why)) = group.iter().find_map(|c| c.skipped.as_ref()) {
        writeln!(out, "    {count} calls a layer were not compared: {why}")?;
    }
    Ok(())
}

/// A number that may be anything from 0 to infinity.
fn number(value: f64) -> String {
    match value {
        v if v.is_infinite() => "inf".into(),
        v if v >= 1000.0 || (v < 0.01 && v > 0.0) => format!("{v:.1e}"),
        v => format!("{v:.2}"),
    }
}
