//! Which grafts are worth trying, from wide to narrow.

use std::collections::{BTreeMap, BTreeSet};

use hotseam_abi::component;
use hotseam_engine::Engine;
use hotseam_slots::{Cell, CellId, LayerClass, NumberSet, Op, Phase, Scope, Seam, Selector, changes};

use super::{Engines, Graft, GraftPlan, KvPart};

fn all_cells(engine: &Engine) -> Vec<Cell> {
    engine.slots().registry().geometry().cells()
}

/// Whether steps call the cell. The transport lies between them.
fn is_step_cell(cell: &CellId) -> bool {
    cell.seam != Seam::KvTransport
}

/// The cells whose outputs a graft replaces.
pub(super) fn cells(engine: &Engine, graft: &Graft) -> BTreeSet<CellId> {
    let Graft::Outputs(selector) = graft else { return BTreeSet::new() };
    let all = all_cells(engine);
    all.iter().filter(|cell| selector.matches(cell) && is_step_cell(&cell.id)).map(|cell| cell.id).collect()
}

/// All KV, then the outputs of the cells that differ, by op and phase.
pub(super) fn first(engines: Engines<'_>, plan: &GraftPlan) -> Vec<Graft> {
    let mut grafts = vec![Graft::Kv(KvPart::ALL)];
    let engine = engines.bad;
    let snapshot = |engine: &Engine, name: &str| engine.slots().snapshot(name);
    let ends = (snapshot(engines.good, &plan.good), snapshot(engine, &plan.bad));
    let (Some(good), Some(bad)) = ends else { return grafts };
    let mut groups: BTreeMap<(Seam, Op, Option<Phase>), Vec<u32>> = BTreeMap::new();
    for change in changes(&good, &bad).iter().filter(|change| is_step_cell(&change.cell)) {
        let cell = change.cell;
        groups.entry((cell.seam, cell.op, cell.phase)).or_default().extend(cell.layer);
    }
    let all = all_cells(engine);
    for ((seam, op, phase), layers) in groups {
        let selector = Selector { op: Some(op), phase, ..Selector::seam(seam) };
        let whole = all.iter().filter(|cell| selector.matches(cell)).count() <= layers.len().max(1);
        let scope = if whole { Scope::All } else { Scope::Layers(NumberSet::of(layers)) };
        grafts.push(Graft::Outputs(Selector { scope, ..selector }));
    }
    grafts
}

/// All KV, then each component of it.
pub(super) fn kv(engine: &Engine) -> Vec<Graft> {
    std::iter::once(Graft::Kv(KvPart::ALL)).chain(components(engine)).collect()
}

/// The components that the model has, one by one.
pub(super) fn components(engine: &Engine) -> Vec<Graft> {
    let config = &engine.model().config;
    let has = |class| (0..config.num_hidden_layers).any(|layer| config.class(layer) == class);
    let (csa, hca) = (has(LayerClass::Csa), has(LayerClass::Hca));
    let there = |c: &u32| match *c {
        component::SWA => true,
        component::C128 | component::C128_STATE => hca,
        _ => csa,
    };
    let all = 0..component::NAMES.len() as u32;
    all.filter(there).map(|c| Graft::Kv(KvPart { component: Some(c), layers: None })).collect()
}

/// A graft layer by layer; nothing for one that has a single layer, or none, already.
pub(super) fn layers(engine: &Engine, graft: &Graft) -> Vec<Graft> {
    match graft {
        Graft::Outputs(selector) => {
            let layers: BTreeSet<u32> = cells(engine, graft).iter().filter_map(|cell| cell.layer).collect();
            let one = |layer| {
                let scope = Scope::Layers(NumberSet::one(layer));
                Graft::Outputs(Selector { scope, ..selector.clone() })
            };
            if layers.len() > 1 { layers.into_iter().map(one).collect() } else { Vec::new() }
        }
        Graft::Kv(KvPart { component: Some(component), layers: None }) => {
            let config = &engine.model().config;
            let has = |layer: &usize| match (*component, config.class(*layer)) {
                (component::SWA, _) => true,
                (component::C128 | component::C128_STATE, class) => class == LayerClass::Hca,
                (_, class) => class == LayerClass::Csa,
            };
            let layers = (0..config.num_hidden_layers).filter(has).map(|layer| {
                let layers = Some(NumberSet::one(layer as u32));
                Graft::Kv(KvPart { component: Some(*component), layers })
            });
            let layers: Vec<Graft> = layers.collect();
            if layers.len() > 1 { layers } else { Vec::new() }
        }
        Graft::Kv(_) => Vec::new(),
    }
}
