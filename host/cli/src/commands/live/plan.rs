//! What a swap changes, in words.

use std::fmt::Write as _;

use hotseam_server::admin::SwapAnswer;
use hotseam_slots::{CellChange, LayoutMove, NumberSet, SwapStage};

use super::short;

/// What changed, or would.
pub(super) fn describe(answer: &SwapAnswer) -> String {
    let mut text = headline(answer);
    text += &changes(&answer.changes);
    if answer.dry_run {
        for newcomer in &answer.newcomers {
            let cells = newcomer.cells;
            let _ = writeln!(
                text,
                "  comes in: {} for {cells} cell{}, plugin {}",
                newcomer.variant,
                if cells == 1 { "" } else { "s" },
                short(&newcomer.plugin)
            );
        }
    }
    text += &layouts(&answer.layouts);
    text
}

fn headline(answer: &SwapAnswer) -> String {
    let (name, cells) = (&answer.assignment, answer.changes.len());
    let cells = format!("{cells} cell{}", if cells == 1 { "" } else { "s" });
    let swap = answer.swap.map_or_else(String::new, |id| format!(", swap {id}"));
    match &answer.stage {
        _ if answer.changes.is_empty() => format!("{name}: already so\n"),
        _ if answer.dry_run => format!("{name}: {cells} would change\n"),
        None => format!("{name}: {cells} to change{swap}; it goes on by itself\n"),
        Some(SwapStage::RolledBack { message, .. }) => {
            format!("{name}: the old variants are back{swap}: {message}\n")
        }
        Some(_) => format!("{name}: {cells} changed{swap}, in force from step {} on\n", answer.step + 2),
    }
}

/// The changed cells, layers that changed alike together.
fn changes(changes: &[CellChange]) -> String {
    let mut groups: Vec<(&CellChange, Vec<u32>)> = Vec::new();
    for change in changes {
        let alike = |other: &CellChange| {
            (other.cell.seam, other.cell.op, other.cell.phase, other.cell.rank)
                == (change.cell.seam, change.cell.op, change.cell.phase, change.cell.rank)
                && (&other.from, &other.to) == (&change.from, &change.to)
        };
        match groups.iter_mut().find(|(other, _)| alike(other)) {
            Some((_, layers)) => layers.extend(change.cell.layer),
            None => groups.push((change, change.cell.layer.into_iter().collect())),
        }
    }
    let mut text = String::new();
    for (change, layers) in groups {
        let phase = change.cell.phase.map_or(String::new(), |phase| format!("@{phase}"));
        let layers = match layers.is_empty() {
            true => String::new(),
            false => format!(" layers {}", NumberSet::of(layers)),
        };
        let rank = change.cell.rank.map_or(String::new(), |rank| format!(" rank {rank}"));
        let (from, to) = (&change.from, &change.to);
        let _ = writeln!(text, "  {}.{}{phase}{layers}{rank}", change.cell.seam, change.cell.op);
        let _ = writeln!(text, "    {} {}", short(&from.hash), from.variant);
        let _ = writeln!(text, " -> {} {}", short(&to.hash), to.variant);
    }
    text
}

/// The pools whose layout changes, layers that change alike together.
fn layouts(moves: &[LayoutMove]) -> String {
    let mut groups: Vec<(&LayoutMove, Vec<u32>)> = Vec::new();
    for moved in moves {
        let layer = u32::try_from(moved.layer).unwrap_or(u32::MAX);
        let alike = |other: &LayoutMove| {
            (&other.pool, &other.from, &other.to) == (&moved.pool, &moved.from, &moved.to)
        };
        match groups.iter_mut().find(|(other, _)| alike(other)) {
            Some((_, layers)) => layers.push(layer),
            None => groups.push((moved, vec![layer])),
        }
    }
    let mut text = String::new();
    for (moved, layers) in groups {
        let (pool, from, to) = (&moved.pool, &moved.from, &moved.to);
        let _ = writeln!(text, "  {pool} layout of layers {}: {from} -> {to}", NumberSet::of(layers));
    }
    text
}
