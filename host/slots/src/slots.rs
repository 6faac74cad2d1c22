//! Named assignments and how they change.

use crate::diff::{CellChange, SwapReport, changes};
use crate::effective::{Resolved, deciders, effective, resolve};
use crate::error::SlotsError;
use crate::registry::Registry;
use crate::rule::Rule;
use crate::snapshot::Snapshot;
use arc_swap::ArcSwap;
use hotseam_loader::did_you_mean;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What to do if a change would alter the layout of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LayoutPolicy {
    /// Refuse the change.
    #[default]
    Refuse,
    /// Make the change. The caller has made sure that no sequence of the assignment is in flight.
    Allow,
}

/// The assignments of a process. Readers take a snapshot without waiting; writers take turns.
#[derive(Debug)]
pub struct Slots {
    registry: Registry,
    snapshots: ArcSwap<HashMap<String, Arc<Snapshot>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    assignments: BTreeMap<String, Assignment>,
    /// Snapshots that were replaced and may still drive a step.
    retired: Vec<Arc<Snapshot>>,
}

#[derive(Debug, Clone)]
struct Assignment {
    /// Rules in force; the later win.
    rules: Vec<Resolved>,
    /// How many of them came with the definition.
    defined: usize,
    /// Rules before the last change.
    previous: Option<Vec<Resolved>>,
}

impl Slots {
    /// No assignments yet.
    pub fn new(registry: Registry) -> Self {
        Self { registry, snapshots: ArcSwap::default(), state: Mutex::default() }
    }

    /// Where generations come from.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The snapshot of an assignment. Takes no lock that a writer holds; the engine calls it once a step.
    pub fn snapshot(&self, name: &str) -> Option<Arc<Snapshot>> {
        self.snapshots.load().get(name).cloned()
    }

    /// Names of the assignments, sorted. Takes no lock that a writer holds.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.snapshots.load().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Defines an assignment, or replaces one of that name if no layout changes. Variants are loaded here.
    ///
    /// # Errors
    /// For a rule that cannot be applied, an incomplete or contradictory set of rules, or a changed layout.
    pub fn define(&self, name: &str, rules: Vec<Rule>) -> Result<Arc<Snapshot>, SlotsError> {
        let mut state = self.state();
        let rules = self.resolve_all(&rules)?;
        let snapshot = self.build(name, &rules)?;
        if let Some(old) = self.snapshot(name) {
            check_layouts(&old, &snapshot)?;
        }
        let assignment = Assignment { defined: rules.len(), rules, previous: None };
        state.assignments.insert(name.to_owned(), assignment);
        self.publish(&mut state, name, Some(snapshot.clone()));
        Ok(snapshot)
    }

