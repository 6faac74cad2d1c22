//! From an arm to the rules that make it of the good end.

use hotseam_slots::{CellId, NumberSet, Op, Rule, Scope, Selector, VariantSpec};

use super::Planned;
use super::site::Refused;
use crate::Arm;

/// Rules to put after the good ones: one for each op, phase and variant, with the layers that use it.
///
/// # Errors
/// A rule that cannot be made: the arm without it would be another arm.
pub(super) fn rules(planned: &Planned, arm: &Arm) -> Result<Vec<Rule>, Refused> {
    let mut uses: Vec<(CellId, VariantSpec, Vec<u32>)> = Vec::new();
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
        let alike = |other: &CellId| {
            (other.seam, other.op, other.phase, other.layer.is_some())
                == (id.seam, id.op, id.phase, id.layer.is_some())
        };
        match uses.iter_mut().find(|(other, variant, _)| alike(other) && *variant == spec) {
            Some((_, _, layers)) => layers.extend(id.layer),
            None => uses.push((id, spec, id.layer.into_iter().collect())),
        }
    }
    uses.into_iter()
        .map(|(id, spec, layers)| Rule::new(selector(&id, layers), Some(spec)).map_err(Refused::from))
        .collect()
}

fn selector(id: &CellId, layers: Vec<u32>) -> Selector {
    let scope = if layers.is_empty() { Scope::All } else { Scope::Layers(NumberSet::of(layers)) };
    let op = (id.op != Op::Transport).then_some(id.op);
    Selector { op, phase: id.phase, scope, ..Selector::seam(id.seam) }
}
