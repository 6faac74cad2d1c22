//! `kv_transport/nixl` against NIXL's own Python API, in one run: both between two processes, over what UCX chooses on the
//! loopback, the same items from the same sizes of memory. Rounds take turns, so that both see the same machine; medians are
//! compared. `scripts/bench-transport` runs it: LIBRARY [ROUNDS [PYTHON]].

#[path = "../tests/host/mod.rs"]
mod host;

use hotseam_kv_transport_nixl::Options;
use hotseam_kv_wire::{Options as _, Progress, Wire};
use hotseam_sdk::abi::{Region, component};
use hotseam_sdk::views::{Accept, Put};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of an item and items, those of kv-wire's bench_transport.
const ITEM: usize = 37_440;
const ITEMS: usize = 1792;
const TOTAL: usize = ITEM * ITEMS;

fn wire(library: &str) -> Wire {
    let options = serde_json::json!({"library": library, "ucx": "NET_DEVICES=lo", "listen": "127.0.0.1:0",
        "advertise": "", "patience_ms": 5000});
    let options: Options = serde_json::from_value(options).expect("options");
    let carrier = options.carrier(host::host()).unwrap_or_else(|error| panic!("{error}"));
    Wire::carried(options.settings().expect("settings"), carrier.expect("a carrier"))
}

fn register(wire: &Wire, src: &[u8], dst: &mut [u8]) {
    let region = Region {
        component: component::C4,
        layer: 0,
        src: src.as_ptr(),
        dst: dst.as_mut_ptr(),
        item_bytes: ITEM as u64,
        src_items: (src.len() / ITEM) as u64,
        dst_items: (dst.len() / ITEM) as u64,
        src_offset: 0,
        src_fd: -1,
    };
    // SAFETY: the memory lives until the process ends, and nobody else uses it during a transfer.
    unsafe { wire.register(&[region]) }.expect("registered");
}

fn byte(i: usize) -> u8 {
    (i * 31 + i / 251) as u8
}

/// Memory on large pages where there are any, as numpy's is.
fn memory() -> &'static mut [u8] {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which lives until the process ends; advice about it is taken or not.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), TOTAL, access, kind, -1, 0);
        assert!(at != libc::MAP_FAILED, "no memory");
        libc::madvise(at, TOTAL, libc::MADV_HUGEPAGE);
        std::slice::from_raw_parts_mut(at.cast(), TOTAL)
    }
}

/// All items: in one range, or each a range of its own.
fn items(shape: &str) -> Vec<i32> {
    let half = ITEMS as i32 / 2;
    match shape {
        "whole" => (0..ITEMS as i32).collect(),
        _ => (0..half).flat_map(|i| [i, half + i]).collect(),
    }
}

/// The other process: every line is a room and the shape of its items; an empty one closes the last room.
fn receive(library: &str) {
    let dst = memory();
    dst.fill(0);
    let receiver = wire(library);
    register(&receiver, &[], dst);
    println!("{}", receiver.endpoint().expect("listens"));
    let mut open = 0;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some((room, shape)) => {
                open = room.parse().expect("a room");
                let items = &items(shape);
                let accept = Accept { room: open, component: component::C4, layer: 0, items };
                receiver.accept(&accept).expect("accepted");
                println!("open");
            }
            None => println!("{}", receiver.close(open)),
        }
    }
    drop(receiver);
    let same = dst.iter().enumerate().all(|(i, found)| *found == byte(i));
    println!("{}", if same { "same" } else { "differs" });
}

/// A process that answers each line with one.
struct Talk {
    child: Child,
    to: Option<ChildStdin>,
    from: Box<dyn Iterator<Item = String>>,
}

impl Talk {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        // Libraries of the process may print as well.
        let from = from.filter(|line| !line.contains(" UCX ") && !line.contains(" NIXL "));
        Self { child, to, from: Box::new(from) }
    }

    fn hear(&mut self) -> String {
        self.from.next().expect("an answer")
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.to.as_mut().expect("open"), "{line}").expect("it listens");
        self.hear()
    }

    /// Its last word, after its input has ended.
    fn end(mut self) -> String {
        self.to = None;
        let word = self.hear();
        self.child.wait().expect("ended");
        word
    }
}

fn ours(sender: &Wire, peer: u64, receiver: &mut Talk, room: u64, shape: &str) -> f64 {
    assert_eq!(receiver.ask(&format!("{room} {shape}")), "open");
    let items = &items(shape);
    let start = Instant::now();
    let put = Put { room, component: component::C4, layer: 0, src_items: items, dst_items: items, peer };
    let ticket = sender.put(&put).expect("put");
    loop {
        match sender.poll(ticket).expect("known") {
            Progress::Done(bytes) => break assert_eq!(bytes, TOTAL as u64),
            Progress::Failed(why) => panic!("{why}"),
            Progress::Pending(_) => std::thread::sleep(Duration::from_micros(100)),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(receiver.ask(""), ITEMS.to_string());
    seconds
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let library = arguments.first().expect("path of libnixl_capi.so");
    if arguments.get(1).is_some_and(|word| word == "receive") {
        return receive(library);
    }
    let rounds: usize = arguments.get(1).and_then(|n| n.parse().ok()).unwrap_or(15);
    let mut command = Command::new(std::env::current_exe().expect("path of this executable"));
    command.args([library, "receive"]);
    let mut receiver = Talk::start(command);
    let sender = wire(library);
    let src = memory();
    src.iter_mut().enumerate().for_each(|(i, to)| *to = byte(i));
    register(&sender, src, &mut []);
    let peer = sender.connect(&receiver.hear()).expect("an endpoint");
    let mut python = arguments.get(2).map(|python| {
        let mut command = Command::new(python);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/peers.py");
        command.args([script, &ITEM.to_string(), &ITEMS.to_string()]).env("UCX_NET_DEVICES", "lo");
        let mut talk = Talk::start(command);
        assert_eq!(talk.hear(), "ready");
        talk
    });

    println!("{TOTAL} bytes in {ITEMS} items of {ITEM}, medians of {rounds} rounds");
    for shape in ["whole", "scattered"] {
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=rounds as u64 {
            let room = round + if shape == "whole" { 1 } else { 1_000_000 };
            let seconds = ours(&sender, peer, &mut receiver, room, shape);
            let other = python.as_mut().map(|python| python.ask(shape).parse::<f64>().expect("seconds"));
            // The first round connects and touches the memory.
            if round > 0 {
                mine.push(seconds);
                theirs.extend(other);
            }
        }
        let name = if shape == "whole" { "nixl, one range" } else { "nixl, every item a range" };
        let mine = median(mine);
        let rate = |seconds: f64| TOTAL as f64 / seconds / 1e9;
        match python {
            None => println!("{name:<26} {:>7.2} GB/s", rate(mine)),
            Some(_) => {
                let theirs = median(theirs);
                println!("{:<26} {:>7.2} GB/s", format!("NIXL from Python, {shape}"), rate(theirs));
                println!("{name:<26} {:>7.2} GB/s {:>6.2} of NIXL from Python", rate(mine), theirs / mine);
            }
        }
    }
    drop(sender);
    assert_eq!(receiver.end(), "same", "what arrived differs");
    if let Some(python) = python {
        assert_eq!(python.end(), "same", "what Python read differs");
    }
}
