//! Two instances and what may go wrong between them.

mod common;

use common::{ITEM, ITEMS, PATIENCE, bytes, put, region, register, wait};
use hotseam_kv_wire::{Medium, Settings, Wire};
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn wire(medium: Medium, patience: Duration) -> Wire {
    let listen = "127.0.0.1:0".parse().unwrap();
    Wire::new(Settings { medium, listen, advertise: None, patience })
}

#[test]
fn items_arrive_where_they_were_accepted_and_nowhere_else() {
    for medium in [Medium::Tcp, Medium::Shared] {
        common::items_arrive(&|patience| wire(medium, patience));
    }
}

#[test]
fn a_broken_connection_is_taken_up_again() {
    // In the hello, in a header, in an item, and some items later.
    let cuts = vec![10, 70, ITEM / 2, 20 * ITEM + 99];
    common::broken_connections(&|patience| wire(Medium::Tcp, patience), cuts);
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
        common::closed_and_cancelled(&|patience| wire(medium, patience));
    }
}

#[test]
fn random_bytes_do_no_harm() {
    common::random_bytes(&|patience| wire(Medium::Tcp, patience));
}
