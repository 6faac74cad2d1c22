//! From an arm to the rules that make it of the good end.

use std::collections::BTreeSet;

use hotseam_slots::{CellId, NumberSet, Op, Rule, Scope, Selector, VariantSpec};

use super::Planned;
use super::site::Refused;
use crate::Arm;

/// A variant, and the cells of one op in one phase that use it.
struct Use {
    id: CellId,
    spec: VariantSpec,
    layers: BTreeSet<u32>,
    /// Empty where there is one rank.
    ranks: BTreeSet<u32>,
}

/// Rules to put after the good ones: one for each op, phase and variant, with the layers and ranks that use it.
///
/// # Errors
/// A rule that cannot be made: the arm without it would be another arm.
pub(super) fn rules(planned: &Planned, arm: &Arm) -> Result<Vec<Rule>, Refused> {
    let mut uses: Vec<Use> = Vec::new();
    for (number, diff) in planned.diffs.iter().enumerate() {
        let on: Vec<usize> = arm
            .iter()
            .flat_map(|atom| &planned.members[*atom])
            .filter(|(of, _)| *of == number)
            .map(|(_, item)| *item)
            .collect();
        if on.is_empty() {
            continue;
        }
        let spec = diff.spec(|item| on.contains(&item));
        let id = diff.cell.id;
        let alike = |other: &Use| {
            (other.id.seam, other.id.op, other.id.phase, other.id.layer.is_some(), other.id.rank)
                == (id.seam, id.op, id.phase, id.layer.is_some(), id.rank)
                && other.spec == spec
        };
        match uses.iter_mut().find(|other| alike(other)) {
            Some(other) => other.layers.extend(id.layer),
            None => uses.push(Use {
                id,
                spec,
                layers: id.layer.into_iter().collect(),
                ranks: id.rank.into_iter().collect(),
            }),
        }
    }
    let uses = over_ranks(uses).into_iter();
    uses.map(|of| Rule::new(selector(&of, planned.ranks), Some(of.spec)).map_err(Refused::from)).collect()
}

/// What is used alike on several ranks is one use.
fn over_ranks(uses: Vec<Use>) -> Vec<Use> {
    let mut merged: Vec<Use> = Vec::new();
    for of in uses {
        let alike = |other: &Use| {
            (other.id.seam, other.id.op, other.id.phase, &other.layers, &other.spec)
                == (of.id.seam, of.id.op, of.id.phase, &of.layers, &of.spec)
        };
        match merged.iter_mut().find(|other| alike(other)) {
            Some(other) => other.ranks.extend(of.ranks),
            None => merged.push(of),
        }
    }
    merged
}

fn selector(of: &Use, all_ranks: usize) -> Selector {
    let id = of.id;
    let scope = match of.layers.is_empty() {
        true => Scope::All,
        false => Scope::Layers(NumberSet::of(of.layers.iter().copied())),
    };
    let some = !of.ranks.is_empty() && of.ranks.len() < all_ranks;
    let ranks = some.then(|| NumberSet::of(of.ranks.iter().copied()));
    let op = (id.op != Op::Transport).then_some(id.op);
    Selector { op, phase: id.phase, scope, ranks, ..Selector::seam(id.seam) }
}
