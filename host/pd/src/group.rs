//! The swap group: workers at the other ends of control connections that swap together with this one.
//!
//! What they say to each other goes over the control connections, behind the reservations that were made before it. Who is not
//! of the group by its own configuration hears and says nothing of it.

use crate::Fingerprint;
use crate::message::WireError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Workers that are remembered as absent, at most.
const MOST_ABSENT: usize = 64;
/// What a member may have said that was not taken in yet, in messages of up to [`ONE`] bytes; longer ones count as several.
const MOST_PENDING: usize = 1024;
const ONE: usize = 4096;
/// What may wait to be written to a member.
pub(crate) const MOST_UNSAID: usize = 4096;

/// Steps of a swap of a group, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Get everything ready; nothing changes.
    Prepare,
    /// Keep no more prompts for workers that come later, and let those that are kept be fetched.
    HoldKept,
    /// Ask for no more KV, and let what was asked for arrive.
    HoldRooms,
    /// Put the new table into force.
    Commit,
    /// Take requests again, on the new table.
    Open,
    /// Said upwards: this worker's probation is over, and all is well.
    Well,
    /// Keep the new table.
    Keep,
    /// Put the old table back, or leave it.
    TakeBack,
    /// All are back: what was kept ready for others that were not may end.
    Close,
}

/// What a worker serves an assignment with, as far as both ends must have it alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedWith {
    /// The assignment.
    pub assignment: String,
    /// Digest of its fingerprint.
    pub layout: u64,
    /// Name of its transport.
    pub transport: String,
}

/// A swap that a worker is asked to take part in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepare {
    /// Name of the swap, the same at all members.
    pub swap: String,
    /// The assignment.
    pub assignment: String,
    /// The change of its rules, as JSON of whoever knows rules.
    pub change: String,
    /// How careful, as JSON.
    pub policy: String,
    /// Who asked for it first.
    pub who: String,
    /// What every member must have afterwards.
    pub layout: Fingerprint,
    /// The transport that every member must have afterwards.
    pub transport: String,
}

/// What members of a group say to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupMessage {
    /// What the worker serves with.
    State(Vec<ServedWith>),
    /// Asks to get a swap ready.
    Prepare(Box<Prepare>),
    /// Asks for a step of a swap.
    Order {
        /// The swap.
        swap: String,
        /// The step.
        order: Order,
        /// Why a swap is taken back: `E-PLUG` number, or 0.
        code: u16,
        /// Why a swap is taken back.
        message: String,
    },
    /// Says that a step is done.
    Done {
        /// The swap.
        swap: String,
        /// The step.
        order: Order,
        /// For whom: the worker itself and those that it has asked.
        members: Vec<String>,
    },
    /// Answers a [`Prepare`] of a swap that another worker has asked for already: that one goes on asking.
    Elsewhere {
        /// The swap.
        swap: String,
    },
    /// Says that a swap cannot go on.
    Failed {
        /// The swap.
        swap: String,
        /// `E-PLUG` number, or 0.
        code: u16,
        /// Why.
        message: String,
    },
    /// The worker ends as it was told to: nobody need wait for it.
    Leave,
}

/// What a swap thread hears.
#[derive(Debug)]
pub enum GroupEvent {
    /// A member is connected.
    Joined {
        /// Number of its connection.
        peer: u64,
    },
    /// A member has said something.
    Heard {
        /// Number of its connection.
        peer: u64,
        /// What.
        message: GroupMessage,
        /// Counts it as not taken in.
        pending: Pending,
    },
    /// A member's connection has ended.
    Gone {
        /// Number of the connection.
        peer: u64,
    },
}

/// A message that was not taken in yet, until this is dropped.
#[derive(Debug)]
pub struct Pending {
    all: Arc<AtomicUsize>,
    weight: usize,
}

impl Pending {
    /// Counts a message of a connection; `None` if too much is pending.
    fn of(all: &Arc<AtomicUsize>, message: &GroupMessage) -> Option<Self> {
        let bytes = serde_json::to_vec(message).ok()?.len();
        // From here on a drop takes it off again.
        let one = Self { all: Arc::clone(all), weight: bytes.div_ceil(ONE) };
        (all.fetch_add(one.weight, Ordering::AcqRel) + one.weight <= MOST_PENDING).then_some(one)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.all.fetch_sub(self.weight, Ordering::AcqRel);
    }
}

/// Text of another process as it may be shown to people: without control characters, of `most` characters at most.
pub fn shown(text: &str, most: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most).collect()
}

type Way = Box<dyn Fn(GroupMessage) -> bool + Send>;

struct Mate {
    worker: String,
    way: Way,
}

#[derive(Default)]
struct Inner {
    next: u64,
    here: BTreeMap<u64, Mate>,
    absent: BTreeSet<String>,
}

