//! What members of the group say, as the swap thread hears it: while it waits for swaps, and while one runs.

use super::node::Node;
use crate::swaps::run::Runner;
use crate::swaps::trial::Failure;
use hotseam_pd::{GroupEvent, GroupMessage, Order, shown};
use hotseam_slots::{MemberStep, SwapStage};

/// Workers behind another one that are told of, at most.
const MOST_BEHIND: usize = 64;
/// Events that are heard at one look, at most: who says much must not keep a swap from going on.
const MOST_HEARD: usize = 1024;

impl Runner {
    /// Hears what has come while a swap runs.
    pub(in crate::swaps) fn attend(&self) {
        let Some(mates) = &self.mates else { return };
        mates.events.try_iter().take(MOST_HEARD).for_each(|event| self.hear(event));
    }

    /// Hears one event. A swap that a peer asks for begins only if none runs.
    pub(in crate::swaps) fn hear(&self, event: GroupEvent) {
        let Some(mates) = &self.mates else { return };
        let book = &mates.book;
        match event {
            GroupEvent::Joined { peer } => {
                book.tell_state(Some(peer));
                self.joined(peer);
            }
            GroupEvent::Gone { peer } => {
                book.forget_state(peer);
                self.note(|node, group| node.gone(peer, group).into_iter().collect());
            }
            GroupEvent::Heard { peer, message, pending } => {
                drop(pending);
                self.heard(peer, message);
            }
        }
    }

    /// A worker that comes while a swap of the group runs is asked too, so that nobody is left on the variants before.
    fn joined(&self, peer: u64) {
        let here = self.mates.as_ref().map(|mates| mates.book.group.here()).unwrap_or_default();
        let Some((_, worker)) = here.into_iter().find(|(known, _)| *known == peer) else { return };
        if self.with_node(|node| node.joined(peer, worker.clone())) == Some(true) {
            self.ask_one(peer, worker);
        }
    }

    fn heard(&self, peer: u64, message: GroupMessage) {
        let Some(mates) = &self.mates else { return };
        let book = &mates.book;
        match message {
            GroupMessage::State(state) => {
                let differs = book.note_state(peer, state);
                if !differs.is_empty() && self.log.running().is_none() {
                    let (worker, group) = (book.name(peer), book.group.name());
                    tracing::warn!(
                        worker,
                        group,
                        differs = differs.join("; "),
                        "a worker of the swap group serves otherwise than this one, so hand-offs between the two are \
                         refused; swap one of them to what the other has"
                    );
                }
            }
            GroupMessage::Prepare(prepare) => match self.with_node(|node| node.swap() == prepare.swap) {
                Some(true) => {
                    let worker = book.name(peer);
                    self.with_node(|node| node.is_beside(worker));
                    self.say(peer, GroupMessage::Elsewhere { swap: prepare.swap });
                }
                // The end of the swap has not reached that worker yet.
                None if self.has_kept_with(&prepare.swap, book.name(peer)) => {
                    self.say(peer, GroupMessage::Elsewhere { swap: prepare.swap });
                }
                Some(false) => self.refuse_busy(peer, prepare.swap),
                None if self.log.running().is_some() => self.refuse_busy(peer, prepare.swap),
                None => self.follow(peer, *prepare),
            },
            GroupMessage::Order { swap, order, code, message } => {
                let message = shown(&message, 600);
                self.ordered(peer, swap, order, Failure { code, message });
            }
            GroupMessage::Done { swap, order, members } => self.note(|node, group| {
                if node.swap() != swap {
                    return Vec::new();
                }
                let behind = members.iter().take(MOST_BEHIND).map(|name| shown(name, 120));
                let who = node.done(peer, group, order, behind.collect());
                let Some(reached) = step(order) else { return Vec::new() };
                who.into_iter().map(|worker| SwapStage::Member { worker, reached, message: None }).collect()
            }),
            GroupMessage::Failed { swap, code, message } => self.note(|node, group| {
                let here = node.swap() == swap;
                here.then(|| node.failed(peer, group, code, &message)).flatten().into_iter().collect()
            }),
            GroupMessage::Elsewhere { swap } => {
                self.with_node(|node| {
                    if node.swap() == swap {
                        node.is_asked_elsewhere(peer);
                    }
                });
            }
            GroupMessage::Leave => {}
        }
    }

    /// A worker asks for a step. Of the swap that runs only the worker above asks for steps: another one is told that this worker
    /// is not below it.
    fn ordered(&self, peer: u64, swap: String, order: Order, why: Failure) {
        let of_this = |node: &mut Node| (node.swap() == swap).then(|| node.is_below(peer));
        let Some(is_below) = self.with_node(of_this).flatten() else {
            return self.order_of_another(peer, swap, order);
        };
        if is_below && order == Order::TakeBack {
            // It had kept the swap, and that failed late.
            return self
                .note(|node, group| node.failed(peer, group, why.code, &why.message).into_iter().collect());
        }
        match self.with_node(|node| node.ask(peer, order, why)).flatten() {
            Some(true) => self.say_done(peer, &swap, order),
            Some(false) => {}
            None => self.say(peer, GroupMessage::Elsewhere { swap }),
        }
    }

    /// Lets the node take something in, and tells what that says.
    pub(super) fn note(&self, take: impl FnOnce(&mut Node, &str) -> Vec<SwapStage>) {
        let Some(mates) = &self.mates else { return };
        let stages = self.with_node(|node| take(node, mates.book.group.name())).unwrap_or_default();
        let Some(running) = self.log.running() else { return };
        stages.into_iter().for_each(|stage| self.tell(running.id, &running.assignment, stage));
    }

    pub(super) fn with_node<T>(&self, f: impl FnOnce(&mut Node) -> T) -> Option<T> {
        self.node.borrow_mut().as_mut().map(f)
    }

    fn refuse_busy(&self, peer: u64, swap: String) {
        let running = self.log.running().map_or(0, |record| record.id);
        let message = crate::SwapError::Busy { running }.to_string();
        self.say(peer, GroupMessage::Failed { swap, code: 401, message });
    }

    /// An order about a swap that does not run here.
    fn order_of_another(&self, peer: u64, swap: String, order: Order) {
        match order {
            Order::TakeBack => {
                if self.take_back_kept(peer, &swap) {
                    self.say_done(peer, &swap, order);
                }
            }
            Order::Close => {}
            _ => {
                let message = "E-PLUG-405 the swap is not known here any more".to_owned();
                self.say(peer, GroupMessage::Failed { swap, code: 405, message });
            }
        }
    }

    pub(super) fn say(&self, peer: u64, message: GroupMessage) {
        if let Some(mates) = &self.mates {
            // Of a worker that is gone an event tells.
            mates.book.group.send(peer, message);
        }
    }

    fn say_done(&self, peer: u64, swap: &str, order: Order) {
        self.say(peer, GroupMessage::Done { swap: swap.to_owned(), order, members: Vec::new() });
    }
}

/// How far a member is that has done an order; `None` where that is nothing to tell.
fn step(order: Order) -> Option<MemberStep> {
    match order {
        Order::Prepare => Some(MemberStep::Prepared),
        Order::HoldRooms => Some(MemberStep::Quiet),
        Order::Commit => Some(MemberStep::Committed),
        Order::Well => Some(MemberStep::Well),
        Order::Keep => Some(MemberStep::Kept),
        Order::TakeBack => Some(MemberStep::Back),
        Order::HoldKept | Order::Open | Order::Close => None,
    }
}
