//! Frames between the leader and a rank.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Bytes of a frame's payload, at most.
const MOST: u64 = 256 << 20;
/// Kind and length.
const HEAD: usize = 12;

/// Why a frame did not come or go.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end is gone.
    #[error("its link is closed")]
    Closed,
    /// Nothing came in time.
    #[error("it was silent for {0:?}")]
    TimedOut(Duration),
    /// What came is no frame.
    #[error("a frame of {0} bytes is too long, at most {MOST} can be")]
    TooLong(u64),
    /// The socket failed.
    #[error("its link failed: {0}")]
    Io(io::Error),
}

impl LinkError {
    fn of(error: io::Error, limit: Duration) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
        match error.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => Self::Closed,
            TimedOut | WouldBlock => Self::TimedOut(limit),
            _ => Self::Io(error),
        }
    }
}

/// One end of a stream of frames, each a kind and bytes. Neither end allocates once its buffers have grown.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    limit: Duration,
}

impl Link {
    /// Two ends; the second one is for another process.
    ///
    /// # Errors
    /// If no socket can be had.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (here, there) = UnixStream::pair()?;
        Ok((Self { stream: here, limit: Duration::ZERO }, there.into()))
    }

    /// The end that this process inherited.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { stream: fd.into(), limit: Duration::ZERO }
    }

    /// Sends a frame whose payload is `parts`, one after another.
    ///
    /// # Errors
    /// If the other end is gone.
    pub fn send(&mut self, kind: u32, parts: &[&[u8]]) -> Result<(), LinkError> {
        let length: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if length > MOST {
            return Err(LinkError::TooLong(length));
        }
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[4..].copy_from_slice(&length.to_le_bytes());
        let failed = |error| LinkError::of(error, Duration::ZERO);
        match parts {
            // One call of the system where there is one part: a step waits for it.
            [part] => write_both(&mut self.stream, &head, part).map_err(failed),
            parts => {
                self.stream.write_all(&head).map_err(failed)?;
                parts.iter().try_for_each(|part| self.stream.write_all(part)).map_err(failed)
            }
        }
    }

    /// Waits for a frame, at most `limit` for each part of it that comes; its payload is then all that is in `into`. Returns its
    /// kind.
    ///
    /// # Errors
    /// If none comes, or the other end is gone; the link is of no use afterwards.
    pub fn receive(&mut self, into: &mut Vec<u8>, limit: Duration) -> Result<u32, LinkError> {
        let failed = |error| LinkError::of(error, limit);
        if self.limit != limit {
            self.stream.set_read_timeout(Some(limit)).map_err(LinkError::Io)?;
            self.limit = limit;
        }
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head).map_err(failed)?;
        let [a, b, c, d, length @ ..] = head;
        let length = u64::from_le_bytes(length);
        if length > MOST {
            return Err(LinkError::TooLong(length));
        }
        into.resize(length as usize, 0);
        self.stream.read_exact(into).map_err(failed)?;
        Ok(u32::from_le_bytes([a, b, c, d]))
    }
}

fn write_both(stream: &mut UnixStream, head: &[u8], part: &[u8]) -> io::Result<()> {
    let mut sent = loop {
        match stream.write_vectored(&[IoSlice::new(head), IoSlice::new(part)]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => break done?,
        }
    };
    if sent < head.len() {
        stream.write_all(&head[sent..])?;
        sent = head.len();
    }
    stream.write_all(&part[sent - head.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(200);

    fn ends() -> (Link, Link) {
        let (here, there) = Link::pair().expect("sockets");
        (here, Link::from_fd(there))
    }

    #[test]
    fn frames_arrive_whole_and_in_order() {
        let (mut here, mut there) = ends();
        let long: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                here.send(1, &[]).unwrap();
                here.send(2, &[b"ab", b"", b"c"]).unwrap();
                here.send(3, &[&long]).unwrap();
                here.send(u32::MAX, &[b"x"]).unwrap();
            });
            let mut frame = vec![9; 10];
            for (kind, payload) in [(1, &b""[..]), (2, b"abc"), (3, &long), (u32::MAX, b"x")] {
                assert_eq!(there.receive(&mut frame, SOON).unwrap(), kind);
                assert!(frame == payload, "the payload of frame {kind}");
            }
        });
    }

    #[test]
    fn what_is_no_frame_is_told_apart() {
        let (here, mut there) = ends();
        let mut frame = Vec::new();
        assert!(matches!(there.receive(&mut frame, SOON), Err(LinkError::TimedOut(SOON))));
        let mut raw = here.stream;
        raw.write_all(&[7, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]).unwrap();
        assert!(matches!(there.receive(&mut frame, SOON), Err(LinkError::TooLong(0xffff_ffff))));
        let (here, mut there) = ends();
        let mut raw = here.stream;
        raw.write_all(&[7, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 2]).unwrap();
        drop(raw);
        assert!(matches!(there.receive(&mut frame, SOON), Err(LinkError::Closed)));
        assert!(matches!(there.send(1, &[b"x"]), Err(LinkError::Closed)));
    }
}
