//! The slots of an engine in this process, as a planner sees them.

use std::collections::HashMap;
use std::sync::Arc;

use hotseam_engine::Leader;
use hotseam_slots::{Cell, CellId, Geometry, Layout, Registry, Rule, Slots, Snapshot, Topology, VariantSpec};
use serde_json::{Map, Value};

use crate::planning::{End, Refused, Resolved, Served, Site};

/// The slots of an engine.
pub(super) struct Local<'a>(pub(super) &'a Slots);

impl Site for Local<'_> {
    fn define(&self, name: &str, rules: &[Rule]) -> Result<Resolved, Refused> {
        // Removed first, so that receipts begin at zero and the layouts may be others than before.
        self.0.remove(name);
        let snapshot = self.0.define(name, rules.to_vec())?;
        Ok(resolved(&snapshot, self.0.registry().geometry()))
    }

    fn remove(&self, name: &str) {
        self.0.remove(name);
    }

    fn accepts(&self, variant: &str, option: &str, value: &Value) -> Result<bool, Refused> {
        let given = Map::from_iter([(option.to_owned(), value.clone())]);
        Ok(self.0.registry().loader().open(variant)?.manifest().canonical(&given).is_ok())
    }

    fn layout(&self, variant: &VariantSpec) -> Result<String, Refused> {
        Ok(Layout::of(&*self.0.registry().generation(variant)?).to_string())
    }
}

fn resolved(snapshot: &Snapshot, geometry: &Geometry) -> Resolved {
    let classes: HashMap<CellId, Cell> = geometry.cells().into_iter().map(|cell| (cell.id, cell)).collect();
    let cells = snapshot.cells().filter_map(|view| {
        let generation = &view.generation;
        let options = generation.instance.options().clone();
        Some(Served {
            cell: *classes.get(&view.cell)?,
            by: End {
                spec: VariantSpec::new(generation.spec.name.clone(), options),
                plugin: generation.instance.plugin().sha256().to_owned(),
                hash: generation.hash.clone(),
            },
        })
    });
    Resolved { digest: snapshot.digest().to_string(), cells: cells.collect() }
}

/// Calls of each cell since the snapshot was built.
pub(super) fn calls(snapshot: &Snapshot) -> HashMap<CellId, u64> {
    snapshot.count_elsewhere();
    snapshot.cells().map(|view| (view.cell, view.calls)).collect()
}

/// Slots of a model with instances of their own and no assignments, over the plugin files of `old`, with the ranks of `leader`.
///
/// # Errors
/// If the plugin directories are gone.
pub(super) fn fresh(
    old: &Slots,
    topology: Topology,
    leader: Option<Arc<Leader>>,
) -> Result<Arc<Slots>, Refused> {
    let registry = old.registry();
    let loader = registry.loader().again()?;
    let geometry = Geometry { topology, ..registry.geometry().clone() };
    Ok(Arc::new(Slots::new(Registry::new(loader, geometry).on(registry.device())).with_peers(leader)))
}
