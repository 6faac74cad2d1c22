//! What a worker knows of a swap of its group: who asks it, whom it has asked, and how far those are.

use crate::swaps::trial::Failure;
use hotseam_pd::{Order, Prepare, shown};
use hotseam_slots::{MemberStep, SwapStage};

/// A worker that this one has asked.
#[derive(Debug)]
struct Below {
    peer: u64,
    worker: String,
    /// Workers that it has asked itself.
    behind: Vec<String>,
    /// The last step that it has done.
    done: Option<Order>,
    /// Whether it has failed or gone.
    lost: bool,
}

impl Below {
    fn new(peer: u64, worker: String) -> Self {
        Self { peer, worker, behind: Vec::new(), done: None, lost: false }
    }
}

/// One swap of the group, as one of its workers sees it.
#[derive(Debug)]
pub(crate) struct Node {
    /// What this worker was asked, and asks those below.
    prepare: Prepare,
    /// The worker that asks this one, while it is there.
    up: Option<u64>,
    /// Name of the worker that has asked this one.
    asked_by: Option<String>,
    leads: bool,
    /// Steps that were asked for and not answered.
    asked: Vec<(u64, Order)>,
    /// The last step that this worker and those below have done.
    done: Option<Order>,
    below: Vec<Below>,
    /// Names of those that take part and that others ask.
    beside: Vec<String>,
    /// Why all have to go back.
    trouble: Option<Failure>,
    /// Whether those above know of it.
    pub(super) trouble_is_known: bool,
}

impl Node {
    /// `up` asks this worker; without it this one leads. `below` are those that it asks.
    pub(super) fn new(prepare: Prepare, up: Option<(u64, String)>, below: Vec<(u64, String)>) -> Self {
        let (up, asked_by) = up.unzip();
        Self {
            prepare,
            leads: up.is_none(),
            up,
            asked_by,
            asked: up.map(|peer| (peer, Order::Prepare)).into_iter().collect(),
            done: None,
            below: below.into_iter().map(|(peer, worker)| Below::new(peer, worker)).collect(),
            beside: Vec::new(),
            trouble: None,
            trouble_is_known: false,
        }
    }

    /// Name of the swap.
    pub(super) fn swap(&self) -> &str {
        &self.prepare.swap
    }

    /// What those below are asked.
    pub(super) fn prepare(&self) -> Prepare {
        self.prepare.clone()
    }

    pub(super) fn leads(&self) -> bool {
        self.leads
    }

    pub(super) fn trouble(&self) -> Option<&Failure> {
        self.trouble.as_ref()
    }

