//! Atoms: items of cells that must flip together.
//!
//! Equal deltas of the ops of one seam in one phase and layer are one atom. Deltas that change the layout of a pool
//! are one atom for the seam and layer, over both phases: prefill writes what decode reads.

use std::collections::BTreeMap;

use hotseam_slots::{Class as SlotsClass, Phase, Seam};

use super::delta::CellDiff;
use super::site::{Refused, Site};
use crate::{Class, Delta, Span};

/// Items that flip together.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) seam: Seam,
    pub(super) span: Span,
    pub(super) class: Class,
    pub(super) layer: Option<usize>,
    pub(super) delta: Delta,
    /// (number of the cell difference, number of its item).
    pub(super) members: Vec<(usize, usize)>,
}

/// The groups of `diffs`, in the order of seams, phases, classes and layers. Seams in `whole` are coupled over both
/// phases whether or not a layout changes.
pub(super) fn groups(diffs: &[CellDiff], site: &dyn Site, whole: &[Seam]) -> Result<Vec<Group>, Refused> {
    let mut plain: BTreeMap<(Seam, Span, Option<usize>, Delta), Group> = BTreeMap::new();
    let mut coupled: BTreeMap<(Seam, Option<usize>), Group> = BTreeMap::new();
    for (number, diff) in diffs.iter().enumerate() {
        let id = diff.cell.id;
        let layer = id.layer.map(|layer| layer as usize);
        let class = class(diff.cell.class);
        for item in 0..diff.items.len() {
            let delta = diff.delta(item);
            let group = if whole.contains(&id.seam) || alters_layout(diff, item, site)? {
                let span = if id.seam == Seam::KvTransport { Span::Handoff } else { Span::Both };
                let new = Group { seam: id.seam, span, class, layer, delta: delta.clone(), members: vec![] };
                coupled.entry((id.seam, layer)).or_insert(new)
            } else {
                let span = span(id.phase);
                let new = Group { seam: id.seam, span, class, layer, delta: delta.clone(), members: vec![] };
                plain.entry((id.seam, span, layer, delta.clone())).or_insert(new)
            };
            group.members.push((number, item));
            group.delta = joined(&group.delta, &delta);
        }
    }
    let mut all: Vec<Group> = plain.into_values().chain(coupled.into_values()).collect();
    all.sort_by_key(|group| {
        let variant_first = matches!(group.delta, Delta::Option { .. });
        (group.seam, group.span, variant_first, group.delta.clone(), group.class, group.layer)
    });
    Ok(all)
}

/// Whether switching the item changes the layout of the cell's pool.
fn alters_layout(diff: &CellDiff, item: usize, site: &dyn Site) -> Result<bool, Refused> {
    if !matches!(diff.cell.id.seam, Seam::Attention | Seam::Indexer) {
        return Ok(false);
    }
    let required = diff.required(item);
    let before = site.layout(&diff.spec(|other| Some(other) == required))?;
    let after = site.layout(&diff.spec(|other| other == item || Some(other) == required))?;
    Ok(before != after)
}

/// One delta for a group whose members differ: both named.
fn joined(a: &Delta, b: &Delta) -> Delta {
    let parts = |delta: &Delta| match delta {
        Delta::Variant { from, to } => (from.clone(), to.clone()),
        Delta::Option { name, from, to } => (format!("{name}: {from}"), format!("{name}: {to}")),
    };
    if a == b {
        return a.clone();
    }
    let add = |list: String, part: String| {
        if list.split(" + ").any(|known| known == part) { list } else { format!("{list} + {part}") }
    };
    let ((from_a, to_a), (from_b, to_b)) = (parts(a), parts(b));
    Delta::Variant { from: add(from_a, from_b), to: add(to_a, to_b) }
}

fn span(phase: Option<Phase>) -> Span {
    match phase {
        Some(Phase::Prefill) => Span::Prefill,
        Some(Phase::Decode) => Span::Decode,
        None => Span::Handoff,
    }
}

fn class(class: Option<SlotsClass>) -> Class {
    match class {
        Some(SlotsClass::Window) => Class::Window,
        Some(SlotsClass::Csa) => Class::Csa,
        Some(SlotsClass::Hca) => Class::Hca,
        Some(SlotsClass::Hash) => Class::Hash,
        Some(SlotsClass::Topk) => Class::Topk,
        None => Class::Model,
    }
}
