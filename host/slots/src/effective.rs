//! From rules to cells: which generation serves each cell, and whether they fit together.

use crate::cell::{Cell, CellId};
use crate::error::SlotsError;
use crate::generation::Generation;
use crate::geometry::Geometry;
use crate::registry::Registry;
use crate::rule::Rule;
use crate::seam::{Op, Seam, Topology};
use crate::selector::{Scope, Selector};
use crate::snapshot::Layout;
use std::collections::HashMap;
use std::sync::Arc;

/// A rule whose variant has been loaded, so that applying it again gives the same code even if the file changes.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) rule: Rule,
    /// `None` if the rule heals, or has no effect in this topology.
    generation: Option<Arc<Generation>>,
    /// Whether it has an effect in this topology.
    active: bool,
}

/// Which rules of a list decide a cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deciders {
    /// First rule that matches; what a healing rule goes back to.
    pub(crate) first: usize,
    /// Last rule that matches; it wins.
    pub(crate) last: usize,
}

/// Checks a rule against the model and loads its variant. `lenient`: a rule for another topology is accepted and has
/// no effect, so that one list serves both.
pub(crate) fn resolve(registry: &Registry, rule: &Rule, lenient: bool) -> Result<Resolved, SlotsError> {
    let active = check(rule.select(), registry.geometry(), lenient)?;
    let mut generation = None;
    if let Some(spec) = rule.variant() {
        let loaded = registry.generation_on(registry.device(), spec)?;
        let (expected, found) = (rule.select().seam, loaded.seam);
        if expected != found {
            let (selector, variant) = (rule.select().to_string(), spec.to_string());
            return Err(SlotsError::Seam { selector, variant, expected, found });
        }
        generation = active.then_some(loaded);
    }
    Ok(Resolved { rule: rule.clone(), generation, active })
}

/// Whether the selector has an effect in this model; an error if it cannot have one.
fn check(selector: &Selector, geometry: &Geometry, lenient: bool) -> Result<bool, SlotsError> {
    if let Scope::Layers(layers) = &selector.scope
        && let Some(layer) = layers.max().filter(|l| *l as usize >= geometry.layers())
    {
        return Err(SlotsError::Layer { selector: selector.to_string(), layer, layers: geometry.layers() });
    }
    let no_match = |why: String| Err(SlotsError::NoMatch { selector: selector.to_string(), why });
    if let Some(ranks) = selector.ranks.as_ref().filter(|r| !(0..geometry.ranks).any(|rank| r.contains(rank)))
    {
        return no_match(match geometry.ranks {
            1 => format!("ranks {ranks} do not exist here, this is rank 0 of 1. Leave `/ranks` away."),
            all => format!("ranks {ranks} do not exist here, there are 0 to {}. Correct the ranks.", all - 1),
        });
    }
    if let Some(wanted) = selector.topology.filter(|t| *t != geometry.topology) {
        let why =
            format!("it is for topology {wanted}, the running one is {}. Leave `^` away.", geometry.topology);
        return if lenient { Ok(false) } else { no_match(why) };
    }
    if selector.seam == Seam::KvTransport && geometry.topology == Topology::Single {
        return Ok(false);
    }
    let cells = geometry.cells();
    if cells.iter().any(|cell| selector.matches(cell)) {
        return Ok(true);
    }
    let mut layers: Vec<u32> = cells
        .iter()
        .filter(|c| c.id.seam == selector.seam && selector.op.is_none_or(|op| op == c.id.op))
        .filter_map(|c| c.id.layer)
        .collect();
    layers.dedup();
    let what = selector.op.map_or(selector.seam.to_string(), |op| format!("{}.{op}", selector.seam));
    no_match(if layers.is_empty() {
        format!("this model has {what} in no layer. Leave the layers away.")
    } else {
        format!("this model has {what} in layers {}. Correct the layers.", crate::NumberSet::of(layers))
    })
}

/// The rules that decide each cell of `cells`, `None` where no rule matches.
pub(crate) fn deciders(rules: &[Resolved], cells: &[Cell]) -> Vec<Option<Deciders>> {
    let find = |cell: &Cell| {
        let mut matching =
            (0..rules.len()).filter(|i| rules[*i].active && rules[*i].rule.select().matches(cell));
        let first = matching.next()?;
        Some(Deciders { first, last: matching.next_back().unwrap_or(first) })
    };
    cells.iter().map(find).collect()
}

/// The generation that serves each cell: complete, and checked for ops, phases and layouts.
pub(crate) fn effective(
    assignment: &str,
    rules: &[Resolved],
    geometry: &Geometry,
) -> Result<Vec<(CellId, Arc<Generation>)>, SlotsError> {
    let cells = geometry.cells();
    let deciders = deciders(rules, &cells);
    let mut missing = cells.iter().zip(&deciders).filter(|(_, d)| d.is_none()).map(|(c, _)| c.id);
    if let Some(cell) = missing.next() {
        let (assignment, seam, count) = (assignment.to_owned(), cell.seam, missing.count() + 1);
        return Err(SlotsError::Unfilled { assignment, cell, seam, count });
    }
    let mut table = Vec::with_capacity(cells.len());
    for (cell, decider) in cells.iter().zip(deciders) {
        let Some(Deciders { first, last }) = decider else { continue };
        let chosen = if rules[last].rule.select().heal { first } else { last };
        let Some(generation) = &rules[chosen].generation else {
            let selector = rules[chosen].rule.select().to_string();
            return Err(SlotsError::NothingToHeal { selector, cell: cell.id });
        };
        table.push((cell.id, serving(cell.id, generation)?));
    }
    check_layouts(&table)?;
    Ok(table)
}

/// What serves one cell, if it has the op and serves the phase.
fn serving(cell: CellId, generation: &Arc<Generation>) -> Result<Arc<Generation>, SlotsError> {
    let found = generation.serving(cell.op).ok_or_else(|| SlotsError::MissingOp {
        cell,
        variant: generation.spec.to_string(),
        op: cell.op.to_string(),
        next: if cell.op == Op::Transport {
            "A transport has all of register, put, poll and cancel itself.".to_owned()
        } else {
            "Name a base in its manifest, or give it only the ops that it has.".to_owned()
        },
    })?;
    if let Some(phase) = cell.phase.filter(|phase| !found.serves(*phase)) {
        let fits = crate::Phase::ALL.iter().copied().find(|p| found.serves(*p)).unwrap_or(phase);
        return Err(SlotsError::Phase {
            cell,
            variant: found.spec.to_string(),
            served: found.phases(),
            phase,
            hint: Selector { phase: Some(fits), ..Selector::seam(cell.seam) }.to_string(),
        });
    }
    Ok(found)
}

/// All cells that read or write one pool (a seam's of one layer, in both phases) have one layout.
fn check_layouts(table: &[(CellId, Arc<Generation>)]) -> Result<(), SlotsError> {
    let mut pools = HashMap::new();
    let with_pool = table.iter().filter(|(cell, _)| matches!(cell.seam, Seam::Attention | Seam::Indexer));
    for (cell, generation) in with_pool {
        let (first, other) = *pools.entry((cell.seam, cell.layer)).or_insert((*cell, generation));
        if Layout::of(other) != Layout::of(generation) {
            let layout = |g: &Generation| format!("`{}` has {}", g.spec, Layout::of(g));
            let (a_layout, b_layout) = (layout(other), layout(generation));
            return Err(SlotsError::Layouts { a: first, a_layout, b: *cell, b_layout });
        }
    }
    Ok(())
}