/// A worker's swap group.
pub struct Group {
    name: String,
    sink: Box<dyn Fn(GroupEvent) + Send + Sync>,
    inner: Mutex<Inner>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Group {
    /// The group of this name, of which `sink` hears.
    pub fn new(name: &str, sink: impl Fn(GroupEvent) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), sink: Box::new(sink), inner: Mutex::default() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before the lock is released.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Members that are connected: numbers of their connections, and names.
    pub fn here(&self) -> Vec<(u64, String)> {
        self.inner().here.iter().map(|(peer, mate)| (*peer, mate.worker.clone())).collect()
    }

    /// Members that were connected and did not say that they leave.
    pub fn absent(&self) -> Vec<String> {
        self.inner().absent.iter().cloned().collect()
    }

    /// Counts on absent members no more.
    pub fn forget_absent(&self) {
        self.inner().absent.clear();
    }

    /// Notes a member that is to be connected.
    pub(crate) fn expect(&self, worker: &str) {
        let mut inner = self.inner();
        if inner.here.values().all(|mate| mate.worker != worker) {
            inner.absent.insert(worker.to_owned());
        }
    }

    /// Says something to a member; false if it is not connected any more.
    pub fn send(&self, peer: u64, message: GroupMessage) -> bool {
        self.inner().here.get(&peer).is_some_and(|mate| (mate.way)(message))
    }

    /// A member is connected; `way` leads to it.
    pub(crate) fn join(
        self: &Arc<Self>,
        worker: String,
        way: impl Fn(GroupMessage) -> bool + Send + 'static,
    ) -> Membership {
        let peer = {
            let mut inner = self.inner();
            inner.next += 1;
            inner.absent.remove(&worker);
            let peer = inner.next;
            inner.here.insert(peer, Mate { worker, way: Box::new(way) });
            peer
        };
        (self.sink)(GroupEvent::Joined { peer });
        Membership { group: Arc::clone(self), peer, left: Arc::default(), pending: Arc::default() }
    }
}

/// A member while its connection lasts.
pub(crate) struct Membership {
    group: Arc<Group>,
    peer: u64,
    left: Arc<AtomicBool>,
    pending: Arc<AtomicUsize>,
}

impl Membership {
    /// Takes a message in, unless the member says more than is taken in: its connection must end then.
    pub(crate) fn heard(&self, message: GroupMessage) -> Result<(), WireError> {
        if message == GroupMessage::Leave {
            self.left.store(true, Ordering::Release);
            return Ok(());
        }
        let pending = Pending::of(&self.pending, &message).ok_or_else(|| {
            WireError::Malformed("it says more to its swap group than can be taken in".to_owned())
        })?;
        (self.group.sink)(GroupEvent::Heard { peer: self.peer, message, pending });
        Ok(())
    }

    /// Whether the worker has said that it leaves; outlives the membership.
    pub(crate) fn left(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.left)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        {
            let mut inner = self.group.inner();
            let mate = inner.here.remove(&self.peer);
            if let Some(Mate { worker, .. }) = mate
                && !self.left.load(Ordering::Acquire)
                && inner.here.values().all(|other| other.worker != worker)
                && inner.absent.len() < MOST_ABSENT
            {
                inner.absent.insert(worker);
            }
        }
        (self.group.sink)(GroupEvent::Gone { peer: self.peer });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_without_a_word_is_absent_until_it_is_back_or_forgotten() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let group = Group::new("pair", {
            let heard = Arc::clone(&heard);
            move |event| heard.lock().unwrap().push(format!("{event:?}"))
        });
        let first = group.join("a".into(), |_| true);
        let again = group.join("a".into(), |_| true);
        let other = group.join("b".into(), |_| false);
        assert_eq!(group.here().iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["a", "a", "b"]);
        assert!(group.send(1, GroupMessage::Leave) && !group.send(3, GroupMessage::Leave));
        drop(first);
        assert!(group.absent().is_empty(), "it has another connection");
        drop(again);
        assert_eq!(group.absent(), ["a"]);
        other.heard(GroupMessage::Leave).unwrap();
        assert!(other.left().load(Ordering::Acquire));
        drop(other);
        assert_eq!(group.absent(), ["a"], "the other has left");
        drop(group.join("a".into(), |_| true));
        group.expect("c");
        assert_eq!(group.absent(), ["a", "c"]);
        group.forget_absent();
        assert!(group.absent().is_empty() && group.here().is_empty());
        assert!(!group.send(1, GroupMessage::Leave));
        assert_eq!(heard.lock().unwrap().len(), 8);
    }

    #[test]
    fn who_says_too_much_is_heard_no_more_and_seen_to_go() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let group = Group::new("pair", {
            let heard = Arc::clone(&heard);
            move |event| heard.lock().unwrap().push(event)
        });
        let short = || GroupMessage::Elsewhere { swap: "a".into() };
        let long = |bytes: usize| GroupMessage::Elsewhere { swap: "a".repeat(bytes) };
        let (loud, calm) = (group.join("a".into(), |_| true), group.join("b".into(), |_| true));
        (0..MOST_PENDING)
            .for_each(|number| loud.heard(short()).unwrap_or_else(|error| panic!("{number}: {error}")));
        assert!(loud.heard(short()).is_err());
        calm.heard(short()).expect("each connection is counted by itself");
        // What is taken in makes room, and what was refused is not counted.
        heard.lock().unwrap().retain(|event| !matches!(event, GroupEvent::Heard { peer: 1, .. }));
        assert!(loud.heard(long(ONE * MOST_PENDING)).is_err());
        loud.heard(long(ONE * (MOST_PENDING - 2))).unwrap();
        loud.heard(short()).unwrap();
        assert!(loud.heard(long(2 * ONE)).is_err());
        drop(loud);
        assert!(matches!(heard.lock().unwrap().last(), Some(GroupEvent::Gone { peer: 1 })));
    }
}
