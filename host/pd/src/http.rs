//! One question to a registry over HTTP.

use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Bytes of an answer, at most.
const MOST: u64 = 64 << 10;

/// Connects to a host, for `patience` at most.
pub(crate) fn connect(host: &str, port: u16, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Status and JSON of `GET path` at a host.
pub(crate) fn get(host: &str, port: u16, path: &str, patience: Duration) -> io::Result<(u16, Value)> {
    let end = Instant::now() + patience;
    let mut stream = connect(host, port, patience)?;
    stream.set_write_timeout(Some(patience))?;
    // The name goes into a header line.
    let name: String = host.chars().filter(|c| c.is_ascii_graphic()).collect();
    let name = if name.contains(':') { format!("[{name}]") } else { name };
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nhost: {name}:{port}\r\naccept: application/json\r\nconnection: close\r\n\r\n")
            .as_bytes(),
    )?;
    let late = || {
        let message = format!("no whole answer in {:.1} s", patience.as_secs_f32());
        io::Error::new(io::ErrorKind::TimedOut, message)
    };
    let (mut bytes, mut block) = (Vec::new(), [0; 4096]);
    loop {
        let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or_else(late)?))?;
        match stream.read(&mut block) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&block[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > MOST {
            return Err(io::Error::other("the answer is too long"));
        }
    }
    parse(&bytes).ok_or_else(|| io::Error::other("the answer is no HTTP with JSON"))
}

/// Status and body of a whole answer. The body is its length or chunks.
fn parse(bytes: &[u8]) -> Option<(u16, Value)> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 4..]);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let chunked = lines.filter_map(|line| line.split_once(':')).any(|(name, value)| {
        name.eq_ignore_ascii_case("transfer-encoding") && value.trim().eq_ignore_ascii_case("chunked")
    });
    let body = if chunked { join(body)? } else { body.to_vec() };
    Some((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

fn join(mut chunks: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = chunks.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&chunks[..line]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        chunks = &chunks[line + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(chunks.get(..size)?);
        chunks = chunks.get(size.checked_add(2)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_answers_slowly_is_told_from_who_answers_too_much() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = std::thread::spawn(move || {
            let (mut slow, _) = listener.accept().unwrap();
            while slow.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _silent = listener.accept().unwrap();
            let (mut loud, _) = listener.accept().unwrap();
            while loud.write_all(&[b'x'; 4096]).is_ok() {}
        });
        // One sends a byte now and then, the other nothing.
        for _ in 0..2 {
            let error = get("127.0.0.1", port, "/", Duration::from_millis(100)).unwrap_err();
            assert_eq!(error.to_string(), "no whole answer in 0.1 s");
        }
        let error = get("127.0.0.1", port, "/", Duration::from_secs(20)).unwrap_err();
        assert_eq!(error.to_string(), "the answer is too long");
        serve.join().unwrap();
    }

    #[test]
    fn both_forms_of_a_body_are_read() {
        let plain = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}";
        assert_eq!(parse(plain), Some((200, json!({ "a": 1 }))));
        let chunked =
            b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n";
        assert_eq!(parse(chunked), Some((503, json!({ "a": 1 }))));
        for bad in [&b""[..], b"HTTP/1.1", b"HTTP/1.1 x\r\n\r\n", b"SSH-2.0\r\n\r\n"] {
            assert_eq!(parse(bad), None);
        }
        let cut = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{";
        assert_eq!(parse(cut), None);
    }
}
