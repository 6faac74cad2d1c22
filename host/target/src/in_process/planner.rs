//! The plan of changes between two resolved ends.

use std::collections::HashMap;

use hotseam_slots::{Cell, CellId, Rule, Seam, Slots, SlotsError, Snapshot, VariantSpec};

use super::couple::{Group, groups};
use super::delta::CellDiff;
use super::{arms, define};
use crate::{Arm, Atom, Change, Plan, TargetError};

/// A plan, and which items of which cells each atom switches.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) diffs: Vec<CellDiff>,
    /// By atom: (number of the cell difference, number of its item).
    pub(super) members: Vec<Vec<(usize, usize)>>,
}

/// Assignment under which the changes are tried out.
const TRY: &str = "bisect-try";

/// Plans the changes from the good end (name, rules, snapshot) to the bad end (name, snapshot). A seam whose changes
/// are refused one by one is not split.
pub(super) fn plan(
    slots: &Slots,
    good: (&str, &[Rule], &Snapshot),
    bad: (&str, &Snapshot),
) -> Result<Planned, TargetError> {
    let mut whole: Vec<Seam> = Vec::new();
    let mut notes = Vec::new();
    loop {
        let tried = attempt(slots, good, bad, &whole, &notes);
        slots.remove(TRY);
        match tried {
            Ok(planned) => {
                check_ends(&planned, slots, good.1, bad.1)?;
                return Ok(planned);
            }
            Err((Some(seam), error)) if !whole.contains(&seam) => {
                notes.push(format!(
                    "{seam}: changes are tried as one, because one by one they are refused: {error}"
                ));
                whole.push(seam);
            }
            Err((_, source)) => {
                return Err(TargetError::Arm { what: "a change".to_owned(), source: Box::new(source) });
            }
        }
    }
}

/// Fails with the seam whose changes cannot stand alone.
fn attempt(
    slots: &Slots,
    good: (&str, &[Rule], &Snapshot),
    bad: (&str, &Snapshot),
    whole: &[Seam],
    notes: &[String],
) -> Result<Planned, (Option<Seam>, SlotsError)> {
    let cells = slots.registry().geometry().cells();
    let diffs = differences(&cells, good.2, bad.1, whole);
    let mut all_groups = Vec::new();
    for seam in Seam::ALL {
        // By seam, so that an error tells which one.
        let own: Vec<CellDiff> = diffs.iter().filter(|d| d.cell.id.seam == *seam).cloned().collect();
        let offset = diffs.iter().position(|d| d.cell.id.seam == *seam).unwrap_or(0);
        let mut found = groups(&own, slots.registry(), whole).map_err(|error| (Some(*seam), error))?;
        found.iter_mut().flat_map(|group| &mut group.members).for_each(|member| member.0 += offset);
        all_groups.extend(found);
    }
    let unchanged = Seam::ALL
        .iter()
        .filter(|seam| cells.iter().any(|cell| cell.id.seam == **seam))
        .filter(|seam| !diffs.iter().any(|diff| diff.cell.id.seam == **seam))
        .map(|seam| seam.name().to_owned())
        .collect();
    let members: Vec<Vec<(usize, usize)>> = all_groups.iter().map(|group| group.members.clone()).collect();
    let plan = Plan {
        good: good.0.to_owned(),
        bad: bad.0.to_owned(),
        changes: changes(&all_groups, &diffs),
        unchanged,
        notes: notes.to_vec(),
    };
    let mut planned = Planned { plan, diffs, members };
    try_each(&mut planned, slots, good.1)?;
    Ok(planned)
}

/// The cells that differ, all cells of a seam next to each other.
fn differences(cells: &[Cell], good: &Snapshot, bad: &Snapshot, whole: &[Seam]) -> Vec<CellDiff> {
    let new: HashMap<CellId, _> = bad.cells().map(|view| (view.cell, view.generation.clone())).collect();
    let mut diffs: Vec<CellDiff> = good
        .cells()
        .filter_map(|view| {
            let bad = new.get(&view.cell).filter(|bad| bad.hash != view.generation.hash)?;
            let cell = cells.iter().find(|cell| cell.id == view.cell)?;
            let whole = whole.contains(&view.cell.seam);
            Some(CellDiff::new(*cell, view.generation.clone(), bad.clone(), whole))
        })
        .collect();
    diffs.sort_by_key(|diff| diff.cell.id.seam);
    diffs
}