    /// Notes why all have to go back; the first reason counts.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.trouble.get_or_insert(failure);
    }

    /// The connection of the worker above.
    pub(super) fn above(&self) -> Option<u64> {
        self.up
    }

    /// Connections of those below that are there.
    pub(super) fn below(&self) -> Vec<u64> {
        self.below.iter().filter(|below| !below.lost).map(|below| below.peer).collect()
    }

    /// A worker below is asked by another one already, which goes on asking: each is asked by one.
    pub(super) fn is_asked_elsewhere(&mut self, peer: u64) {
        let gone = self.below.extract_if(.., |below| below.peer == peer);
        let names: Vec<String> = gone.map(|below| below.worker).collect();
        names.into_iter().for_each(|worker| self.is_beside(worker));
    }

    /// A worker takes part that another one asks.
    pub(super) fn is_beside(&mut self, worker: String) {
        if !self.beside.contains(&worker) {
            self.beside.push(worker);
        }
    }

    /// A worker has come while the swap runs. True if it is to be asked too: it takes part if it has prepared before this worker
    /// says that it has, and otherwise all go back.
    pub(super) fn joined(&mut self, peer: u64, worker: String) -> bool {
        let known = self.up == Some(peer) || self.is_below(peer);
        let asked = !known && self.trouble.is_none() && self.done < Some(Order::Keep);
        if asked {
            self.below.push(Below::new(peer, worker));
        }
        asked
    }

    /// Whether this worker has asked that one.
    pub(super) fn is_below(&self, peer: u64) -> bool {
        self.below.iter().any(|below| below.peer == peer)
    }

    /// Names of the workers that this one has met in it: the one above, those below, and those that others ask.
    pub(super) fn took_part(&self) -> Vec<String> {
        let below = self.below.iter().map(|below| &below.worker);
        self.asked_by.iter().chain(below).chain(&self.beside).cloned().collect()
    }

    /// A step is asked for by `peer`: whether it has been done, so that it can be answered at once. `None` if it is not for that
    /// worker to ask.
    pub(super) fn ask(&mut self, peer: u64, order: Order, failure: Failure) -> Option<bool> {
        if self.up != Some(peer) {
            return None;
        }
        if order == Order::TakeBack {
            self.fail(failure);
            self.trouble_is_known = true;
        }
        let done = self.done.is_some_and(|done| done >= order);
        if !done && !self.asked.contains(&(peer, order)) {
            self.asked.push((peer, order));
        }
        Some(done)
    }

    /// Whether somebody waits for `order`.
    pub(super) fn is_asked(&self, order: Order) -> bool {
        self.asked.iter().any(|(_, asked)| *asked == order)
    }

    /// The next step that is asked for.
    pub(super) fn next(&self) -> Option<Order> {
        let open = |order: &Order| self.done.is_none_or(|done| *order > done);
        self.asked.iter().map(|(_, order)| *order).filter(open).min()
    }

    /// Whether nobody is above.
    pub(super) fn is_alone(&self) -> bool {
        self.up.is_none()
    }

    /// This worker and those below have done a step: who waits for that.
    pub(super) fn did(&mut self, order: Order) -> Vec<u64> {
        self.done = self.done.max(Some(order));
        let waiting = self.asked.extract_if(.., |(_, asked)| *asked == order);
        let waiting: Vec<u64> = waiting.map(|(peer, _)| peer).collect();
        match order {
            // Nobody asks for it.
            Order::Well => self.up.into_iter().collect(),
            _ => waiting,
        }
    }

    /// A worker below has done a step, and those `behind` it. Returns who all that is, when it is said for the first time.
    pub(super) fn done(&mut self, peer: u64, group: &str, order: Order, behind: Vec<String>) -> Vec<String> {
        let Some(below) = self.below.iter_mut().find(|below| below.peer == peer) else { return Vec::new() };
        if below.done >= Some(order) {
            return Vec::new();
        }
        let late = below.done.is_none() && self.done >= Some(Order::Prepare);
        below.done = Some(order);
        below.behind = behind;
        let who = std::iter::once(&below.worker).chain(&below.behind).cloned().collect();
        if late {
            let worker = &below.worker;
            let message = format!(
                "E-PLUG-405 worker {worker} of swap group `{group}` joined while the swap ran; ask again"
            );
            self.fail(Failure { code: 405, message });
        }
        who
    }

    /// Everyone below, and behind those.
    pub(super) fn everyone_below(&self) -> Vec<String> {
        self.below
            .iter()
            .flat_map(|below| std::iter::once(&below.worker).chain(&below.behind))
            .cloned()
            .collect()
    }

    /// A worker below has failed. Steps are not expected of it any more, except to go back.
    pub(super) fn failed(&mut self, peer: u64, group: &str, code: u16, message: &str) -> Option<SwapStage> {
        let below = self.below.iter_mut().find(|below| below.peer == peer)?;
        let (worker, message) = (below.worker.clone(), shown(message, 600));
        let text = format!("worker {worker} of swap group `{group}`: {message}");
        self.fail(Failure { code, message: text });
        Some(SwapStage::Member { worker, reached: MemberStep::Failed, message: Some(message) })
    }

    /// A connection has ended.
    pub(super) fn gone(&mut self, peer: u64, group: &str) -> Option<SwapStage> {
        self.asked.retain(|(asked, _)| *asked != peer);
        let over = self.done >= Some(Order::Keep);
        if self.up == Some(peer) {
            self.up = None;
            if !over {
                let message = format!(
                    "E-PLUG-405 the worker of swap group `{group}` that asked for the swap is gone before all had kept it"
                );
                self.fail(Failure { code: 405, message });
            }
            return None;
        }
        let below = self.below.iter_mut().find(|below| below.peer == peer)?;
        below.lost = true;
        let worker = below.worker.clone();
        if !over {
            let message = format!(
                "E-PLUG-405 worker {worker} of swap group `{group}` went away before all had kept the swap"
            );
            self.fail(Failure { code: 405, message });
        }
        Some(SwapStage::Member { worker, reached: MemberStep::Gone, message: None })
    }

    /// Whether everyone below that is there has done a step.
    pub(super) fn have_done(&self, order: Order) -> bool {
        self.below.iter().all(|below| below.lost || below.done >= Some(order))
    }

    /// Names of those below that have not done a step.
    pub(super) fn missing(&self, order: Order) -> String {
        let missing = self.below.iter().filter(|below| !below.lost && below.done < Some(order));
        missing.map(|below| below.worker.as_str()).collect::<Vec<_>>().join(", ")
    }
}
