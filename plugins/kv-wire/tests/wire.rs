//! Two instances and what may go wrong between them.

use hotseam_kv_wire::{Medium, Progress, Settings, Wire};
use hotseam_sdk::abi::{Region, component};
use hotseam_sdk::views::{Accept, Put};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ITEM: usize = 8 << 10;
const ITEMS: usize = 64;

fn wire(medium: Medium, patience: Duration) -> Wire {
    let listen = "127.0.0.1:0".parse().unwrap();
    Wire::new(Settings { medium, listen, advertise: None, patience })
}

fn bytes(seed: usize) -> Vec<u8> {
    (0..ITEM * ITEMS).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

/// A component of one layer, whose sides are where they are given.
fn region(src: Option<&[u8]>, dst: Option<&mut Vec<u8>>) -> Region {
    let (dst, dst_items) = dst.map_or((std::ptr::null_mut(), 0), |dst| (dst.as_mut_ptr(), ITEMS as u64));
    Region {
        component: component::C4,
        layer: 2,
        src: src.map_or(std::ptr::null(), <[u8]>::as_ptr),
        dst,
        item_bytes: ITEM as u64,
        src_items: if src.is_some() { ITEMS as u64 } else { 0 },
        dst_items,
        src_offset: 0,
        src_fd: -1,
    }
}

fn register(wire: &Wire, region: Region) {
    // SAFETY: the tests keep their buffers longer than the instances, which are dropped first.
    unsafe { wire.register(&[region]) }.unwrap();
}

fn put<'a>(room: u64, peer: u64, src_items: &'a [i32], dst_items: &'a [i32]) -> Put<'a> {
    Put { room, component: component::C4, layer: 2, src_items, dst_items, peer }
}

fn accept(wire: &Wire, room: u64, items: &[i32]) {
    wire.accept(&Accept { room, component: component::C4, layer: 2, items }).unwrap();
}

fn wait(wire: &Wire, ticket: u64) -> Result<u64, String> {
    let start = Instant::now();
    loop {
        match wire.poll(ticket).map_err(|error| error.message)? {
            Progress::Done(bytes) => return Ok(bytes),
            Progress::Failed(why) => return Err(why),
            Progress::Pending(_) => assert!(start.elapsed() < Duration::from_secs(20), "pending"),
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn items_arrive_where_they_were_accepted_and_nowhere_else() {
    for medium in [Medium::Tcp, Medium::Shared] {
        let (src, mut dst) = (bytes(1), vec![0xee; ITEM * ITEMS]);
        let (sender, receiver) = (wire(medium, PATIENCE), wire(medium, PATIENCE));
        register(&sender, region(Some(&src), None));
        register(&receiver, region(None, Some(&mut dst)));
        let peer = sender.connect(&receiver.endpoint().unwrap()).unwrap();
        assert_eq!(sender.connect(&receiver.endpoint().unwrap()), Ok(peer));
        accept(&receiver, 5, &[9, 3, 4]);
        let ticket = sender.put(&put(5, peer, &[7, 1, 2], &[9, 3, 4])).unwrap();
        assert_eq!(wait(&sender, ticket), Ok(3 * ITEM as u64));
        assert_eq!(receiver.close(5), 3);
        // Neither an item that was not accepted, nor a room that is closed or was never there.
        accept(&receiver, 6, &[10]);
        for (room, items, text) in [
            (6, [10, 11], "did not ask for these items"),
            (5, [3, 4], "has closed this room"),
            (77, [1, 2], "has closed this room"),
        ] {
            let ticket = sender.put(&put(room, peer, &[0, 1], &items)).unwrap();
            let why = wait(&sender, ticket).unwrap_err();
            assert!(why.contains(text), "{why}");
        }
        assert_eq!(receiver.close(6), 0);
        drop((sender, receiver));
        for item in 0..ITEMS {
            let at = |i: usize| i * ITEM..(i + 1) * ITEM;
            let want = match item {
                9 => &src[at(7)],
                3 => &src[at(1)],
                4 => &src[at(2)],
                _ => &[0xee; ITEM],
            };
            assert_eq!(&dst[at(item)], want, "item {item} over {medium:?}");
        }
    }
}

/// Cuts each of the first connections after some bytes.
struct Cutter {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Cutter {
    fn before(target: std::net::SocketAddr, cuts: Vec<usize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().take(cuts.len() + 1).enumerate() {
                count.fetch_add(1, Ordering::SeqCst);
                let (from, to) = (stream.unwrap(), TcpStream::connect(target).unwrap());
                let back = (to.try_clone().unwrap(), from.try_clone().unwrap());
                std::thread::spawn(move || carry(back.0, back.1, usize::MAX));
                let most = cuts.get(number).copied().unwrap_or(usize::MAX);
                std::thread::spawn(move || carry(from, to, most));
            }
        });
        Self { port, connections }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, most: usize) {
    let (mut left, mut block) = (most, [0; 4096]);
    while left > 0 {
        let n = left.min(block.len());
        match from.read(&mut block[..n]) {
            Ok(0) | Err(_) => break,
            Ok(n) => {
                left -= n;
                if to.write_all(&block[..n]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

#[test]
fn a_broken_connection_is_taken_up_again() {
    let (src, mut dst) = (bytes(2), vec![0; ITEM * ITEMS]);
    let (sender, receiver) = (wire(Medium::Tcp, PATIENCE), wire(Medium::Tcp, PATIENCE));
    register(&sender, region(Some(&src), None));
    register(&receiver, region(None, Some(&mut dst)));
    let endpoint = receiver.endpoint().unwrap();
    let target = endpoint.split(' ').nth(1).unwrap().parse().unwrap();
    // In the hello, in a header, in an item, and some items later.
    let cutter = Cutter::before(target, vec![10, 70, ITEM / 2, 20 * ITEM + 99]);
    let cut = endpoint.replace(&target.to_string(), &format!("127.0.0.1:{}", cutter.port));
    let peer = sender.connect(&cut).unwrap();
    // Every second item, so that each is a frame.
    let items: Vec<i32> = (0..ITEMS as i32).step_by(2).collect();
    accept(&receiver, 1, &items);
    let tickets: Vec<u64> =
        items.iter().map(|item| sender.put(&put(1, peer, &[*item], &[*item])).unwrap()).collect();
    for ticket in tickets {
        assert_eq!(wait(&sender, ticket), Ok(ITEM as u64));
    }
    assert_eq!(receiver.close(1), items.len() as u64);
    assert_eq!(cutter.connections.load(Ordering::SeqCst), 5);
    drop((sender, receiver));
    for item in items {
        let at = item as usize * ITEM..(item as usize + 1) * ITEM;
        assert!(dst[at.clone()] == src[at], "item {item}");
    }
}

#[test]
fn a_side_that_is_not_there_fails_the_puts_in_time() {
    let src = bytes(3);
    let sender = wire(Medium::Tcp, Duration::from_millis(300));
    register(&sender, region(Some(&src), None));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let peer = sender.connect(&format!("tcp 127.0.0.1:{port} {}", "0".repeat(32))).unwrap();
    let start = Instant::now();
    let ticket = sender.put(&put(1, peer, &[1], &[1])).unwrap();
    let why = wait(&sender, ticket).unwrap_err();
    assert!(why.contains(&port.to_string()) && start.elapsed() < PATIENCE, "{why}");
    // Another instance at the same place does not know the token.
    let mut dst = vec![0; ITEM * ITEMS];
    let receiver = wire(Medium::Tcp, PATIENCE);
    register(&receiver, region(None, Some(&mut dst)));
    let endpoint = receiver.endpoint().unwrap();
    let (place, _) = endpoint.rsplit_once(' ').unwrap();
    let peer = sender.connect(&format!("{place} {}", "f".repeat(32))).unwrap();
    let ticket = sender.put(&put(1, peer, &[1], &[1])).unwrap();
    assert!(wait(&sender, ticket).unwrap_err().contains("does not know this token"));
    assert!(sender.put(&put(1, 99, &[1], &[1])).unwrap_err().message.contains("peer 99 is not known"));
    assert!(sender.connect("shm x y").is_err());
    drop((sender, receiver));
}

#[test]
fn a_closed_room_and_a_cancelled_ticket_are_left_alone() {
    for medium in [Medium::Tcp, Medium::Shared] {
        let (src, mut dst) = (bytes(4), vec![0; ITEM * ITEMS]);
        let (sender, receiver) = (wire(medium, PATIENCE), wire(medium, PATIENCE));
        register(&sender, region(Some(&src), None));
        register(&receiver, region(None, Some(&mut dst)));
        let peer = sender.connect(&receiver.endpoint().unwrap()).unwrap();
        let all: Vec<i32> = (0..ITEMS as i32).collect();
        for round in 0..20 {
            accept(&receiver, round, &all);
            let ticket = sender.put(&put(round, peer, &all, &all)).unwrap();
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_micros(100 * round));
                let _ = receiver.close(round);
                // SAFETY: nothing is written any more, which is what is tested.
                unsafe { std::ptr::write_bytes(dst.as_mut_ptr(), 0x55, dst.len()) };
                let _ = wait(&sender, ticket);
                std::thread::sleep(Duration::from_millis(2));
                assert!(dst.iter().all(|byte| *byte == 0x55), "written after close, round {round}");
            } else {
                sender.cancel(ticket);
                assert!(sender.poll(ticket).is_err());
                let _ = receiver.close(round);
            }
        }
        // Both sides serve on.
        accept(&receiver, 99, &[5]);
        let ticket = sender.put(&put(99, peer, &[6], &[5])).unwrap();
        assert_eq!(wait(&sender, ticket), Ok(ITEM as u64));
        drop((sender, receiver));
        assert_eq!(dst[5 * ITEM..6 * ITEM], src[6 * ITEM..7 * ITEM]);
    }
}

/// Whatever comes to the port, the receiving side lives, writes nothing, and goes on to serve.
#[test]
fn random_bytes_do_no_harm() {
    let (src, mut dst) = (bytes(5), vec![0; ITEM * ITEMS]);
    let (sender, receiver) = (wire(Medium::Tcp, PATIENCE), wire(Medium::Tcp, PATIENCE));
    register(&sender, region(Some(&src), None));
    register(&receiver, region(None, Some(&mut dst)));
    let endpoint = receiver.endpoint().unwrap();
    let target: std::net::SocketAddr = endpoint.split(' ').nth(1).unwrap().parse().unwrap();
    // A hello that is right, to get further with what follows it.
    let recorded = TcpListener::bind("127.0.0.1:0").unwrap();
    let fake = endpoint.replace(&target.to_string(), &recorded.local_addr().unwrap().to_string());
    let peer = sender.connect(&fake).unwrap();
    let lost = sender.put(&put(1, peer, &[1], &[1])).unwrap();
    let mut hello = [0; 40];
    recorded.accept().unwrap().0.read_exact(&mut hello).unwrap();
    sender.cancel(lost);

    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..300 {
        let mut stream = TcpStream::connect(target).unwrap();
        let mut sent = if round % 3 == 0 { Vec::new() } else { hello.to_vec() };
        let length = random.usize(..300);
        sent.extend((0..length).map(|_| random.u8(..)));
        if round % 3 == 2 {
            let at = random.usize(..sent.len());
            sent[at] ^= 1 << random.u8(..8);
        }
        let _ = stream.write_all(&sent);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(dst.iter().all(|byte| *byte == 0), "something was written");
    accept(&receiver, 3, &[0, 1]);
    let peer = sender.connect(&endpoint).unwrap();
    let ticket = sender.put(&put(3, peer, &[0, 1], &[0, 1])).unwrap();
    assert_eq!(wait(&sender, ticket), Ok(2 * ITEM as u64));
    drop((sender, receiver));
    assert_eq!(dst[..2 * ITEM], src[..2 * ITEM]);
}
