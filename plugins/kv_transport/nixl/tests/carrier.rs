//! The carrier alone, in a process of its own: cards that are none, and what instances leave behind. Skipped, with a line that
//! says so, where the library is not.

mod host;
mod library;

use hotseam_kv_transport_nixl::Options;
use hotseam_kv_wire::{Carrier, Options as _, Part, Span};
use std::sync::Arc;

fn carrier(library: &str) -> Arc<dyn Carrier> {
    let options = serde_json::json!({"library": library, "ucx": "NET_DEVICES=lo", "listen": "127.0.0.1:0",
        "advertise": "", "patience_ms": 2000});
    let options: Options = serde_json::from_value(options).unwrap();
    options.carrier(host::host()).unwrap_or_else(|error| panic!("{error}")).unwrap()
}

fn span(memory: &[u8]) -> Span {
    Span { at: memory.as_ptr().expose_provenance(), len: memory.len() }
}

/// Sends `src` to `dst` once, between two carriers.
fn carry(library: &str, src: &[u8], dst: &mut [u8]) {
    let (sender, receiver) = (carrier(library), carrier(library));
    // SAFETY: both memories outlive the carriers.
    unsafe { sender.register(&[span(src)], &[]).and_then(|()| receiver.register(&[], &[span(dst)])) }
        .unwrap();
    let (card, _outgoing) = sender.outgoing().unwrap();
    let mut incoming = receiver.incoming(&card).unwrap();
    let part = Part { from: span(src).at as u64, to: dst.as_mut_ptr(), len: dst.len() };
    // SAFETY: nobody else uses `dst`.
    unsafe { incoming.fetch(&[part], &|| true) }.unwrap();
    drop(incoming);
    // Outside what the sender has registered, before and behind.
    let mut incoming = receiver.incoming(&card).unwrap();
    for from in [part.from - 1, part.from + 1, 0, u64::MAX] {
        // SAFETY: as above.
        assert!(unsafe { incoming.fetch(&[Part { from, ..part }], &|| true) }.is_err(), "read from {from}");
    }
    assert!(receiver.outgoing().is_err(), "it has no memory of a sending side");
}

/// One test, since it counts what the process has open.
#[test]
fn instances_leave_nothing_and_bad_cards_are_refused() {
    let Some(library) = library::path() else { return };
    let src: Vec<u8> = (0..1 << 20).map(|i: usize| (i * 7 + i / 255) as u8).collect();
    let mut dst = vec![0; src.len()];
    let open = || ["fd", "task"].map(|of| std::fs::read_dir(format!("/proc/self/{of}")).unwrap().count());
    let mut before = [0; 2];
    for round in 0..15 {
        dst.fill(0);
        carry(&library, &src, &mut dst);
        assert!(src == dst, "round {round}");
        // What is made once for the process is there after some rounds.
        if round == 4 {
            before = open();
        }
    }
    assert_eq!(open(), before, "descriptors and threads");

    let (sender, receiver) = (carrier(&library), carrier(&library));
    // SAFETY: both memories outlive the carriers.
    unsafe { sender.register(&[span(&src)], &[]).and_then(|()| receiver.register(&[], &[span(&dst)])) }
        .unwrap();
    let (card, _outgoing) = sender.outgoing().unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..8 {
        let bytes: Vec<u8> = (0..random.usize(..600)).map(|_| random.u8(..)).collect();
        assert!(receiver.incoming(&bytes).is_err());
        assert!(receiver.incoming(&card[..random.usize(..card.len())]).is_err());
    }
    assert!(receiver.incoming(&card).is_ok());
}
