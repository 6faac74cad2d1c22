//! Addresses, listeners and streams of both media.

use hotseam_sdk::{Error, Result};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::frame::Token;

/// What connections are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// TCP.
    Tcp,
    /// Unix sockets in the abstract namespace, over which shared memory is named.
    Shared,
    /// TCP, over which memory is named that a carrier fetches; with the carrier's word.
    Carried(&'static str),
}

/// Where a receiving side listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Host and port, as they are reached from elsewhere.
    Tcp(SocketAddr),
    /// Name of an abstract Unix socket.
    Shared(String),
    /// Word of a carrier, and host and port of the connection beside it.
    Carried(&'static str, SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp {address}"),
            Self::Shared(name) => write!(f, "shm {name}"),
            Self::Carried(word, address) => write!(f, "{word} {address}"),
        }
    }
}

/// An address and the token that opens it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: Address,
    pub(crate) token: Token,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.address)?;
        self.token.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Endpoint {
    /// Reads what [`fmt::Display`] writes.
    pub(crate) fn parse(text: &str, medium: Medium) -> Result<Self> {
        let wrong = || {
            let form = match medium {
                Medium::Tcp => "tcp ADDRESS:PORT",
                Medium::Shared => "shm NAME",
                Medium::Carried(word) => &format!("{word} ADDRESS:PORT"),
            };
            let shown: String = text.chars().take(80).collect();
            Error::argument(format!("expected an endpoint such as `{form} TOKEN`, found `{shown}`"))
        };
        let mut words = text.split(' ');
        let (Some(kind), Some(place), Some(token), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(wrong());
        };
        let address = match (medium, kind) {
            (Medium::Tcp, "tcp") => Address::Tcp(place.parse().map_err(|_| wrong())?),
            (Medium::Carried(word), found) if word == found => {
                Address::Carried(word, place.parse().map_err(|_| wrong())?)
            }
            (Medium::Shared, "shm") if (1..=100).contains(&place.len()) => Address::Shared(place.to_owned()),
            _ => return Err(wrong()),
        };
        let digits = token.as_bytes();
        if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(wrong());
        }
        let mut bytes = Token::default();
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self { address, token: bytes })
    }
}

/// Random bytes of the system.
pub(crate) fn random() -> io::Result<Token> {
    let mut bytes = Token::default();
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A listener.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Shared(UnixListener),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    shut: AtomicBool,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Shared(UnixStream),
}

impl From<Socket> for Stream {
    fn from(socket: Socket) -> Self {
        Self { socket, shut: AtomicBool::new(false) }
    }
}

impl Listener {
    /// Listens, and returns where: at `listen`, or under a new name.
    pub(crate) fn bind(medium: Medium, listen: SocketAddr) -> io::Result<(Self, Address)> {
        match medium {
            Medium::Tcp | Medium::Carried(_) => {
                let listener = TcpListener::bind(listen)?;
                let address = listener.local_addr()?;
                listener.set_nonblocking(true)?;
                let address = match medium {
                    Medium::Carried(word) => Address::Carried(word, address),
                    _ => Address::Tcp(address),
                };
                Ok((Self::Tcp(listener), address))
            }
            Medium::Shared => {
                let digits: String = random()?.iter().map(|byte| format!("{byte:02x}")).collect();
                let name = format!("hotseam-kv-{}-{digits}", std::process::id());
                let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name)?)?;
                listener.set_nonblocking(true)?;
                Ok((Self::Shared(listener), Address::Shared(name)))
            }
        }
    }

    /// A connection, if one comes within `patience`. Over Unix sockets only processes of this user are let in.
    pub(crate) fn accept(&self, patience: Duration) -> io::Result<Option<Stream>> {
        let fd = match self {
            Self::Tcp(listener) => listener.as_raw_fd(),
            Self::Shared(listener) => listener.as_raw_fd(),
        };
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, which lives through the call.
        if unsafe { libc::poll(&raw mut poll, 1, patience.as_millis() as i32) } <= 0 {
            return Ok(None);
        }
        let accepted = match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| Socket::Tcp(stream)),
            Self::Shared(listener) => listener.accept().map(|(stream, _)| Socket::Shared(stream)),
        };
        let socket = match accepted {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            accepted => accepted?,
        };
        match &socket {
            Socket::Tcp(tcp) => {
                tcp.set_nonblocking(false)?;
                tcp.set_nodelay(true)?;
            }
            Socket::Shared(unix) => {
                unix.set_nonblocking(false)?;
                if !same_user(unix.as_raw_fd()) {
                    return Ok(None);
                }
            }
        }
        Ok(Some(socket.into()))
    }
}

