//! The control connection: what a stranger sends to its port does no harm, and both sides hear of the other's end.

use crossbeam_channel::unbounded;
use hotseam_pd::{PrefillEvent, PrefillSide, ToDecode, ToPrefill, read, write};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

fn hello(version: u32) -> ToPrefill {
    ToPrefill::Hello { version, worker: "test".into(), group: None }
}

fn connect(side: &PrefillSide) -> TcpStream {
    let stream = TcpStream::connect(side.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

#[test]
fn random_bytes_do_no_harm() {
    let (send, events) = unbounded();
    let side =
        PrefillSide::start("127.0.0.1:0".parse().unwrap(), "p", None, move |e| send.send(e).is_ok()).unwrap();
    let mut greeting = Vec::new();
    write(&mut greeting, &hello(2)).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..200 {
        let mut bytes = if round % 2 == 0 { Vec::new() } else { greeting.clone() };
        // Noise, or a message of this protocol with one byte changed.
        match round % 4 {
            0 | 1 => bytes.extend((0..random.usize(..400)).map(|_| random.u8(..))),
            _ => {
                write(&mut bytes, &ToPrefill::Abort { room: 1, reason: "x".into() }).unwrap();
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
        }
        let mut stream = connect(&side);
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    for event in events.try_iter() {
        assert!(!matches!(event, PrefillEvent::Reserve { .. }), "{event:?}");
    }
    // It still serves.
    let mut stream = connect(&side);
    write(&mut stream, &hello(2)).unwrap();
    assert!(matches!(read(&mut stream), Ok(ToDecode::Welcome { .. })));
    write(&mut stream, &ToPrefill::Ping).unwrap();
    assert_eq!(read::<ToDecode>(&mut stream).unwrap(), ToDecode::Pong);
    drop(stream);
    assert!(matches!(events.recv_timeout(Duration::from_secs(5)), Ok(PrefillEvent::Gone { .. })));
}

#[test]
fn another_version_is_told_so() {
    let side = PrefillSide::start("127.0.0.1:0".parse().unwrap(), "p", None, |_| true).unwrap();
    let mut stream = connect(&side);
    write(&mut stream, &hello(99)).unwrap();
    match read(&mut stream).unwrap() {
        ToDecode::Refused { message } => {
            assert!(message.contains("version 2") && message.contains("99"), "{message}")
        }
        other => panic!("{other:?}"),
    }
}
