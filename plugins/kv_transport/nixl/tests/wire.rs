//! Two instances over NIXL and what may go wrong between them. Skipped, with a line that says so, where the library is not.

#[path = "../../../kv-wire/tests/common/mod.rs"]
mod common;
mod host;
mod library;

use common::{ITEM, ITEMS, PATIENCE, accept, bytes, put, region, register, wait};
use hotseam_kv_transport_nixl::Options;
use hotseam_kv_wire::{Options as _, Wire};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Makes this binary a sender that ends when it is killed: the endpoint that it sends to.
const SEND_TO: &str = "HOTSEAM_TEST_SEND_TO";
/// Makes this binary a receiving side that ends when it is killed.
const RECEIVE: &str = "HOTSEAM_TEST_RECEIVE";

/// An instance on the loopback, with these settings of UCX.
fn wire(library: &str, ucx: &str, patience: Duration) -> Wire {
    let ucx = format!("NET_DEVICES=lo{ucx}");
    let options = serde_json::json!({"library": library, "ucx": ucx, "listen": "127.0.0.1:0", "advertise": "",
        "patience_ms": patience.as_millis() as u64});
    let options: Options = serde_json::from_value(options).unwrap();
    let carrier = options.carrier(host::host()).unwrap_or_else(|error| panic!("{error}"));
    Wire::carried(options.settings().unwrap(), carrier.unwrap())
}

/// Reads by messages over TCP, which are off where nobody asks for them: the one kind that the other end can hold up.
const EMULATED: &str = ",TLS=tcp,PROTO_EMULATION_ENABLE=y";

#[test]
fn items_arrive_where_they_were_accepted_and_nowhere_else() {
    let Some(library) = library::path() else { return };
    for ucx in ["", EMULATED] {
        common::items_arrive(&|patience| wire(&library, ucx, patience));
    }
}

#[test]
fn a_broken_connection_is_taken_up_again() {
    let Some(library) = library::path() else { return };
    for ucx in ["", EMULATED] {
        // In the hello, in the card, in a header, and some frames later.
        common::broken_connections(&|patience| wire(&library, ucx, patience), vec![10, 45, 700, 2000]);
    }
}

#[test]
fn a_closed_room_and_a_cancelled_ticket_are_left_alone() {
    let Some(library) = library::path() else { return };
    for ucx in ["", EMULATED] {
        common::closed_and_cancelled(&|patience| wire(&library, ucx, patience));
    }
}

#[test]
fn random_bytes_do_no_harm() {
    let Some(library) = library::path() else { return };
    common::random_bytes(&|patience| wire(&library, "", patience));
}

/// Whatever comes to the ports of UCX, the worker lives and goes on to serve.
#[test]
fn random_bytes_at_the_ports_of_ucx_do_no_harm() {
    let Some(library) = library::path() else { return };
    let (src, mut dst) = (bytes(6), vec![0; ITEM * ITEMS]);
    let before = listening();
    let (sender, receiver) = (wire(&library, EMULATED, PATIENCE), wire(&library, EMULATED, PATIENCE));
    register(&sender, region(Some(&src), None));
    register(&receiver, region(None, Some(&mut dst)));
    let ports: Vec<u16> = listening().into_iter().filter(|port| !before.contains(port)).collect();
    assert!(ports.len() >= 2, "UCX listens on {ports:?}");
    let mut random = fastrand::Rng::with_seed(8);
    for round in 0..100 {
        let port = ports[round % ports.len()];
        let Ok(mut stream) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))) else { continue };
        let length = random.usize(..2000);
        let sent: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let _ = stream.write_all(&sent);
        let _ = stream.read(&mut [0; 64]);
    }
    assert!(dst.iter().all(|byte| *byte == 0), "something was written");
    let peer = sender.connect(&receiver.endpoint().unwrap()).unwrap();
    accept(&receiver, 1, &[0, 1]);
    let ticket = sender.put(&put(1, peer, &[2, 3], &[0, 1])).unwrap();
    assert_eq!(wait(&sender, ticket), Ok(2 * ITEM as u64));
    drop((sender, receiver));
    assert_eq!(dst[..2 * ITEM], src[2 * ITEM..4 * ITEM]);
}

/// TCP ports of the loopback on which this process listens.
fn listening() -> Vec<u16> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let sockets: Vec<String> = links
        .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string()))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Local address, state (0A: listening), inode.
        let ours = fields[3] == "0A" && sockets.iter().any(|socket| *socket == fields[9]);
        ours.then(|| u16::from_str_radix(fields[1].rsplit(':').next()?, 16).ok()).flatten()
    };
    table.lines().skip(1).filter_map(port).collect()
}

/// The other process of the test below.
#[test]
fn sends_until_it_is_killed() {
    let (Ok(endpoint), Some(library)) = (std::env::var(SEND_TO), library::path()) else { return };
    let src = bytes(9);
    let sender = wire(&library, EMULATED, PATIENCE);
    register(&sender, region(Some(&src), None));
    let peer = sender.connect(&endpoint).unwrap();
    let all: Vec<i32> = (0..ITEMS as i32).collect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        let ticket = sender.put(&put(1, peer, &all, &all)).unwrap();
        let _ = wait(&sender, ticket);
    }
}

/// Another process of this binary.
struct Process(Child);

