//! What a worker does of a swap of its group: the one that was asked leads, the others follow.

use super::node::Node;
use super::{Book, Goal, PeerSwap};
use crate::Role;
use crate::swaps::prepare::Refusal;
use crate::swaps::run::{Early, Runner};
use crate::swaps::trial::{Failure, Stage, Trial};
use hotseam_pd::{GroupMessage, Order, Prepare, shown};
use hotseam_slots::{
    Change, KvPolicy, MemberStep, Probation, Rule, Seam, SwapPlan, SwapPolicy, SwapRequest, SwapStage,
    VariantSpec,
};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the others may take for a step that is theirs to do at once.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// Longest that a swap of the group may let its workers wait for any one thing.
const MOST_MS: u64 = 10 * 60_000;

/// While a swap of the group waits, requests wait with it: that must have an end on every worker, and the same one.
fn limits(policy: &mut SwapPolicy) -> [&mut u64; 5] {
    let Probation { ms, idle_ms, .. } = &mut policy.probation;
    [&mut policy.drain_ms, &mut policy.prepare_ms, &mut policy.shadow_ms, ms, idle_ms]
}

/// A swap on this worker.
struct Part<'a> {
    id: u64,
    request: &'a SwapRequest,
    /// `None` where this worker is already so.
    plan: Option<SwapPlan>,
    trial: Option<Arc<Trial>>,
    committed: bool,
}

pub(super) fn no_code(message: String) -> Failure {
    Failure { code: 0, message }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code.unwrap_or(0), message: refusal.message }
    }
}

impl Runner {
    /// What the whole group has to end on if this plan is to be committed; `None` if the plan is this worker's own affair.
    pub(in crate::swaps) fn goal(&self, plan: &SwapPlan) -> Option<Goal> {
        let book = &self.mates.as_ref()?.book;
        let (from, to) = (book.goal(plan.from()), book.goal(plan.to()));
        (from != to).then_some(to)
    }

    /// Leads a swap of the group.
    pub(in crate::swaps) fn lead(&self, id: u64, request: &SwapRequest, plan: SwapPlan, goal: Goal) {
        let Some(mates) = &self.mates else { return };
        let book = &mates.book;
        let below = match self.members(book, request) {
            Ok(below) => below,
            Err(Refusal { code, message }) => {
                return self.tell(id, &request.assignment, SwapStage::Refused { code, message });
            }
        };
        let swap = format!("{} {}-{id}-{}", book.worker, std::process::id(), crate::swaps::log::now_ms());
        let asked = serde_json::to_string(&request.change).and_then(|change| {
            let (assignment, who) = (request.assignment.clone(), request.who.clone());
            let policy = serde_json::to_string(&request.policy)?;
            let Goal { layout, transport } = goal;
            Ok(Prepare { swap, assignment, change, policy, who, layout, transport })
        });
        let asked = match asked {
            Ok(asked) => asked,
            Err(error) => {
                let message = error.to_string();
                return self.tell(id, &request.assignment, SwapStage::Refused { code: None, message });
            }
        };
        *self.node.borrow_mut() = Some(Node::new(asked, None, below));
        self.ask_all();
        let mut part = Part { id, request, plan: Some(plan), trial: None, committed: false };
        let ready = self.get_ready(&mut part);
        self.run_part(part, ready);
    }

    /// Those whom a swap that begins here has to ask.
    fn members(&self, book: &Book, request: &SwapRequest) -> Result<Vec<(u64, String)>, Refusal> {
        let group = book.group.name();
        let refuse = |message: String| Err(Refusal { code: Some(405), message });
        if let Change::Replace(_) = request.change {
            return refuse(format!(
                "E-PLUG-405 this changes what all workers of swap group `{group}` must have alike, in a list of all rules, \
                 which is this worker's own. Change it with `hotseam swap SELECTOR VARIANT`, and the files of all workers."
            ));
        }
        let mut policy = request.policy;
        if limits(&mut policy).into_iter().any(|limit| *limit > MOST_MS) {
            return refuse(format!(
                "E-PLUG-405 this changes what all workers of swap group `{group}` must have alike, and none of its times may be \
                 longer than {} s. Give shorter ones.",
                MOST_MS / 1000
            ));
        }
        if request.policy.without_absent {
            book.group.forget_absent();
        }
        let (here, absent) = (book.group.here(), book.group.absent());
        if !absent.is_empty() {
            return refuse(format!(
                "E-PLUG-405 not connected of swap group `{group}`: {}. Nothing was changed. Start it, or leave it out with \
                 --without-absent; it then has to be swapped by itself.",
                absent.join(", ")
            ));
        }
        if here.is_empty() && !request.policy.without_absent {
            return refuse(format!(
                "E-PLUG-405 no worker of swap group `{group}` is connected yet. Nothing was changed. Send a request through \
                 the pair, name the prefill workers in disaggregation.prefill_workers of decode workers, or swap this worker \
                 alone with --without-absent."
            ));
        }
        Ok(here)
    }

