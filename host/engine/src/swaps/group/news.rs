//! What members of the group say, as the swap thread hears it: while it waits for swaps, and while one runs.

use super::node::Node;
use crate::swaps::run::Runner;
use crate::swaps::trial::Failure;
use hotseam_pd::{GroupEvent, GroupMessage, Order, shown};
use hotseam_slots::{MemberStep, SwapStage};

/// Workers behind another one that are told of, at most.
const MOST_BEHIND: usize = 64;

impl Runner {
    /// Hears what has come while a swap runs.
    pub(in crate::swaps) fn attend(&self) {
        let Some(mates) = &self.mates else { return };
        while let Ok(event) = mates.events.try_recv() {
            self.hear(event);
        }
    }

    /// Hears one event. A swap that a peer asks for begins only if none runs.
    pub(in crate::swaps) fn hear(&self, event: GroupEvent) {
        let Some(mates) = &self.mates else { return };
        let book = &mates.book;
        match event {
            GroupEvent::Joined { peer } => book.tell_state(Some(peer)),
            GroupEvent::Gone { peer } => {
                book.forget_state(peer);
                self.note(|node, group| node.gone(peer, group).into_iter().collect());
            }
            GroupEvent::Heard { peer, message } => self.heard(peer, message),
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
            GroupMessage::Prepare(prepare) => match self.with_node(|node| node.swap == prepare.swap) {
                Some(true) => self.say(peer, GroupMessage::Elsewhere { swap: prepare.swap }),
                Some(false) => self.refuse_busy(peer, prepare.swap),
                None if self.log.running().is_some() => self.refuse_busy(peer, prepare.swap),
                None => self.follow(peer, *prepare),
            },
            GroupMessage::Order { swap, order, code, message } => {
                let message = shown(&message, 600);
                let done = self.with_node(|node| {
                    (node.swap == swap).then(|| node.ask(peer, order, Failure { code, message }))
                });
                match done.flatten() {
                    Some(true) => self.say_done(peer, &swap, order),
                    Some(false) => {}
                    None => self.order_of_another(peer, swap, order),
                }
            }
            GroupMessage::Done { swap, order, members } => self.note(|node, _| {
                if node.swap != swap {
                    return Vec::new();
                }
                let behind = members.iter().take(MOST_BEHIND).map(|name| shown(name, 120));
                let who = node.done(peer, order, behind.collect());
                let Some(reached) = step(order) else { return Vec::new() };
                who.into_iter().map(|worker| SwapStage::Member { worker, reached, message: None }).collect()
            }),
            GroupMessage::Failed { swap, code, message } => self.note(|node, group| {
                let here = node.swap == swap;
                here.then(|| node.failed(peer, group, code, &message)).flatten().into_iter().collect()
            }),
            GroupMessage::Elsewhere { swap } => {
                self.with_node(|node| {
                    if node.swap == swap {
                        node.is_asked_elsewhere(peer);
                    }
                });
            }
            GroupMessage::Leave => {}
        }
    }

    /// Lets the node take something in, and tells what that says.
    fn note(&self, take: impl FnOnce(&mut Node, &str) -> Vec<SwapStage>) {
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
                self.take_back_kept(peer, &swap);
                self.say_done(peer, &swap, order);
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
