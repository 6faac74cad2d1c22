//! Named assignments and how they change.

use crate::diff::{CellChange, SwapReport, changes};
use crate::effective::{Resolved, deciders, effective, resolve};
use crate::elsewhere::{Peers, Shared};
use crate::error::SlotsError;
use crate::registry::Registry;
use crate::rule::Rule;
use crate::snapshot::Snapshot;
use crate::swap::{Change, SwapPlan, moves};
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
    peers: Option<Arc<dyn Peers>>,
    snapshots: ArcSwap<HashMap<String, Entry>>,
    state: Mutex<State>,
}

/// What readers see of an assignment.
#[derive(Debug, Clone)]
struct Entry {
    current: Arc<Snapshot>,
    /// The table before the last change, kept for a step that fails and for a rollback.
    fallback: Option<Arc<Snapshot>>,
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
    /// What was in force before the last change.
    previous: Option<Previous>,
}

#[derive(Debug, Clone)]
struct Previous {
    rules: Vec<Resolved>,
    defined: usize,
    snapshot: Arc<Snapshot>,
}

impl Slots {
    /// No assignments yet.
    pub fn new(registry: Registry) -> Self {
        Self { registry, peers: None, snapshots: ArcSwap::default(), state: Mutex::default() }
    }

    /// The same, whose tables the other ranks of a tensor-parallel group, if there are any, hold as well.
    pub fn with_peers<P: Peers>(self, peers: Option<Arc<P>>) -> Self {
        Self { peers: peers.map(|peers| peers as Arc<dyn Peers>), ..self }
    }

    /// The other ranks.
    pub fn peers(&self) -> Option<&Arc<dyn Peers>> {
        self.peers.as_ref()
    }

    /// A table that is in no assignment: what a rank makes of the rules that the first rank names.
    ///
    /// # Errors
    /// As [`Slots::define`].
    pub fn table(&self, name: &str, rules: &[Rule]) -> Result<Arc<Snapshot>, SlotsError> {
        self.build(name, &self.resolve_all(rules)?)
    }

    /// Where generations come from.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The snapshot of an assignment. Takes no lock that a writer holds; the engine calls it once a step.
    pub fn snapshot(&self, name: &str) -> Option<Arc<Snapshot>> {
        self.snapshots.load().get(name).map(|entry| Arc::clone(&entry.current))
    }

    /// The table before the last change of an assignment; `None` if there was no change since it was defined or rolled
    /// back. Takes no lock that a writer holds.
    pub fn fallback(&self, name: &str) -> Option<Arc<Snapshot>> {
        self.snapshots.load().get(name)?.fallback.clone()
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
        let rules = self.resolve_all(&rules)?;
        let snapshot = self.build(name, &rules)?;
        let mut state = self.state();
        if let Some(old) = self.snapshot(name) {
            check_layouts(&old, &snapshot)?;
        }
        let assignment = Assignment { defined: rules.len(), rules, previous: None };
        state.assignments.insert(name.to_owned(), assignment);
        self.publish(state, name, Some(Entry { current: snapshot.clone(), fallback: None }));
        Ok(snapshot)
    }

