//! How a worker waits for the others of a swap, and what it says to them.

use super::drive::{PATIENCE, no_code};
use super::node::Node;
use crate::swaps::run::Runner;
use crate::swaps::trial::Failure;
use hotseam_pd::{GroupMessage, Order};
use hotseam_slots::SwapPolicy;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Runner {
    /// The next step that is asked of a worker that follows.
    pub(super) fn next_order(&self, policy: &SwapPolicy) -> Result<Order, Failure> {
        let limit = Duration::from_millis(policy.prepare_ms.saturating_add(policy.drain_ms)) + 2 * PATIENCE;
        let start = Instant::now();
        loop {
            self.check()?;
            if let Some(order) = self.with_node(|node| node.next()).flatten() {
                return Ok(order);
            }
            if start.elapsed() > limit {
                let message =
                    "E-PLUG-405 the worker that asked for the swap did not go on with it".to_owned();
                return Err(Failure { code: 405, message });
            }
            self.pause();
        }
    }

    /// Why this worker has to stop what it does.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.stopping() {
            let worker = self.mates.as_ref().map_or("", |mates| mates.book.worker.as_str());
            return Err(no_code(format!("worker {worker} is being shut down; the old variants stay")));
        }
        match self.called_off() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Why the swap of the group that runs cannot go on; `None` if it can, or none runs.
    pub(in crate::swaps) fn called_off(&self) -> Option<Failure> {
        self.with_node(|node| node.trouble().cloned()).flatten()
    }

    /// Waits until everyone below has done a step.
    pub(super) fn wait(&self, order: Order, limit: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            self.attend();
            self.check()?;
            if self.with_node(|node| node.have_done(order)).unwrap_or(true) {
                return Ok(());
            }
            if start.elapsed() > limit {
                let missing = self.with_node(|node| node.missing(order)).unwrap_or_default();
                let message = format!(
                    "E-PLUG-405 no answer within {} s from {missing}. Look at its log; the old variants stay.",
                    limit.as_secs()
                );
                return Err(Failure { code: 405, message });
            }
            self.pause();
        }
    }

    pub(super) fn wait_at_most(&self, limit: Duration, enough: impl Fn(&Node) -> bool) {
        let start = Instant::now();
        while start.elapsed() < limit && !self.with_node(|node| enough(node)).unwrap_or(true) {
            self.pause();
        }
    }

    /// Says to those who wait for it that this worker and those below have done a step.
    pub(super) fn answer(&self, order: Order) {
        self.did(order).into_iter().for_each(|(peer, done)| self.say(peer, done));
    }

    /// This worker and those below have done a step: what is to be said to those who wait for that.
    pub(super) fn did(&self, order: Order) -> Vec<(u64, GroupMessage)> {
        let done = self.with_node(|node| {
            let (swap, members) = (node.swap().to_owned(), node.everyone_below());
            let done = |_| GroupMessage::Done { swap: swap.clone(), order, members: members.clone() };
            node.did(order).into_iter().map(|peer| (peer, done(peer))).collect()
        });
        done.unwrap_or_default()
    }

    pub(super) fn order_below(&self, order: Order, why: Option<&Failure>) {
        let below = self.with_node(|node| (node.swap().to_owned(), node.below()));
        let Some((swap, below)) = below else { return };
        let Failure { code, message } = why.cloned().unwrap_or_else(|| no_code(String::new()));
        for peer in below {
            let (swap, message) = (swap.clone(), message.clone());
            self.say(peer, GroupMessage::Order { swap, order, code, message });
        }
    }

    /// Waits until the engine has ended the turn that ran and heard what had come by then; false if it did not in time.
    pub(super) fn let_turns_pass(&self) -> bool {
        let turn = || self.published.turn.load(Ordering::Acquire);
        let (begun, start) = (turn(), Instant::now());
        while turn() < begun + 2 && start.elapsed() < PATIENCE && self.published.is_running() {
            self.wake();
            self.pause();
        }
        turn() >= begun + 2 || !self.published.is_running()
    }
}