impl Process {
    fn start(test: &str, variable: &str, value: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(variable, value);
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// A sender that stands still or dies in the middle of a read does not hold its room, and nothing is written when it goes on.
#[test]
fn a_sender_that_stands_still_or_dies_holds_nothing() {
    let Some(library) = library::path() else { return };
    let (src, mut dst) = (bytes(7), vec![0; ITEM * ITEMS]);
    let all: Vec<i32> = (0..ITEMS as i32).collect();
    let receiver = wire(&library, EMULATED, PATIENCE);
    register(&receiver, region(None, Some(&mut dst)));
    let endpoint = receiver.endpoint().unwrap();
    for round in 0..4 {
        accept(&receiver, 1, &all);
        // SAFETY: only the transport writes this memory, which is what is looked at.
        let first = || unsafe { dst.as_ptr().add(ITEM).read_volatile() };
        // SAFETY: the room is not written yet.
        unsafe { std::ptr::write_bytes(dst.as_ptr().cast_mut(), 0, ITEM * ITEMS) };
        let sender = Process::start("sends_until_it_is_killed", SEND_TO, &endpoint);
        let start = Instant::now();
        while first() == 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing came");
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_millis(5 * round));
        sender.signal(if round % 2 == 0 { libc::SIGSTOP } else { libc::SIGKILL });
        let start = Instant::now();
        let _ = receiver.close(1);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(2), "close waited for {took:?}");
        // SAFETY: nothing writes after `close`, which is what is tested.
        unsafe { std::ptr::write_bytes(dst.as_ptr().cast_mut(), 0x55, ITEM * ITEMS) };
        std::thread::sleep(Duration::from_millis(100));
        if round % 2 == 0 {
            sender.signal(libc::SIGCONT);
            std::thread::sleep(Duration::from_millis(300));
        }
        drop(sender);
        assert!(dst.iter().all(|byte| *byte == 0x55), "written after close, round {round}");
    }
    let sender = wire(&library, EMULATED, PATIENCE);
    register(&sender, region(Some(&src), None));
    let peer = sender.connect(&endpoint).unwrap();
    accept(&receiver, 2, &[1]);
    let ticket = sender.put(&put(2, peer, &[1], &[1])).unwrap();
    assert_eq!(wait(&sender, ticket), Ok(ITEM as u64));
    assert_eq!(receiver.close(2), 1);
    drop((sender, receiver));
    assert_eq!(dst[ITEM..2 * ITEM], src[ITEM..2 * ITEM]);
}

/// The other process of the test below.
#[test]
fn receives_until_it_is_killed() {
    let (Ok(_), Some(library)) = (std::env::var(RECEIVE), library::path()) else { return };
    let mut dst = vec![0; ITEM * ITEMS];
    let receiver = wire(&library, "", PATIENCE);
    register(&receiver, region(None, Some(&mut dst)));
    let all: Vec<i32> = (0..ITEMS as i32).collect();
    accept(&receiver, 1, &all);
    println!("\n{}", receiver.endpoint().unwrap());
    std::thread::sleep(Duration::from_secs(30));
}

/// A receiving side that dies in the middle of a read fails the puts, and nothing else.
#[test]
fn a_receiving_side_that_dies_fails_the_puts() {
    let Some(library) = library::path() else { return };
    let src = bytes(10);
    let sender = wire(&library, "", Duration::from_millis(500));
    register(&sender, region(Some(&src), None));
    let all: Vec<i32> = (0..ITEMS as i32).collect();
    for round in 0..3 {
        let mut receiver = Process::start("receives_until_it_is_killed", RECEIVE, "1");
        let lines = BufReader::new(receiver.0.stdout.take().unwrap()).lines();
        let endpoint = lines.map(Result::unwrap).find(|line| line.starts_with("nixl ")).unwrap();
        let peer = sender.connect(&endpoint).unwrap();
        let ticket = sender.put(&put(1, peer, &all, &all)).unwrap();
        assert_eq!(wait(&sender, ticket), Ok((ITEM * ITEMS) as u64));
        let why = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(3 * round));
                receiver.signal(libc::SIGKILL);
            });
            let start = Instant::now();
            loop {
                let ticket = sender.put(&put(1, peer, &all, &all)).unwrap();
                match wait(&sender, ticket) {
                    Ok(_) => assert!(start.elapsed() < PATIENCE, "puts to nobody are done"),
                    Err(why) => break why,
                }
            }
        });
        assert!(why.contains("nixl 127.0.0.1"), "{why}");
    }
}

/// Where UCX has no way to read without the other end's part, puts fail with a reason, and the worker lives.
#[test]
fn reads_by_messages_are_refused() {
    let Some(library) = library::path() else { return };
    let (src, mut dst) = (bytes(11), vec![0; ITEM * ITEMS]);
    let (sender, receiver) = (wire(&library, ",TLS=tcp", PATIENCE), wire(&library, ",TLS=tcp", PATIENCE));
    register(&sender, region(Some(&src), None));
    register(&receiver, region(None, Some(&mut dst)));
    let peer = sender.connect(&receiver.endpoint().unwrap()).unwrap();
    accept(&receiver, 1, &[1]);
    let ticket = sender.put(&put(1, peer, &[1], &[1])).unwrap();
    let why = wait(&sender, ticket).unwrap_err();
    assert!(why.contains("do not arrive intact"), "{why}");
    assert_eq!(receiver.close(1), 0);
    drop((sender, receiver));
    assert!(dst.iter().all(|byte| *byte == 0));
}
