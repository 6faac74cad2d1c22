//! KV transports against raw copies in one run: shared memory against memcpy, TCP against a plain loopback socket.
//!
//! Every round moves the same items once each way, in turn, so that all see the same machine; medians are compared.

use hotseam_kv_wire::{Medium, Progress, Settings, Wire};
use hotseam_sdk::abi::{Region, component};
use hotseam_sdk::views::{Accept, Put};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of an item, that of a page of 64 ratio-4 entries of 584 bytes.
const ITEM: usize = 37_440;
/// Items of a put.
const ITEMS: usize = 1792;
const TOTAL: usize = ITEM * ITEMS;

/// A file of shared memory, mapped.
struct Shared {
    fd: i32,
    bytes: &'static mut [u8],
}

impl Shared {
    fn new(len: usize) -> Self {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a new file and a new mapping of all of it, which lives until the process ends.
        unsafe {
            let fd = libc::memfd_create(c"bench".as_ptr(), flags);
            assert!(fd >= 0 && libc::ftruncate(fd, len as i64) == 0, "no shared memory");
            assert!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0, "no seal");
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0);
            assert!(at != libc::MAP_FAILED, "no mapping");
            Self { fd, bytes: std::slice::from_raw_parts_mut(at.cast(), len) }
        }
    }
}

struct Pair {
    sender: Wire,
    receiver: Wire,
    peer: u64,
    rooms: u64,
}

impl Pair {
    fn new(medium: Medium, src: &Shared, dst: &mut [u8]) -> Self {
        let listen = "127.0.0.1:0".parse().expect("an address");
        let wire = || {
            let patience = Duration::from_secs(5);
            Wire::new(Settings { medium, listen, advertise: None, patience })
        };
        let (sender, receiver) = (wire(), wire());
        let empty = Region {
            component: component::C4,
            layer: 0,
            src: std::ptr::null(),
            dst: std::ptr::null_mut(),
            item_bytes: ITEM as u64,
            src_items: 0,
            dst_items: 0,
            src_offset: 0,
            src_fd: -1,
        };
        let from = Region { src: src.bytes.as_ptr(), src_items: ITEMS as u64, src_fd: src.fd, ..empty };
        let to = Region { dst: dst.as_mut_ptr(), dst_items: ITEMS as u64, ..empty };
        // SAFETY: the memory lives until the process ends, and nobody else uses it during a transfer.
        unsafe {
            sender.register(&[from]).expect("registered");
            receiver.register(&[to]).expect("registered");
        }
        let peer = sender.connect(&receiver.endpoint().expect("listens")).expect("an endpoint");
        Self { sender, receiver, peer, rooms: 0 }
    }

    /// Moves all items; returns the seconds.
    fn run(&mut self, items: &[i32]) -> f64 {
        self.rooms += 1;
        let room = self.rooms;
        let accept = Accept { room, component: component::C4, layer: 0, items };
        self.receiver.accept(&accept).expect("accepted");
        let start = Instant::now();
        let put = Put {
            room,
            component: component::C4,
            layer: 0,
            src_items: items,
            dst_items: items,
            peer: self.peer,
        };
        let ticket = self.sender.put(&put).expect("put");
        loop {
            match self.sender.poll(ticket).expect("known") {
                Progress::Done(bytes) => break assert_eq!(bytes, TOTAL as u64),
                Progress::Failed(why) => panic!("{why}"),
                Progress::Pending(_) => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        assert_eq!(self.receiver.close(room), ITEMS as u64);
        seconds
    }
}

/// A connection to a thread that reads everything into `dst` again and again, and says so with one byte.
fn plain_socket(dst: &'static mut [u8]) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        while stream.read_exact(dst).is_ok() && stream.write_all(&[1]).is_ok() {}
    });
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_nodelay(true).expect("an option");
    stream
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(15);
    let src = Shared::new(TOTAL);
    src.bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 31 + i / 251) as u8);
    let fresh = || Box::leak(vec![1u8; TOTAL].into_boxed_slice());
    let (copied, shm_dst, tcp_dst, socket_dst) = (fresh(), fresh(), fresh(), fresh());
    let mut socket = plain_socket(socket_dst);
    let mut shm = Pair::new(Medium::Shared, &src, shm_dst);
    let mut tcp = Pair::new(Medium::Tcp, &src, tcp_dst);
    let whole: Vec<i32> = (0..ITEMS as i32).collect();
    // No two neighbours: every item is a range of its own.
    let half = ITEMS as i32 / 2;
    let scattered: Vec<i32> = (0..half).flat_map(|i| [i, half + i]).collect();

    let mut seconds: [Vec<f64>; 7] = Default::default();
    for round in 0..=rounds {
        let start = Instant::now();
        copied.copy_from_slice(std::hint::black_box(&src.bytes[..]));
        std::hint::black_box(&copied);
        let memcpy = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for item in &scattered {
            let at = *item as usize * ITEM..(*item as usize + 1) * ITEM;
            copied[at.clone()].copy_from_slice(std::hint::black_box(&src.bytes[at]));
        }
        let by_item = start.elapsed().as_secs_f64();
        let start = Instant::now();
        socket.write_all(src.bytes).expect("written");
        socket.read_exact(&mut [0]).expect("answered");
        let plain = start.elapsed().as_secs_f64();
        let (shm_whole, shm_scattered) = (shm.run(&whole), shm.run(&scattered));
        let (tcp_whole, tcp_scattered) = (tcp.run(&whole), tcp.run(&scattered));
        let all = [memcpy, shm_whole, by_item, shm_scattered, plain, tcp_whole, tcp_scattered];
        // The first round touches the memory.
        if round > 0 {
            seconds.iter_mut().zip(all).for_each(|(list, one)| list.push(one));
        }
    }
    assert!(*copied == *src.bytes, "the copy differs");
    let names = [
        "memcpy",
        "shm, one range",
        "memcpy, item by item",
        "shm, every item a range",
        "plain loopback socket",
        "tcp, one range",
        "tcp, every item a range",
    ];
    let medians = seconds.map(median);
    println!("{TOTAL} bytes in {ITEMS} items of {ITEM}, medians of {rounds} rounds");
    // Each against the raw copy that moves the same ranges.
    for (i, base) in [0, 0, 2, 2, 4, 4, 4].into_iter().enumerate() {
        let rate = TOTAL as f64 / medians[i] / 1e9;
        println!("{:<26} {rate:>7.2} GB/s {:>6.2} of {}", names[i], medians[base] / medians[i], names[base]);
    }
}
