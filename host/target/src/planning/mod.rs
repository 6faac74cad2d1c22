//! The plan of changes between two resolved ends, wherever their assignments live.

mod arms;
mod couple;
mod delta;
mod site;

use std::collections::{BTreeSet, HashMap};

use hotseam_slots::{CellId, Rule, Seam};

use crate::{Arm, Atom, Change, Class, Delta, Plan, Span, TOPOLOGY, TargetError};
use couple::{Group, groups};
use delta::CellDiff;
pub(crate) use site::{End, Refused, Resolved, Served, Site};

/// A plan, and which items of which cells each atom switches.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    diffs: Vec<CellDiff>,
    /// By atom: (number of the cell difference, number of its item).
    members: Vec<Vec<(usize, usize)>>,
    /// Tensor-parallel ranks that there are.
    ranks: usize,
}

/// Assignment under which the changes are tried out.
const TRY: &str = "bisect-try";

/// Plans the changes from the good end (name, rules, snapshot) to the bad end (name, snapshot). A seam whose changes
/// are refused one by one is not split.
///
/// # Errors
/// [`TargetError::Arm`] if not even a whole seam can be switched, [`TargetError::Setup`] if the changes do not add up.
pub(crate) fn plan(
    site: &dyn Site,
    good: (&str, &[Rule], &Resolved),
    bad: (&str, &Resolved),
) -> Result<Planned, TargetError> {
    let mut whole: Vec<Seam> = Vec::new();
    let mut notes = Vec::new();
    loop {
        let tried = attempt(site, good, bad, &whole, &notes);
        site.remove(TRY);
        match tried {
            Ok(planned) => {
                check_ends(&planned, site, good.1, bad.1)?;
                return Ok(planned);
            }
            Err((Some(seam), error)) if !whole.contains(&seam) => {
                notes.push(format!(
                    "{seam}: changes are tried as one, because one by one they are refused: {error}"
                ));
                whole.push(seam);
            }
            Err((_, source)) => {
                return Err(TargetError::Arm { what: "a change".to_owned(), source });
            }
        }
    }
}

/// Fails with the seam whose changes cannot stand alone.
fn attempt(
    site: &dyn Site,
    good: (&str, &[Rule], &Resolved),
    bad: (&str, &Resolved),
    whole: &[Seam],
    notes: &[String],
) -> Result<Planned, (Option<Seam>, Refused)> {
    let diffs = differences(site, good.2, bad.1, whole).map_err(|error| (None, error))?;
    let mut all_groups = Vec::new();
    for seam in Seam::ALL {
        // By seam, so that an error tells which one.
        let own: Vec<CellDiff> = diffs.iter().filter(|d| d.cell.id.seam == *seam).cloned().collect();
        let offset = diffs.iter().position(|d| d.cell.id.seam == *seam).unwrap_or(0);
        let mut found = groups(&own, site, whole).map_err(|error| (Some(*seam), error))?;
        found.iter_mut().flat_map(|group| &mut group.members).for_each(|member| member.0 += offset);
        all_groups.extend(found);
    }
    let unchanged = Seam::ALL
        .iter()
        .filter(|seam| good.2.cells.iter().any(|served| served.cell.id.seam == **seam))
        .filter(|seam| !diffs.iter().any(|diff| diff.cell.id.seam == **seam))
        .map(|seam| seam.name().to_owned())
        .collect();
    let ranks: BTreeSet<Option<u32>> = good.2.cells.iter().map(|served| served.cell.id.rank).collect();
    let ranks = ranks.len();
    let members: Vec<Vec<(usize, usize)>> = all_groups.iter().map(|group| group.members.clone()).collect();
    let plan = Plan {
        good: good.0.to_owned(),
        bad: bad.0.to_owned(),
        changes: changes(&all_groups, &diffs, ranks),
        unchanged,
        notes: notes.to_vec(),
    };
    let mut planned = Planned { plan, diffs, members, ranks };
    try_each(&mut planned, site, good.1)?;
    Ok(planned)
}

/// The cells that differ, all cells of a seam next to each other.
fn differences(
    site: &dyn Site,
    good: &Resolved,
    bad: &Resolved,
    whole: &[Seam],
) -> Result<Vec<CellDiff>, Refused> {
    let new: HashMap<CellId, &End> = bad.cells.iter().map(|served| (served.cell.id, &served.by)).collect();
    let mut diffs: Vec<CellDiff> = good
        .cells
        .iter()
        .filter_map(|Served { cell, by }| {
            let bad = new.get(&cell.id).filter(|bad| bad.hash != by.hash)?;
            let whole = whole.contains(&cell.id.seam);
            Some(CellDiff::new(site, *cell, by.clone(), (*bad).clone(), whole))
        })
        .collect::<Result<_, _>>()?;
    diffs.sort_by_key(|diff| diff.cell.id.seam);
    Ok(diffs)
}