    /// Forgets an assignment; returns whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        let mut state = self.state();
        let there = state.assignments.remove(name).is_some();
        self.publish(state, name, None);
        there
    }

    /// The rules of an assignment: those it was defined with, then the changes that still have an effect.
    pub fn rules(&self, name: &str) -> Option<Vec<Rule>> {
        let state = self.state();
        Some(state.assignments.get(name)?.rules.iter().map(|r| r.rule.clone()).collect())
    }

    /// Works out what a change of an assignment would do, and gets everything ready for it: variants are loaded and
    /// created here. Nothing changes, and no writer waits.
    ///
    /// # Errors
    /// As [`Slots::define`], except that a changed layout is no error but part of the plan; or if there is no change to
    /// take back.
    pub fn plan(&self, name: &str, change: &Change) -> Result<SwapPlan, SlotsError> {
        let (from, assignment) = {
            let state = self.state();
            self.current(&state, name)?
        };
        let before = (assignment.rules.clone(), assignment.defined);
        let (rules, defined, ready) = match change {
            Change::Add(added) => {
                let mut rules = assignment.rules.clone();
                for rule in added {
                    rules.push(resolve(&self.registry, rule, false)?);
                }
                self.drop_shadowed(&mut rules, assignment.defined);
                (rules, assignment.defined, None)
            }
            Change::Replace(all) => (self.resolve_all(all)?, all.len(), None),
            Change::Back => match assignment.previous {
                Some(Previous { rules, defined, snapshot }) => (rules, defined, Some(snapshot)),
                None => return Err(SlotsError::NothingToRollBack { name: name.to_owned() }),
            },
        };
        let to = ready.map_or_else(|| self.build(name, &rules), Ok)?;
        let plain = |rules: &[Resolved]| rules.iter().map(|r| r.rule.clone()).collect();
        Ok(SwapPlan {
            assignment: name.to_owned(),
            rules_before: plain(&before.0),
            rules_after: plain(&rules),
            changes: changes(&from, &to),
            layouts: moves(&from, &to),
            newcomers: SwapPlan::describe_newcomers(&from, &to),
            digest_before: from.digest(),
            digest_after: to.digest(),
            from,
            to,
            before,
            rules,
            defined,
            is_rollback: *change == Change::Back,
        })
    }

    /// Puts a plan into force. Steps that begin after the return use it. A plan without changes leaves the assignment,
    /// its counts and its history as they are.
    ///
    /// # Errors
    /// [`SlotsError::Changed`] if the assignment is no longer what it was when the plan was made.
    pub fn commit(&self, plan: &SwapPlan) -> Result<SwapReport, SlotsError> {
        let report = SwapReport {
            assignment: plan.assignment.clone(),
            changes: plan.changes.clone(),
            digest_before: plan.digest_before,
            digest_after: plan.digest_after,
        };
        let mut state = self.state();
        let name = &plan.assignment;
        let (current, assignment) = self.current(&state, name)?;
        if !Arc::ptr_eq(&current, &plan.from) {
            return Err(SlotsError::Changed { name: name.clone() });
        }
        if plan.changes.is_empty() {
            return Ok(report);
        }
        // The table before the one in force goes, so that its instances can end.
        let Assignment { rules, defined, previous: older } = assignment;
        drop(older);
        let previous =
            (!plan.is_rollback).then(|| Previous { rules, defined, snapshot: Arc::clone(&plan.from) });
        let fallback = previous.as_ref().map(|p| Arc::clone(&p.snapshot));
        let changed = Assignment { rules: plan.rules.clone(), defined: plan.defined, previous };
        state.assignments.insert(name.clone(), changed);
        self.publish(state, name, Some(Entry { current: Arc::clone(&plan.to), fallback }));
        tracing::info!(assignment = name, cells = report.changes.len(), back = plan.is_rollback, "swapped");
        Ok(report)
    }

    /// Puts back what a committed plan replaced, unless its table is no longer in force; returns whether it did. Unlike
    /// [`Change::Back`] it also takes a change back that took one back. There is nothing to take back afterwards.
    pub fn revert(&self, plan: &SwapPlan) -> bool {
        let mut state = self.state();
        let name = &plan.assignment;
        if !self.snapshot(name).is_some_and(|now| Arc::ptr_eq(&now, &plan.to)) {
            return false;
        }
        let (rules, defined) = plan.before.clone();
        state.assignments.insert(name.clone(), Assignment { rules, defined, previous: None });
        self.publish(state, name, Some(Entry { current: Arc::clone(&plan.from), fallback: None }));
        tracing::info!(assignment = name, "reverted");
        true
    }

    /// Adds a rule to an assignment at once, without the checks, the shadow and the probation of the engine's protocol.
    /// Only the rule's own variant is loaded: other cells keep their code even if their files have changed.
    ///
    /// # Errors
    /// As [`Slots::define`]; nothing has changed then.
    pub fn swap(&self, name: &str, rule: Rule, policy: LayoutPolicy) -> Result<SwapReport, SlotsError> {
        self.change(name, &Change::Add(vec![rule]), policy)
    }

    /// Takes the last change of an assignment back. One change is kept.
    ///
    /// # Errors
    /// If there is none, or if going back changes a layout.
    pub fn rollback(&self, name: &str) -> Result<SwapReport, SlotsError> {
        self.change(name, &Change::Back, LayoutPolicy::Refuse)
    }

    /// Plans and commits, again if another writer came in between.
    fn change(&self, name: &str, change: &Change, policy: LayoutPolicy) -> Result<SwapReport, SlotsError> {
        loop {
            let plan = self.plan(name, change)?;
            if policy == LayoutPolicy::Refuse {
                plan.refuse_layouts()?;
            }
            match self.commit(&plan) {
                Err(SlotsError::Changed { .. }) => {}
                done => return done,
            }
        }
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
        let ended = take_unused(&mut state);
        let left = state.retired.len();
        drop(state);
        // Instances end here, without the lock, since ending may take long.
        drop(ended);
        left
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
        let table = Snapshot::new(name, table, geometry)?;
        let Some(peers) = &self.peers else { return Ok(Arc::new(table)) };
        let rules: Vec<Rule> = rules.iter().map(|resolved| resolved.rule.clone()).collect();
        let shared = Shared::tell(Arc::clone(peers), name, &rules, table.digest())?;
        Ok(Arc::new(table.shared(shared)))
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

    fn publish(&self, mut state: MutexGuard<'_, State>, name: &str, entry: Option<Entry>) {
        let mut map = HashMap::clone(&self.snapshots.load());
        let kept = entry.clone();
        let old = match entry {
            Some(entry) => map.insert(name.to_owned(), entry),
            None => map.remove(name),
        };
        self.snapshots.store(Arc::new(map));
        let in_use = |snapshot: &Arc<Snapshot>| {
            kept.as_ref().is_some_and(|entry| {
                Arc::ptr_eq(&entry.current, snapshot)
                    || entry.fallback.as_ref().is_some_and(|f| Arc::ptr_eq(f, snapshot))
            })
        };
        // Kept until no step uses them, so that instances end here and not in the step loop.
        let replaced = old.into_iter().flat_map(|old| std::iter::once(old.current).chain(old.fallback));
        state.retired.extend(replaced.filter(|snapshot| !in_use(snapshot)));
        drop(kept);
        let ended = take_unused(&mut state);
        drop(state);
        // Without the lock, since ending may take long.
        drop(ended);
    }
}

/// The replaced snapshots that nothing else uses, taken out of the list.
fn take_unused(state: &mut State) -> Vec<Arc<Snapshot>> {
    let (unused, used) =
        std::mem::take(&mut state.retired).into_iter().partition(|s| Arc::strong_count(s) == 1);
    state.retired = used;
    unused
}

/// Refuses a snapshot whose pools look different from those in use.
fn check_layouts(old: &Snapshot, new: &Snapshot) -> Result<(), SlotsError> {
    let Some(first) = moves(old, new).into_iter().next() else { return Ok(()) };
    Err(SlotsError::layout_change(old.name(), first))
}