    /// Forgets an assignment; returns whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        let mut state = self.state();
        let there = state.assignments.remove(name).is_some();
        self.publish(&mut state, name, None);
        there
    }

    /// The rules of an assignment: those it was defined with, then the changes that still have an effect.
    pub fn rules(&self, name: &str) -> Option<Vec<Rule>> {
        let state = self.state();
        Some(state.assignments.get(name)?.rules.iter().map(|r| r.rule.clone()).collect())
    }

    /// Adds a rule to an assignment. Steps that begin after the return use it. Only the rule's own variant is loaded:
    /// other cells keep their code even if their files have changed.
    ///
    /// A rule that changes nothing leaves the assignment, its counts and its history as they are.
    ///
    /// # Errors
    /// As [`Slots::define`]; nothing has changed then.
    pub fn swap(&self, name: &str, rule: Rule, policy: LayoutPolicy) -> Result<SwapReport, SlotsError> {
        let mut state = self.state();
        let (old, mut assignment) = self.current(&state, name)?;
        let mut rules = assignment.rules.clone();
        rules.push(resolve(&self.registry, &rule, false)?);
        self.drop_shadowed(&mut rules, assignment.defined);
        let snapshot = self.build(name, &rules)?;
        let report = report(name, &old, &snapshot);
        if report.changes.is_empty() {
            return Ok(report);
        }
        if policy == LayoutPolicy::Refuse {
            check_layouts(&old, &snapshot)?;
        }
        assignment.previous = Some(std::mem::replace(&mut assignment.rules, rules));
        state.assignments.insert(name.to_owned(), assignment);
        self.publish(&mut state, name, Some(snapshot));
        tracing::info!(assignment = name, rule = %rule, cells = report.changes.len(), "swapped");
        Ok(report)
    }

    /// Takes the last change of an assignment back. One change is kept.
    ///
    /// # Errors
    /// If there is none, or if going back changes a layout.
    pub fn rollback(&self, name: &str) -> Result<SwapReport, SlotsError> {
        let mut state = self.state();
        let (old, mut assignment) = self.current(&state, name)?;
        let Some(rules) = assignment.previous.take() else {
            return Err(SlotsError::NothingToRollBack { name: name.to_owned() });
        };
        let snapshot = self.build(name, &rules)?;
        check_layouts(&old, &snapshot)?;
        let report = report(name, &old, &snapshot);
        assignment.rules = rules;
        state.assignments.insert(name.to_owned(), assignment);
        self.publish(&mut state, name, Some(snapshot));
        tracing::info!(assignment = name, cells = report.changes.len(), "rolled back");
        Ok(report)
    }

    /// The cells in which two rule lists differ, in the order of the cells. Loads the variants; changes nothing.
    ///
    /// # Errors
    /// As [`Slots::define`], for each list.
    pub fn diff(&self, a: &[Rule], b: &[Rule]) -> Result<Vec<CellChange>, SlotsError> {
        let from = self.build("a", &self.resolve_all(a)?)?;
        let to = self.build("b", &self.resolve_all(b)?)?;
        Ok(changes(&from, &to))
    }

    /// Ends replaced snapshots that no step uses any more, and with them instances that nothing else uses. Writers do
    /// it too. Returns how many replaced snapshots are still in use.
    pub fn reap(&self) -> usize {
        let mut state = self.state();
        reap(&mut state);
        state.retired.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self, state: &State, name: &str) -> Result<(Arc<Snapshot>, Assignment), SlotsError> {
        self.snapshot(name).zip(state.assignments.get(name).cloned()).ok_or_else(|| {
            SlotsError::UnknownAssignment {
                name: name.to_owned(),
                hint: did_you_mean(name, state.assignments.keys().map(String::as_str)),
            }
        })
    }

    fn resolve_all(&self, rules: &[Rule]) -> Result<Vec<Resolved>, SlotsError> {
        rules.iter().map(|rule| resolve(&self.registry, rule, true)).collect()
    }

    fn build(&self, name: &str, rules: &[Resolved]) -> Result<Arc<Snapshot>, SlotsError> {
        let geometry = self.registry.geometry();
        let table = effective(name, rules, geometry)?;
        Snapshot::new(name, table, geometry).map(Arc::new)
    }

    /// Drops changes that decide no cell any more, so that their instances can end and lists do not grow for ever.
    fn drop_shadowed(&self, rules: &mut Vec<Resolved>, defined: usize) {
        let cells = self.registry.geometry().cells();
        let mut used = vec![false; rules.len()];
        for decider in deciders(rules, &cells).into_iter().flatten() {
            used[decider.first] = true;
            used[decider.last] = true;
        }
        let mut index = 0;
        rules.retain(|_| {
            index += 1;
            index <= defined || used[index - 1]
        });
    }

    fn publish(&self, state: &mut State, name: &str, snapshot: Option<Arc<Snapshot>>) {
        let mut map = HashMap::clone(&self.snapshots.load());
        let old = match snapshot {
            Some(snapshot) => map.insert(name.to_owned(), snapshot),
            None => map.remove(name),
        };
        self.snapshots.store(Arc::new(map));
        // Kept until no step uses it, so that instances end here and not in the step loop.
        state.retired.extend(old);
        reap(state);
    }
}

fn reap(state: &mut State) {
    state.retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
}

fn report(name: &str, old: &Snapshot, new: &Snapshot) -> SwapReport {
    SwapReport {
        assignment: name.to_owned(),
        changes: changes(old, new),
        digest_before: old.digest(),
        digest_after: new.digest(),
    }
}

/// Refuses a snapshot whose pools look different from those in use.
fn check_layouts(old: &Snapshot, new: &Snapshot) -> Result<(), SlotsError> {
    let refuse = |layer, pool, from: String, to: String| {
        Err(SlotsError::LayoutChange { assignment: old.name().to_owned(), layer, pool, from, to })
    };
    for layer in 0..old.num_layers() {
        let (from, to) = (old.kv_layout(layer), new.kv_layout(layer));
        if from != to {
            return refuse(layer, "kv", from.to_string(), to.to_string());
        }
        if let (Some(from), Some(to)) = (old.key_layout(layer), new.key_layout(layer))
            && from != to
        {
            return refuse(layer, "index key", from.to_string(), to.to_string());
        }
    }
    Ok(())
}
