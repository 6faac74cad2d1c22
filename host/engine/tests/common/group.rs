//! Workers of a swap group, and members whose behaviour a test decides.
#![allow(dead_code, reason = "no test uses all of it")]

use crate::common::{ask, end, unchecked};
use crate::pair::{Api, Heard, PairOf, hear};
use crossbeam_channel::{Receiver, unbounded};
use hotseam_engine::{Engine, Request};
use hotseam_pd::{DecodeSide, Group, GroupEvent, GroupMessage, Order, Patience, Prepare};
use hotseam_slots::{Probation, SwapPolicy, SwapRecord, SwapRequest, SwapStage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const TCP: &str = "kv_transport/tcp";
pub(crate) const SHM: &str = "kv_transport/shm";
pub(crate) const CELL: &str = "kv_transport";
pub(crate) const GROUP: &str = "pair";

pub(crate) fn grouped(config: &mut hotseam_engine::EngineConfig) {
    config.pd.swap_group = Some(GROUP.to_owned());
}

/// A pair in a swap group whose workers know each other.
pub(crate) fn pair() -> PairOf {
    let pair = PairOf::new(TCP, grouped);
    meet(&pair);
    pair
}

pub(crate) fn meet(pair: &PairOf) {
    let (_prefill, decode) = pair.submit(&ask(9, 10, 1));
    hear(&decode).unwrap();
    wait_for("the workers know each other", || connected(&pair.prefill) == 1 && connected(&pair.decode) == 1);
}

pub(crate) fn connected(engine: &Engine) -> usize {
    engine.swaps().group().expect("in a group").members.iter().filter(|member| member.connected).count()
}

pub(crate) fn wait_for(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A probation of some hand-offs.
pub(crate) fn quick() -> SwapPolicy {
    let probation = Probation { steps: 4, ms: 20_000, idle_ms: 400, ..Probation::default() };
    SwapPolicy { probation, ..unchecked() }
}

/// The last swap of an engine, once it has ended.
pub(crate) fn last(engine: &Engine) -> SwapRecord {
    let record = engine.swaps().records().pop().expect("a swap");
    engine.swaps().wait(record.id).expect("a record")
}

pub(crate) fn refusal(record: &SwapRecord) -> String {
    match end(record) {
        SwapStage::Refused { message, .. } => message.clone(),
        other => panic!("{other:?}"),
    }
}

/// Asks the pair for the same answers again and again while `f` runs; none may fail or be another one.
pub(crate) fn under_load<R>(pair: &PairOf, requests: &[Request], f: impl FnOnce() -> R) -> (R, usize) {
    let want: Vec<Heard> =
        requests.iter().map(|request| hear(&pair.submit(request).1).expect("an answer")).collect();
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let result = std::thread::scope(|scope| {
        for (request, want) in requests.iter().zip(&want) {
            let (stop, count) = (&stop, &count);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let (prefill, decode) = pair.submit(request);
                    let heard = hear(&decode).unwrap_or_else(|(code, text)| panic!("decode: {code} {text}"));
                    hear(&prefill).unwrap_or_else(|(code, text)| panic!("prefill: {code} {text}"));
                    assert_eq!(&heard, want, "of {} tokens", request.prompt.len());
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let _stop = Stop(&stop);
        f()
    });
    pair.assert_quiet();
    (result, count.load(Ordering::SeqCst))
}

pub(crate) fn requests() -> Vec<Request> {
    (0..6).map(|number| ask(number, 20 + 90 * number, 6 + number)).collect()
}

/// A member whose behaviour a test decides.
pub(crate) struct Fake {
    /// Its connections, if it is a decode worker.
    pub(crate) side: Option<DecodeSide>,
    pub(crate) group: Arc<Group>,
    events: Receiver<GroupEvent>,
}

impl Fake {
    /// A member to which connections are still to be made.
    pub(crate) fn unconnected() -> Self {
        let (send, events) = unbounded();
        Self { side: None, group: Group::new(GROUP, move |event| drop(send.send(event))), events }
    }

    /// A member of this name that is connected to the prefill worker.
    pub(crate) fn decode(name: &str, api: &Api, prefill: &Engine) -> Self {
        let before = connected(prefill);
        let Self { group, events, .. } = Self::unconnected();
        let patience = Patience { bootstrap: Duration::from_secs(5) };
        let place = [(api.address.ip().to_string(), api.address.port())];
        let mut side = DecodeSide::new(name, patience, |_| true).in_group(Arc::clone(&group), &place);
        side.look_for_members();
        wait_for("the fake is connected", || !group.here().is_empty() && connected(prefill) == before + 1);
        Self { side: Some(side), group, events }
    }

    /// The next message about a swap.
    pub(crate) fn next(&self) -> (u64, GroupMessage) {
        loop {
            match self.events.recv_timeout(Duration::from_secs(20)).expect("a message") {
                GroupEvent::Heard { message: GroupMessage::State(_), .. } => {}
                GroupEvent::Heard { peer, message, .. } => return (peer, message),
                GroupEvent::Joined { .. } | GroupEvent::Gone { .. } => {}
            }
        }
    }

    /// Expects an order and says that it is done.
    pub(crate) fn obey(&self, expected: Order) -> (u64, String) {
        let (peer, message) = self.next();
        let (swap, order) = match message {
            GroupMessage::Prepare(prepare) => (prepare.swap, Order::Prepare),
            GroupMessage::Order { swap, order, .. } => (swap, order),
            other => panic!("{other:?}"),
        };
        assert_eq!(order, expected);
        self.group.send(peer, GroupMessage::Done { swap: swap.clone(), order, members: Vec::new() });
        (peer, swap)
    }

    /// The connection to the worker that is tested.
    pub(crate) fn peer(&self) -> u64 {
        self.group.here().last().expect("connected").0
    }

    /// Says something to that worker.
    pub(crate) fn say(&self, message: GroupMessage) {
        assert!(self.group.send(self.peer(), message), "not connected");
    }

    /// Gives an order of a swap.
    pub(crate) fn order(&self, swap: &str, order: Order) {
        let (swap, message) = (swap.to_owned(), String::new());
        self.say(GroupMessage::Order { swap, order, code: 0, message });
    }

    /// Says that a step is done.
    pub(crate) fn did(&self, swap: &str, order: Order) {
        self.say(GroupMessage::Done { swap: swap.to_owned(), order, members: Vec::new() });
    }

    /// Refuses a swap, or says that it cannot go on.
    pub(crate) fn fail(&self, swap: &str, code: u16, message: &str) {
        self.say(GroupMessage::Failed { swap: swap.to_owned(), code, message: message.to_owned() });
    }

    /// Expects to be asked for a swap.
    pub(crate) fn prepare(&self) -> Prepare {
        match self.next().1 {
            GroupMessage::Prepare(prepare) => *prepare,
            other => panic!("{other:?}"),
        }
    }

    /// Expects an order and does not say that it is done. Returns the name of the swap.
    pub(crate) fn hear(&self, expected: Order) -> String {
        match self.next().1 {
            GroupMessage::Order { swap, order, .. } if order == expected => swap,
            other => panic!("{other:?}, expected {expected:?}"),
        }
    }

    /// Expects that a step is said to be done.
    pub(crate) fn hear_done(&self, expected: Order) {
        match self.next().1 {
            GroupMessage::Done { order, .. } => assert_eq!(order, expected),
            other => panic!("{other:?}, expected {expected:?} done"),
        }
    }

    /// Goes back with all others.
    pub(crate) fn go_back(&self) {
        self.obey(Order::TakeBack);
        self.hear(Order::Close);
    }

    /// What a prefill worker asks its members for when it is asked for this; it is refused.
    pub(crate) fn asked_for(&self, prefill: &Engine, request: SwapRequest) -> Prepare {
        let id = prefill.swaps().begin(request).expect("begun");
        let prepare = self.prepare();
        self.fail(&prepare.swap, 405, "only to see what is asked");
        self.go_back();
        refusal(&prefill.swaps().wait(id).expect("a record"));
        prepare
    }
}