/// Whether the process at the other end of a Unix socket runs as the user of this one.
fn same_user(fd: RawFd) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `len` are writable and `len` is the size of `peer`.
    let code = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
    };
    // SAFETY: geteuid has no preconditions.
    code == 0 && peer.uid == unsafe { libc::geteuid() }
}

impl Stream {
    /// Connects, for `patience` at most.
    pub(crate) fn connect(address: &Address, patience: Duration) -> io::Result<Self> {
        match address {
            Address::Tcp(address) | Address::Carried(_, address) => {
                let stream = TcpStream::connect_timeout(address, patience)?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream).into())
            }
            Address::Shared(name) => {
                let stream = UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?)?;
                Ok(Socket::Shared(stream).into())
            }
        }
    }

    /// Limits how long one read or write may wait.
    pub(crate) fn limit(&self, read: Duration, write: Duration) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(read))?;
                stream.set_write_timeout(Some(write))
            }
            Socket::Shared(stream) => {
                stream.set_read_timeout(Some(read))?;
                stream.set_write_timeout(Some(write))
            }
        }
    }

    /// Ends both directions, which wakes whoever reads or writes.
    pub(crate) fn shutdown(&self) {
        self.shut.store(true, Ordering::Release);
        // It may be closed already.
        let _ = match &self.socket {
            Socket::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Socket::Shared(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }

    /// Whether this side has ended it.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    /// Whether it can bring files: it is one between processes of this machine.
    pub(crate) fn brings_files(&self) -> bool {
        matches!(self.socket, Socket::Shared(_))
    }

    pub(crate) fn fd(&self) -> RawFd {
        match &self.socket {
            Socket::Tcp(stream) => stream.as_raw_fd(),
            Socket::Shared(stream) => stream.as_raw_fd(),
        }
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match &self.socket {
            Socket::Tcp(stream) => (&mut &*stream).read(bytes),
            Socket::Shared(stream) => (&mut &*stream).read(bytes),
        }
    }

    /// Fills `bytes`. Before the first of them it waits as long as `idle` says to; afterwards for one time limit each.
    /// Returns whether the other side ended instead of sending the first byte.
    pub(crate) fn fill(&self, bytes: &mut [u8], mut idle: impl FnMut() -> bool) -> io::Result<bool> {
        let mut at = 0;
        while at < bytes.len() {
            match self.read(&mut bytes[at..]) {
                Ok(0) if at == 0 => return Ok(true),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => at += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && at == 0 && idle() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Writes all of `slices`, in one call of the system where it takes all.
    pub(crate) fn send(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let wrote = match &self.socket {
                Socket::Tcp(stream) => (&mut &*stream).write_vectored(slices),
                Socket::Shared(stream) => (&mut &*stream).write_vectored(slices),
            };
            match wrote {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut slices, n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// As [`Self::send`], of one piece.
    pub(crate) fn send_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        self.send(&mut [IoSlice::new(bytes)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_they_are_written() {
        let token = *b"0123456789abcdef";
        for (medium, address) in [
            (Medium::Tcp, Address::Tcp("127.0.0.1:80".parse().unwrap())),
            (Medium::Shared, Address::Shared("hotseam-kv-1-ff".into())),
            (Medium::Carried("nixl"), Address::Carried("nixl", "[::1]:80".parse().unwrap())),
        ] {
            let endpoint = Endpoint { address, token };
            assert_eq!(Endpoint::parse(&endpoint.to_string(), medium), Ok(endpoint));
        }
        for text in [
            "",
            "tcp",
            "tcp 1 2",
            "tcp 127.0.0.1:80 00",
            "shm x 00112233445566778899aabbccddeeff",
            "tcp a b c",
        ] {
            let error = Endpoint::parse(text, Medium::Tcp).unwrap_err();
            assert!(error.message.contains("tcp ADDRESS:PORT TOKEN"), "{text}: {error}");
        }
        let hex = "tcp 127.0.0.1:80 00112233445566778899aabbccddeégg";
        assert!(Endpoint::parse(hex, Medium::Tcp).is_err());
    }
}
