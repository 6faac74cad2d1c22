//! What every transport between processes must do, whichever moves its bytes.
#![allow(dead_code, reason = "no test uses all of it")]

use hotseam_kv_wire::{Progress, Wire};
use hotseam_sdk::abi::{Region, component};
use hotseam_sdk::views::{Accept, Put};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Makes an instance of this patience.
pub(crate) type Make<'a> = &'a dyn Fn(Duration) -> Wire;

pub(crate) const ITEM: usize = 8 << 10;
pub(crate) const ITEMS: usize = 64;

pub(crate) fn bytes(seed: usize) -> Vec<u8> {
    (0..ITEM * ITEMS).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

/// A component of one layer, whose sides are where they are given.
pub(crate) fn region(src: Option<&[u8]>, dst: Option<&mut Vec<u8>>) -> Region {
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

pub(crate) fn register(wire: &Wire, region: Region) {
    // SAFETY: the tests keep their buffers longer than the instances, which are dropped first.
    unsafe { wire.register(&[region]) }.unwrap();
}

pub(crate) fn put<'a>(room: u64, peer: u64, src_items: &'a [i32], dst_items: &'a [i32]) -> Put<'a> {
    Put { room, component: component::C4, layer: 2, src_items, dst_items, peer }
}

pub(crate) fn accept(wire: &Wire, room: u64, items: &[i32]) {
    wire.accept(&Accept { room, component: component::C4, layer: 2, items }).unwrap();
}

pub(crate) fn wait(wire: &Wire, ticket: u64) -> Result<u64, String> {
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

pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Cuts each of the first connections after some bytes.
pub(crate) struct Cutter {
    pub(crate) port: u16,
    pub(crate) connections: Arc<AtomicUsize>,
}

impl Cutter {
    pub(crate) fn before(target: std::net::SocketAddr, cuts: Vec<usize>) -> Self {
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

/// Items arrive where they were accepted and nowhere else.
pub(crate) fn items_arrive(wire: Make<'_>) {
    let (src, mut dst) = (bytes(1), vec![0xee; ITEM * ITEMS]);
    let (sender, receiver) = (wire(PATIENCE), wire(PATIENCE));
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
        assert_eq!(&dst[at(item)], want, "item {item}");
    }
}

/// Connections that are cut after so many bytes are taken up again.
pub(crate) fn broken_connections(wire: Make<'_>, cuts: Vec<usize>) {
    let n = cuts.len();
    let (src, mut dst) = (bytes(2), vec![0; ITEM * ITEMS]);
    let (sender, receiver) = (wire(PATIENCE), wire(PATIENCE));
    register(&sender, region(Some(&src), None));
    register(&receiver, region(None, Some(&mut dst)));
    let endpoint = receiver.endpoint().unwrap();
    let target = endpoint.split(' ').nth(1).unwrap().parse().unwrap();
    let cutter = Cutter::before(target, cuts);
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
    assert_eq!(cutter.connections.load(Ordering::SeqCst), n + 1);
    drop((sender, receiver));
    for item in items {
        let at = item as usize * ITEM..(item as usize + 1) * ITEM;
        assert!(dst[at.clone()] == src[at], "item {item}");
    }
}

/// After `close` nothing is written for a room, after `cancel` nothing is known of a ticket, and both sides serve on.
pub(crate) fn closed_and_cancelled(wire: Make<'_>) {
    let (src, mut dst) = (bytes(4), vec![0; ITEM * ITEMS]);
    let (sender, receiver) = (wire(PATIENCE), wire(PATIENCE));
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

/// Whatever comes to the port, the receiving side lives, writes nothing, and goes on to serve.
pub(crate) fn random_bytes(wire: Make<'_>) {
    let (src, mut dst) = (bytes(5), vec![0; ITEM * ITEMS]);
    let (sender, receiver) = (wire(PATIENCE), wire(PATIENCE));
    register(&sender, region(Some(&src), None));
    register(&receiver, region(None, Some(&mut dst)));
    let endpoint = receiver.endpoint().unwrap();
    let target: std::net::SocketAddr = endpoint.split(' ').nth(1).unwrap().parse().unwrap();
    // A hello that is right, to get further with what follows it.
    let recorded = TcpListener::bind("127.0.0.1:0").unwrap();
    let fake = endpoint.replace(&target.to_string(), &recorded.local_addr().unwrap().to_string());
    let peer = sender.connect(&fake).unwrap();
    let lost = sender.put(&put(1, peer, &[1], &[1])).unwrap();
    let mut stream = recorded.accept().unwrap().0;
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    // All that a sender says before it is answered.
    let (mut hello, mut block) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = stream.read(&mut block) {
        hello.extend_from_slice(&block[..n]);
    }
    drop(stream);
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
