//! A small HTTP client: one request a connection, over a unix socket or TCP, with a time-out for the whole answer.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hotseam_config::{Endpoint, EndpointPlace};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Bytes of an answer, at most.
const MOST: usize = 256 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The server says no.
    #[error("{place}: {message}")]
    Refused { place: String, status: u16, code: String, message: String },
    /// It did not answer in time.
    #[error(
        "{place} did not answer in {seconds:.0} s; raise bisect.target.timeout_seconds, or see what it does"
    )]
    TimedOut { place: String, seconds: f64 },
    /// Nothing that can be read came back.
    #[error("{place}: {message}")]
    Broken { place: String, message: String },
}

/// A server's endpoint.
#[derive(Debug, Clone)]
pub(super) struct Client {
    place: EndpointPlace,
    name: String,
    token: Option<String>,
    limit: Duration,
}

/// A connection.
trait Stream: Read + Write {
    fn limit(&self, left: Duration) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Stream for TcpStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Client {
    /// A client of `endpoint`, whose token file is read now.
    pub(super) fn new(endpoint: &Endpoint, limit: Duration) -> Result<Self, Trouble> {
        let name = endpoint.to_string();
        let token = endpoint.token_file.as_ref().map(|path| {
            std::fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|error| {
                Trouble::Broken {
                    place: name.clone(),
                    message: format!("token file {}: {error}", path.display()),
                }
            })
        });
        let token = token.transpose()?;
        if token.as_ref().is_some_and(|token| token.is_empty() || token.contains(char::is_whitespace)) {
            let message = "the token file holds no token, or more than one word".to_owned();
            return Err(Trouble::Broken { place: name, message });
        }
        Ok(Self { place: endpoint.place.clone(), name, token, limit })
    }

    /// Where it asks.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Asks and reads the JSON answer.
    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Trouble> {
        let (status, bytes) = self.exchange(method, path, body).map_err(|error| self.trouble(&error))?;
        if !(200..300).contains(&status) {
            let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let text = |key: &str| said["error"][key].as_str().map(str::to_owned);
            let raw = || format!("{status}: {}", String::from_utf8_lossy(&bytes).trim());
            return Err(Trouble::Refused {
                place: self.name.clone(),
                status,
                code: text("code").unwrap_or_default(),
                message: text("message").unwrap_or_else(raw),
            });
        }
        serde_json::from_slice(&bytes).map_err(|error| Trouble::Broken {
            place: self.name.clone(),
            message: format!("the answer to {method} {path} is not what this program expects: {error}"),
        })
    }

    fn trouble(&self, error: &io::Error) -> Trouble {
        let place = self.name.clone();
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                Trouble::TimedOut { place, seconds: self.limit.as_secs_f64() }
            }
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Trouble::Broken {
                place,
                message: format!("cannot connect: {error}; is the server running, and is this its endpoint?"),
            },
            _ => Trouble::Broken { place, message: error.to_string() },
        }
    }

    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match &self.place {
            EndpointPlace::Unix(path) => Ok(Box::new(UnixStream::connect(path)?)),
            EndpointPlace::Tcp(host) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in host.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, self.limit) {
                        Ok(stream) => return Ok(Box::new(stream)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    fn exchange(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<(u16, Vec<u8>)> {
        let deadline = Instant::now() + self.limit;
        let host = match &self.place {
            EndpointPlace::Tcp(host) => host,
            EndpointPlace::Unix(_) => "hotseam",
        };
        let body = body.map(Value::to_string).unwrap_or_default();
        let token =
            self.token.as_ref().map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{token}\r\n",
            body.len()
        );
        let mut stream = self.connect()?;
        stream.limit(left(deadline)?)?;
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            stream.limit(left(deadline)?)?;
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => bytes.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if bytes.len() > MOST {
                return Err(io::Error::other(format!("the answer has more than {MOST} bytes")));
            }
        }
        parse(&bytes)
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// Status and body of a whole response.
fn parse(bytes: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    let bad =
        |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the answer is not HTTP: {what}"));
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").ok_or_else(|| bad("no head"))?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| bad("the head is not text"))?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| bad("no status"))?;
    let (mut length, mut chunked) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse::<usize>().ok(),
            "transfer-encoding" => chunked = value.to_ascii_lowercase().contains("chunked"),
            _ => {}
        }
    }
    let body = &bytes[end + 4..];
    if chunked {
        return Ok((status, dechunk(body).ok_or_else(|| bad("it ends in the middle of a chunk"))?));
    }
    match length {
        Some(length) if length > body.len() => Err(bad("it ends before its length")),
        Some(length) => Ok((status, body[..length].to_vec())),
        None => Ok((status, body.to_vec())),
    }
}

/// The body of a chunked answer; `None` if it is cut off.
fn dechunk(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&body[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(out);
        }
        let rest = &body[end + 2..];
        out.extend_from_slice(rest.get(..size)?);
        body = rest.get(size.checked_add(2)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_answers_are_read_and_cut_ones_are_not() {
        let text = |raw: &str| {
            parse(raw.as_bytes()).map(|(status, body)| (status, String::from_utf8(body).unwrap()))
        };
        assert_eq!(text("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}xx").unwrap(), (200, "{}".into()));
        assert_eq!(text("HTTP/1.1 503 No\r\n\r\nbusy").unwrap(), (503, "busy".into()));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(
            text(&format!("{chunked}3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n")).unwrap().1,
            "abc0123456789"
        );
        for cut in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "garbage\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
            &format!("{chunked}3\r\nab"),
            &format!("{chunked}ffffffffffffffff\r\nab"),
            &format!("{chunked}3\r\nabc\r\n"),
        ] {
            assert_eq!(text(cut).unwrap_err().kind(), io::ErrorKind::InvalidData, "{cut:?}");
        }
    }

    #[test]
    fn a_silent_server_times_out_and_a_missing_one_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint: Endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let client = Client::new(&endpoint, Duration::from_millis(60)).unwrap();
        assert!(matches!(client.ask::<Value>("GET", "/slots", None), Err(Trouble::TimedOut { .. })));
        let nobody: Endpoint = "unix:/nonexistent/x.sock".parse().unwrap();
        let client = Client::new(&nobody, Duration::from_secs(1)).unwrap();
        let text = client.ask::<Value>("GET", "/slots", None).unwrap_err().to_string();
        assert!(text.starts_with("unix:/nonexistent/x.sock: cannot connect"), "{text}");
        let token = Endpoint { token_file: Some("/nonexistent/token".into()), ..nobody };
        let text = Client::new(&token, Duration::from_secs(1)).unwrap_err().to_string();
        assert!(text.contains("token file /nonexistent/token"), "{text}");
    }
}