/// Groups of one seam, span, class and delta are one change; each group is one atom of it.
fn changes(groups: &[Group], diffs: &[CellDiff]) -> Vec<Change> {
    let atom_of = |member: (usize, usize)| groups.iter().position(|group| group.members.contains(&member));
    let mut changes: Vec<Change> = Vec::new();
    for (id, group) in groups.iter().enumerate() {
        let mut requires: Vec<usize> = group
            .members
            .iter()
            .filter_map(|&(diff, item)| atom_of((diff, diffs[diff].required(item)?)))
            .filter(|required| *required != id)
            .collect();
        requires.sort_unstable();
        requires.dedup();
        let atom = Atom { id, layer: group.layer, requires };
        let mut ops: Vec<String> =
            group.members.iter().map(|(diff, _)| diffs[*diff].cell.id.op.name().to_owned()).collect();
        let same = changes.iter_mut().find(|change| {
            change.seam == group.seam.name()
                && change.phase == group.span
                && change.class == group.class
                && change.delta == group.delta
        });
        match same {
            Some(change) => {
                change.atoms.push(atom);
                ops.retain(|op| !change.ops.contains(op));
                change.ops.extend(ops);
            }
            None => changes.push(Change {
                seam: group.seam.name().to_owned(),
                ops,
                phase: group.span,
                class: group.class,
                delta: group.delta.clone(),
                variants: Vec::new(),
                atoms: vec![atom],
            }),
        }
    }
    for change in &mut changes {
        change.ops.sort();
        change.ops.dedup();
    }
    changes
}

/// Builds the good end with each change alone, and notes which variants run then.
fn try_each(planned: &mut Planned, slots: &Slots, good: &[Rule]) -> Result<(), (Option<Seam>, SlotsError)> {
    for index in 0..planned.plan.changes.len() {
        let atoms: Arm = planned.plan.changes[index].atoms.iter().map(|atom| atom.id).collect();
        let seam = planned.members[planned.plan.changes[index].atoms[0].id]
            .first()
            .map(|(diff, _)| planned.diffs[*diff].cell.id.seam);
        let arm = planned.plan.with_required(&atoms);
        let mut rules = good.to_vec();
        rules.extend(arms::rules(planned, &arm));
        let snapshot = define(slots, TRY, rules).map_err(|error| (seam, error))?;
        let touched: Vec<CellId> = atoms
            .iter()
            .flat_map(|atom| &planned.members[*atom])
            .map(|(diff, _)| planned.diffs[*diff].cell.id)
            .collect();
        let mut variants: Vec<String> = snapshot
            .cells()
            .filter(|view| touched.contains(&view.cell))
            .map(|view| {
                let options = view.generation.instance.options().clone();
                VariantSpec::new(view.generation.spec.name.clone(), options).to_string()
            })
            .collect();
        variants.sort();
        variants.dedup();
        planned.plan.changes[index].variants = variants;
    }
    Ok(())
}

/// All changes together must be the bad end, or the search would blame what it did not run.
fn check_ends(planned: &Planned, slots: &Slots, good: &[Rule], bad: &Snapshot) -> Result<(), TargetError> {
    let mut rules = good.to_vec();
    rules.extend(arms::rules(planned, &planned.plan.all()));
    let rebuilt = define(slots, TRY, rules);
    slots.remove(TRY);
    let rebuilt = rebuilt
        .map_err(|source| TargetError::Arm { what: "all changes".to_owned(), source: Box::new(source) })?;
    if rebuilt.digest() == bad.digest() {
        return Ok(());
    }
    let differs = hotseam_slots::changes(bad, &rebuilt);
    let first = differs.first().map_or(String::new(), |change| {
        format!(": {} runs {} instead of {}", change.cell, change.to.variant, change.from.variant)
    });
    Err(TargetError::Setup(format!("the planned changes do not add up to the bad end{first}")))
}

impl Planned {
    /// The atoms none of whose cells was called in `snapshot`.
    pub(super) fn not_run(&self, snapshot: &Snapshot) -> Arm {
        let called: HashMap<CellId, u64> = snapshot.cells().map(|view| (view.cell, view.calls)).collect();
        let calls = |diff: usize| called.get(&self.diffs[diff].cell.id).copied().unwrap_or(0);
        let idle = |atom: &usize| self.members[*atom].iter().all(|(diff, _)| calls(*diff) == 0);
        (0..self.members.len()).filter(idle).collect()
    }
}