    /// Asks those below to prepare.
    fn ask_all(&self) {
        for peer in self.with_node(|node| node.below()).unwrap_or_default() {
            let worker = self.mates.as_ref().map_or_else(String::new, |mates| mates.book.name(peer));
            self.ask_one(peer, worker);
        }
    }

    /// Asks a worker to prepare the swap that runs.
    pub(super) fn ask_one(&self, peer: u64, worker: String) {
        let Some(prepare) = self.with_node(|node| node.prepare()) else { return };
        let stage = SwapStage::Member { worker, reached: MemberStep::Asked, message: None };
        self.note(|_, _| vec![stage]);
        self.say(peer, GroupMessage::Prepare(Box::new(prepare)));
    }

    /// Takes part in a swap that `peer` asks for.
    pub(super) fn follow(&self, peer: u64, asked: Prepare) {
        let Some(mates) = &self.mates else { return };
        let (book, swap) = (&mates.book, asked.swap.clone());
        let refuse = |code: u16, message: String| {
            self.say(peer, GroupMessage::Failed { swap: swap.clone(), code, message });
        };
        let parsed = (
            serde_json::from_str::<Change>(&asked.change),
            serde_json::from_str::<SwapPolicy>(&asked.policy),
        );
        let (Ok(change), Ok(mut policy)) = parsed else {
            return refuse(
                405,
                "E-PLUG-405 the change makes no sense here; give both workers the same build".to_owned(),
            );
        };
        // Whoever leads has refused longer ones.
        limits(&mut policy).into_iter().for_each(|limit| *limit = (*limit).min(MOST_MS));
        if let Some(message) = self.own_affair(&change) {
            return refuse(405, format!("E-PLUG-405 {message}"));
        }
        let (worker, group) = (book.name(peer), book.group.name());
        if self.slots.snapshot(&asked.assignment).is_none() {
            let message = format!("there is no assignment `{}` here", shown(&asked.assignment, 64));
            return refuse(0, message);
        }
        let who = shown(&format!("swap group `{group}`, worker {worker}, for {}", asked.who), 300);
        let peers = PeerSwap { who: &who, assignment: &asked.assignment, change: &change, policy: &policy };
        if let Err(message) = book.allows(&peers) {
            return refuse(405, message);
        }
        let id = match self.log.begin(&asked.assignment, &who, change.to_string()) {
            Ok(id) => id,
            Err(error) => return refuse(error.code().unwrap_or(0), error.to_string()),
        };
        let request = SwapRequest { assignment: asked.assignment.clone(), change, policy, who };
        if request.policy.without_absent {
            book.group.forget_absent();
        }
        let absent = book.group.absent();
        let below = book.group.here().into_iter().filter(|(other, _)| *other != peer).collect();
        *self.node.borrow_mut() = Some(Node::new(asked.clone(), Some((peer, worker)), below));
        let mut part = Part { id, request: &request, plan: None, trial: None, committed: false };
        let ready = match absent.is_empty() {
            true => {
                self.ask_all();
                let goal = Goal { layout: asked.layout, transport: asked.transport };
                self.plan_part(&mut part, &goal).and_then(|()| self.get_ready(&mut part))
            }
            false => {
                let absent = absent.join(", ");
                let message = format!("E-PLUG-405 not connected of swap group `{group}`: {absent}");
                Err(Failure { code: 405, message })
            }
        };
        self.run_part(part, ready);
    }

