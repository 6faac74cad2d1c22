//! Swaps of a swap group: what both ends of a pair must have alike changes on all of its workers or on none.
//!
//! The worker that is asked leads. It asks every member that it is connected to, and those ask the ones behind them, so that the
//! group is whoever can be reached: every member gets the swap ready and says what it would end on; only if that is the same
//! everywhere does one after the other commit. Whoever refuses, fails, is late or goes away before all have kept the new table
//! makes all go back. [`node`] is what a worker knows of such a swap, [`news`] how it hears of it, [`drive`] what it does,
//! [`kept`] what it may still have to take back.
//!
//! Requests under way keep the table that they were reserved under: the sending side ([`crate::scheduler`]) takes reservations
//! of the table before and of the one after as long as the swap lasts.

mod drive;
mod kept;
mod news;
mod node;
mod waits;

use crate::Role;
use crate::disagg::fingerprint;
use hotseam_model::Model;
use hotseam_pd::{Fingerprint, Group, GroupEvent, GroupMessage, ServedWith, shown};
use hotseam_slots::{Change, Slots, Snapshot, SwapPolicy};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) use kept::Kept;
pub(super) use node::Node;

/// A swap that another worker of the group asks this one to take part in.
#[derive(Debug)]
pub struct PeerSwap<'a> {
    /// The worker, the group and who asked there.
    pub who: &'a str,
    /// The assignment.
    pub assignment: &'a str,
    /// The change of its rules.
    pub change: &'a Change,
    /// How careful.
    pub policy: &'a SwapPolicy,
}

/// Says why a peer's swap must not begin.
type Allow = Box<dyn Fn(&PeerSwap<'_>) -> Result<(), String> + Send + Sync>;

/// A swap group as a worker sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// Its name.
    pub name: String,
    /// Its other workers, as far as this one has met them.
    pub members: Vec<MemberView>,
}

/// Another worker of the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// The worker.
    pub worker: String,
    /// Whether it is connected. Swaps wait for nobody, so they are refused while a member is absent.
    pub connected: bool,
    /// In what it differs from this worker, so that hand-offs between the two are refused.
    pub differs: Vec<String>,
}

/// What both ends of a pair must have alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Goal {
    pub(super) layout: Fingerprint,
    pub(super) transport: String,
}

impl Goal {
    /// In what a worker that would end on `other` differs.
    pub(super) fn difference(&self, other: &Self, role: Role) -> Option<String> {
        // A difference names the values of prefill first.
        let layouts = match role {
            Role::Prefill => other.layout.differences(&self.layout),
            Role::Decode | Role::Single => self.layout.differences(&other.layout),
        };
        let transport = (self.transport != other.transport)
            .then(|| format!("transport: `{}`, expected `{}`", other.transport, self.transport));
        match (transport, layouts) {
            (None, layouts) => layouts,
            (Some(transport), None) => Some(transport),
            (Some(transport), Some(layouts)) => Some(format!("{transport}; {layouts}")),
        }
    }
}

/// What a worker has of its group.
pub(crate) struct Book {
    pub(super) group: Arc<Group>,
    pub(super) worker: String,
    pub(super) role: Role,
    model: Arc<Model>,
    index_topk: Option<usize>,
    slots: Arc<Slots>,
    states: Mutex<HashMap<u64, Vec<ServedWith>>>,
    allow: Mutex<Option<Allow>>,
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book")
            .field("group", &self.group)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before the lock is released.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    pub(crate) fn new(
        group: Arc<Group>,
        worker: String,
        role: Role,
        (model, index_topk): (Arc<Model>, Option<usize>),
        slots: Arc<Slots>,
    ) -> Self {
        let (states, allow) = (Mutex::default(), Mutex::default());
        Self { group, worker, role, model, index_topk, slots, states, allow }
    }

    /// Asks `allow` before any swap that a peer asks for.
    pub(crate) fn ask_first(&self, allow: Allow) {
        *lock(&self.allow) = Some(allow);
    }

    /// Whether a peer's swap may begin; why not, otherwise.
    pub(super) fn allows(&self, swap: &PeerSwap<'_>) -> Result<(), String> {
        lock(&self.allow).as_ref().map_or(Ok(()), |allow| allow(swap))
    }

    /// What a worker that serves with this table must have alike with others.
    pub(super) fn goal(&self, table: &Snapshot) -> Goal {
        let layout = fingerprint::of_table(&self.model.config, self.index_topk, table);
        let name = |cell: &hotseam_slots::TransportCell| cell.put.generation.spec.name.clone();
        Goal { layout, transport: table.transport().map(name).unwrap_or_default() }
    }

    fn own(&self) -> Vec<ServedWith> {
        let of = |assignment: String| {
            let Goal { layout, transport } = self.goal(&*self.slots.snapshot(&assignment)?);
            Some(ServedWith { assignment, layout: layout.digest(), transport })
        };
        self.slots.names().into_iter().filter_map(of).collect()
    }

    /// Tells members what this worker serves with: one that has just come, or all.
    pub(super) fn tell_state(&self, only: Option<u64>) {
        let (own, here) = (self.own(), self.group.here());
        for (peer, _) in here.into_iter().filter(|(peer, _)| only.is_none_or(|only| only == *peer)) {
            self.group.send(peer, GroupMessage::State(own.clone()));
        }
    }

    /// Notes what a member serves with; in what it differs from this worker.
    pub(super) fn note_state(&self, peer: u64, state: Vec<ServedWith>) -> Vec<String> {
        let differs = differences(&self.own(), &state);
        lock(&self.states).insert(peer, state);
        differs
    }

    pub(super) fn forget_state(&self, peer: u64) {
        lock(&self.states).remove(&peer);
    }

    /// Name of a connected member.
    pub(super) fn name(&self, peer: u64) -> String {
        let here = self.group.here();
        here.into_iter()
            .find(|(known, _)| *known == peer)
            .map_or_else(|| "a worker".to_owned(), |(_, name)| name)
    }

    /// The group as people see it.
    pub(super) fn view(&self) -> GroupView {
        let (own, states) = (self.own(), lock(&self.states));
        let here = self.group.here().into_iter().map(|(peer, worker)| {
            let differs = states.get(&peer).map_or_else(Vec::new, |state| differences(&own, state));
            MemberView { worker, connected: true, differs }
        });
        let absent = self.group.absent().into_iter();
        let absent = absent.map(|worker| MemberView { worker, connected: false, differs: Vec::new() });
        GroupView { name: self.group.name().to_owned(), members: here.chain(absent).collect() }
    }
}

/// What two workers serve the same assignment with in different ways.
fn differences(own: &[ServedWith], other: &[ServedWith]) -> Vec<String> {
    let mut found = Vec::new();
    for here in own {
        let Some(there) = other.iter().find(|there| there.assignment == here.assignment) else { continue };
        let name = &here.assignment;
        if here.transport != there.transport {
            let theirs = shown(&there.transport, 80);
            found.push(format!("{name}: transport {} here, {theirs} there", here.transport));
        }
        if here.layout != there.layout {
            found.push(format!("{name}: layouts or variants that write KV"));
        }
    }
    found
}

/// What the swap thread has of its group.
#[derive(Debug)]
pub(crate) struct Mates {
    pub(crate) book: Arc<Book>,
    pub(crate) events: crossbeam_channel::Receiver<GroupEvent>,
}