/// Groups of one seam, span, class, delta and ranks are one change; each group is one atom of it.
fn changes(groups: &[Group], diffs: &[CellDiff], all_ranks: usize) -> Vec<Change> {
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
        let ranks = of_ranks(group, diffs, all_ranks);
        let same = changes.iter_mut().find(|change| {
            change.seam == group.seam.name()
                && change.phase == group.span
                && change.class == group.class
                && change.ranks == ranks
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
                ranks,
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

/// The ranks that a group changes; empty if it changes all of them.
fn of_ranks(group: &Group, diffs: &[CellDiff], all: usize) -> Vec<u32> {
    let ranks = group.members.iter().filter_map(|(diff, _)| diffs[*diff].cell.id.rank);
    let ranks: BTreeSet<u32> = ranks.collect();
    if ranks.len() == all { Vec::new() } else { ranks.into_iter().collect() }
}

/// Builds the good end with each change alone, and notes which variants run then.
fn try_each(planned: &mut Planned, site: &dyn Site, good: &[Rule]) -> Result<(), (Option<Seam>, Refused)> {
    for index in 0..planned.plan.changes.len() {
        let atoms: Arm = planned.plan.changes[index].atoms.iter().map(|atom| atom.id).collect();
        let seam = planned.members[planned.plan.changes[index].atoms[0].id]
            .first()
            .map(|(diff, _)| planned.diffs[*diff].cell.id.seam);
        let arm = planned.plan.with_required(&atoms);
        let rules = planned.rules(good, &arm).map_err(|error| (seam, error))?;
        let tried = site.define(TRY, &rules).map_err(|error| (seam, error))?;
        let touched: Vec<CellId> = atoms
            .iter()
            .flat_map(|atom| &planned.members[*atom])
            .map(|(diff, _)| planned.diffs[*diff].cell.id)
            .collect();
        let mut variants: Vec<String> = tried
            .cells
            .iter()
            .filter(|served| touched.contains(&served.cell.id))
            .map(|served| served.by.spec.to_string())
            .collect();
        variants.sort();
        variants.dedup();
        planned.plan.changes[index].variants = variants;
    }
    Ok(())
}

/// All changes together must be the bad end, or the search would blame what it did not run.
fn check_ends(planned: &Planned, site: &dyn Site, good: &[Rule], bad: &Resolved) -> Result<(), TargetError> {
    let refused = |source| TargetError::Arm { what: "all changes".to_owned(), source };
    let rules = planned.rules(good, &planned.plan.all()).map_err(refused)?;
    let rebuilt = site.define(TRY, &rules);
    site.remove(TRY);
    let rebuilt = rebuilt.map_err(refused)?;
    if rebuilt.digest == bad.digest {
        return Ok(());
    }
    let pairs = bad.cells.iter().filter_map(|want| {
        let got = rebuilt.cells.iter().find(|got| got.cell.id == want.cell.id)?;
        (got.by.hash != want.by.hash).then_some((want, got))
    });
    let first = pairs
        .take(1)
        .map(|(want, got)| format!(": {} runs {} instead of {}", want.cell.id, got.by.spec, want.by.spec));
    let first: String = first.collect();
    Err(TargetError::Setup(format!("the planned changes do not add up to the bad end{first}")))
}

impl Planned {
    /// The rules of an arm: those of the good end, then those that make the arm of it.
    ///
    /// # Errors
    /// A rule that cannot be made.
    pub(crate) fn rules(&self, good: &[Rule], arm: &Arm) -> Result<Vec<Rule>, Refused> {
        let mut rules = good.to_vec();
        rules.extend(arms::rules(self, arm)?);
        Ok(rules)
    }

    /// Makes the topology a change as well: the good end runs at `single`, the bad end at `paired`. What is about hand-offs means
    /// nothing without it. Returns its atom.
    pub(crate) fn add_topology(&mut self) -> usize {
        let id = self.members.len();
        let handoffs = self.plan.changes.iter_mut().filter(|change| change.phase == Span::Handoff);
        handoffs.flat_map(|change| &mut change.atoms).for_each(|atom| atom.requires.push(id));
        self.members.push(Vec::new());
        self.plan.changes.push(Change {
            seam: TOPOLOGY.to_owned(),
            ops: Vec::new(),
            phase: Span::Handoff,
            class: Class::Model,
            ranks: Vec::new(),
            delta: Delta::Variant { from: "single".to_owned(), to: "paired".to_owned() },
            variants: Vec::new(),
            atoms: vec![Atom { id, layer: None, requires: Vec::new() }],
        });
        id
    }

    /// The atoms none of whose cells was called, by the calls of each cell.
    pub(crate) fn not_run(&self, calls: &HashMap<CellId, u64>) -> Arm {
        let called = |diff: usize| calls.get(&self.diffs[diff].cell.id).copied().unwrap_or(0);
        // The topology has no cells.
        let own = |atom: usize| self.members[atom].as_slice();
        let idle =
            |atom: &usize| !own(*atom).is_empty() && own(*atom).iter().all(|(diff, _)| called(*diff) == 0);
        (0..self.members.len()).filter(idle).collect()
    }

    /// Whether every cell runs the same code and options at both ends.
    pub(crate) fn is_same_code(&self) -> bool {
        self.diffs.is_empty()
    }

    /// The cells that a change touches.
    pub(crate) fn cells(&self, change: usize) -> Vec<CellId> {
        let atoms = self.plan.changes.get(change).map(|change| change.atoms.as_slice()).unwrap_or_default();
        let members = atoms.iter().flat_map(|atom| &self.members[atom.id]);
        let mut cells: Vec<CellId> = members.map(|(diff, _)| self.diffs[*diff].cell.id).collect();
        cells.sort_unstable();
        cells.dedup();
        cells
    }

    /// What an arm is, for people.
    pub(crate) fn describe(&self, arm: &Arm) -> String {
        let changes = self.plan.changes.iter();
        let on: Vec<String> = changes
            .filter(|change| change.atoms.iter().any(|atom| arm.contains(&atom.id)))
            .map(Change::title)
            .collect();
        if on.is_empty() { "the good end".to_owned() } else { format!("the arm [{}]", on.join("; ")) }
    }
}