    /// Why a peer's change is this worker's own affair, looked at before any code of it is loaded.
    fn own_affair(&self, change: &Change) -> Option<String> {
        let rules = match change {
            Change::Add(rules) => rules,
            Change::Back => return None,
            Change::Replace(_) => return Some("a list of all rules is a worker's own affair".to_owned()),
        };
        let apart =
            |rule: &&Rule| !matches!(rule.select().seam, Seam::KvTransport | Seam::Attention | Seam::Indexer);
        if let Some(rule) = rules.iter().find(apart) {
            return Some(format!(
                "cells of {} need not be alike; swap them on each worker",
                rule.select().seam
            ));
        }
        // Paths and addresses reach beyond the process: only this worker's own file may name them.
        let is_word = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        let reaches = |value: &Value| match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
            Value::String(text) => !is_word(text),
            Value::Array(_) | Value::Object(_) => true,
        };
        let named_here = |variant: &VariantSpec| {
            let own = self.slots.names().into_iter().filter_map(|name| self.slots.rules(&name)).flatten();
            own.into_iter().any(|rule| rule.variant() == Some(variant))
        };
        rules.iter().filter_map(Rule::variant).find_map(|variant| {
            let (option, _) = variant.options().iter().find(|(_, value)| reaches(value))?;
            (!named_here(variant)).then(|| {
                format!(
                    "option `{}` of {} is no plain word, and no assignment of this worker names this variant; name it in an \
                     assignment of its file first",
                    shown(option, 64),
                    shown(&variant.name, 64)
                )
            })
        })
    }

    /// Plans a peer's swap, and holds what this worker would end on against what the group is to.
    fn plan_part(&self, part: &mut Part<'_>, goal: &Goal) -> Result<(), Failure> {
        let Some(mates) = &self.mates else { return Ok(()) };
        let book = &mates.book;
        let plan = match self.ready(part.id, part.request) {
            Ok(plan) => Some(plan),
            Err(Early::AlreadyActive) => None,
            Err(Early::Refused(refusal)) => return Err(refusal.into()),
        };
        let assignment = &part.request.assignment;
        let end = plan.as_ref().map(|plan| Arc::clone(plan.to())).or_else(|| self.slots.snapshot(assignment));
        let Some(end) = end else {
            return Err(no_code(format!("assignment `{assignment}` was removed meanwhile")));
        };
        if let Some(difference) = goal.difference(&book.goal(&end), book.role) {
            let message = format!(
                "E-PLUG-405 this worker would not end on the same: {difference}. Give both the same rules and plugin files."
            );
            return Err(Failure { code: 405, message });
        }
        if plan.as_ref().is_some_and(|plan| self.goal(plan).is_none()) {
            let message =
                "E-PLUG-405 the change is of cells that need not be alike; swap them on each worker";
            return Err(Failure { code: 405, message: message.to_owned() });
        }
        part.plan = plan;
        Ok(())
    }

    /// Shows the engine what may come, and waits until everyone below has done the same.
    fn get_ready(&self, part: &mut Part<'_>) -> Result<(), Failure> {
        let (policy, tell) =
            (part.request.policy, |stage| self.tell(part.id, &part.request.assignment, stage));
        if let Some(plan) = &part.plan {
            let trial = Arc::new(Trial::of_group(part.id, plan, policy));
            part.trial = Some(Arc::clone(&trial));
            self.shadow(&trial, &tell)?;
            self.put_up(&trial, Stage::Open);
        }
        let limit =
            policy.prepare_ms.saturating_add(if policy.shadow_steps > 0 { policy.shadow_ms } else { 0 });
        self.wait(Order::Prepare, Duration::from_millis(limit) + PATIENCE)?;
        self.answer(Order::Prepare);
        Ok(())
    }

    /// Goes through the steps from the commit on, or back.
    fn run_part(&self, mut part: Part<'_>, ready: Result<(), Failure>) {
        let begun = ready.and_then(|()| self.steps(&mut part));
        let kept = begun.and_then(|()| self.keep(&mut part));
        let tell = |stage| self.tell(part.id, &part.request.assignment, stage);
        match kept {
            Ok(kept) => {
                let count = |trial: &Arc<Trial>| {
                    let recomputed = trial.recomputed.load(Ordering::Relaxed);
                    let steps = trial.steps.load(Ordering::Relaxed);
                    SwapStage::Kept { steps, recomputed, latency: trial.latency() }
                };
                let already = SwapStage::AlreadyActive;
                let end = part.trial.as_ref().map_or(already, count);
                // Whoever hears that all keep it may ask any of them for the next swap.
                self.end_part(part, end);
                kept.into_iter().for_each(|(peer, kept)| self.say(peer, kept));
            }
            Err(failure) => {
                if part.committed
                    && failure.code != 0
                    && part.trial.as_ref().is_some_and(|t| t.failure().is_some())
                {
                    tell(SwapStage::Retried { code: failure.code, message: failure.message.clone() });
                }
                self.undo(&part, &failure);
                let Failure { code, message } = failure;
                let end = match part.committed {
                    true => SwapStage::RolledBack { code, message },
                    false => SwapStage::Refused { code: (code != 0).then_some(code), message },
                };
                self.end_part(part, end);
            }
        }
    }

    /// Takes the trial down, and says how the swap has ended.
    fn end_part(&self, part: Part<'_>, end: SwapStage) {
        self.link.set(None);
        self.wake();
        *self.node.borrow_mut() = None;
        self.tell(part.id, &part.request.assignment, end);
        if let Some(mates) = &self.mates {
            mates.book.tell_state(None);
        }
        self.leave(part.id, &part.request.assignment, part.trial, part.plan.map(Box::new));
    }

    /// The steps up to where all have committed.
    fn steps(&self, part: &mut Part<'_>) -> Result<(), Failure> {
        let leads = self.with_node(|node| node.leads()).unwrap_or(true);
        let moves = part.plan.as_ref().is_some_and(|plan| !plan.layouts.is_empty());
        let script: &[Order] = match moves {
            true => &[Order::HoldKept, Order::HoldRooms, Order::Commit, Order::Open],
            false => &[Order::Commit, Order::Open],
        };
        let mut script = script.iter().copied();
        let mut micros = 0;
        loop {
            let order = match leads {
                true => script.next().unwrap_or(Order::Open),
                false => self.next_order(&part.request.policy)?,
            };
            match order {
                Order::HoldKept | Order::HoldRooms => {
                    self.order_below(order, None);
                    self.hold(part, order)?;
                }
                Order::Commit => {
                    if let (Some(plan), Some(trial)) = (&part.plan, &part.trial) {
                        micros = self.commit(part.id, plan, trial, part.request)?;
                        part.committed = true;
                        // What was asked for on the old table has been said by then.
                        if !self.let_turns_pass() {
                            let message =
                                "E-PLUG-405 a step on the old variants did not end in time".to_owned();
                            return Err(Failure { code: 405, message });
                        }
                    }
                    self.order_below(order, None);
                }
                Order::Open => {
                    if let Some(trial) = &part.trial {
                        trial.set_stage(Stage::Open);
                        self.wake();
                    }
                    self.order_below(order, None);
                }
                other => return Err(no_code(format!("the group asks for {other:?} before the commit"))),
            }
            let slow = Duration::from_millis(part.request.policy.drain_ms);
            let holds = matches!(order, Order::HoldKept | Order::HoldRooms);
            self.wait(order, PATIENCE + if holds { slow } else { Duration::ZERO })?;
            self.answer(order);
            if order == Order::Open {
                let cells = part.plan.as_ref().map_or(0, |plan| plan.changes.len());
                self.tell(part.id, &part.request.assignment, SwapStage::Committed { cells, micros });
                return Ok(());
            }
        }
    }

    /// Lets what is on the way between workers arrive, as far as this one has a part in it.
    fn hold(&self, part: &Part<'_>, order: Order) -> Result<(), Failure> {
        let Some(mates) = &self.mates else { return Ok(()) };
        let mine = match mates.book.role {
            Role::Prefill => order == Order::HoldKept,
            Role::Decode => order == Order::HoldRooms,
            Role::Single => false,
        };
        match (&part.plan, &part.trial) {
            (Some(plan), Some(trial)) if mine && trial.policy.kv != KvPolicy::Refuse => {
                let tell = |stage| self.tell(part.id, &part.request.assignment, stage);
                Ok(self.drained(plan, trial, &tell)?)
            }
            _ => Ok(()),
        }
    }

    /// Probation of all workers, and what the leading one decides after it. Returns what is to be said to those who wait for that.
    fn keep(&self, part: &mut Part<'_>) -> Result<Vec<(u64, GroupMessage)>, Failure> {
        let tell = |stage| self.tell(part.id, &part.request.assignment, stage);
        let leads = self.with_node(|node| node.leads()).unwrap_or(true);
        let (mut vigil, mut over, mut told) = (self.vigil(), part.trial.is_none(), false);
        let start = Instant::now();
        let policy = part.request.policy.probation;
        // Others may begin theirs later by as much as a commit may take.
        let limit = Duration::from_millis(policy.ms) + 4 * PATIENCE;
        loop {
            if let Some(trial) = &part.trial {
                over = over || self.is_over(trial, &mut vigil, &tell);
                if let Some(failure) = trial.failure() {
                    return Err(failure.clone());
                }
            }
            self.check()?;
            if over && self.with_node(|node| node.have_done(Order::Well)).unwrap_or(true) {
                if leads {
                    break;
                }
                if !told {
                    told = true;
                    self.answer(Order::Well);
                }
                if self.with_node(|node| node.is_asked(Order::Keep)).unwrap_or(false) {
                    break;
                }
            }
            if start.elapsed() > limit {
                let missing = self.with_node(|node| node.missing(Order::Well)).unwrap_or_default();
                let message =
                    format!("E-PLUG-405 the group did not come to the end of its probation: {missing}");
                return Err(Failure { code: 405, message });
            }
            self.pause();
        }
        // From here on a fault takes back what is kept, and so tells the others.
        self.note_kept(part.plan.as_ref().map(SwapPlan::to));
        if let Some(failure) = part.trial.as_ref().and_then(|trial| trial.close()) {
            return Err(failure);
        }
        self.order_below(Order::Keep, None);
        self.wait(Order::Keep, PATIENCE)?;
        // Who goes away from here on takes nothing back; who has kept it and fails late still does.
        let kept = self.did(Order::Keep);
        // What was reserved on the old table has been heard by then.
        self.let_turns_pass();
        if let Some(failure) = self.called_off() {
            return Err(failure);
        }
        let there = self.slots.snapshot(&part.request.assignment);
        let taken_back = |plan: &SwapPlan| there.is_none_or(|table| !Arc::ptr_eq(&table, plan.to()));
        if part.plan.as_ref().is_some_and(taken_back) {
            let message = "it was taken back as it was to be kept".to_owned();
            return Err(Failure { code: 405, message });
        }
        self.clear_marker();
        Ok(kept)
    }

    /// Everyone goes back: this worker at once, then those below; and all keep what the others may still ask for until all are.
    fn undo(&self, part: &Part<'_>, failure: &Failure) {
        // Who comes from here on is not asked any more.
        self.with_node(|node| node.fail(failure.clone()));
        self.forget_kept();
        if let Some(trial) = &part.trial {
            // After its probation it was kept; going back is all the same.
            trial.fail(failure.clone());
        }
        if let (true, Some(plan)) = (part.committed, &part.plan) {
            self.slots.revert(plan);
            self.wake();
            self.clear_marker();
            self.let_turns_pass();
        }
        let above = self.with_node(|node| (node.above(), node.swap().to_owned(), node.trouble_is_known));
        let Some((above, swap, known)) = above else { return };
        if let Some(peer) = above.filter(|_| !known) {
            let Failure { code, message } = failure.clone();
            self.say(peer, GroupMessage::Failed { swap, code, message });
        }
        let asked = |order| move |node: &Node| node.leads() || node.is_alone() || node.is_asked(order);
        self.wait_at_most(PATIENCE, asked(Order::TakeBack));
        self.order_below(Order::TakeBack, Some(failure));
        self.wait_at_most(PATIENCE, |node| node.have_done(Order::TakeBack));
        self.answer(Order::TakeBack);
        self.wait_at_most(PATIENCE, asked(Order::Close));
        self.order_below(Order::Close, None);
        if let Some(trial) = &part.trial {
            // What was reserved under either table has been heard by then.
            self.let_turns_pass();
            trial.set_stage(Stage::Open);
        }
    }
}
