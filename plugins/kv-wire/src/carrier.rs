//! What moves bytes beside the connection, where something else than this crate does it.
//!
//! Frames then name memory of the sending side, and the receiving side fetches it into items that it has accepted: nobody
//! else writes them, so rooms, counts and refusals are those of every other medium. The connection carries the frames.

use hotseam_sdk::Result;
use std::fmt;
use std::io;

/// Memory of one side, as a carrier registers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub at: usize,
    /// Bytes, at least 1.
    pub len: usize,
}

/// Bytes that are to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// First byte in the address space of the sending side.
    pub from: u64,
    /// First byte of accepted items of this side.
    pub to: *mut u8,
    /// Bytes, at least 1.
    pub len: usize,
}

/// A library that moves bytes between processes.
pub trait Carrier: fmt::Debug + Send + Sync {
    /// First word of its endpoints.
    fn word(&self) -> &'static str;

    /// Takes other memory in the place of what it had. Nothing is under way, and what was taken before is touched no more once
    /// this returns, whoever asks for it.
    ///
    /// # Errors
    /// If the library does not take the memory.
    ///
    /// # Safety
    /// The spans stay valid until the next call or the end of the carrier.
    unsafe fn register(&self, sending: &[Span], receiving: &[Span]) -> Result<()>;

    /// The sending end of a new connection, and what the receiving end must be told: at most [`MOST_CARD`] bytes.
    ///
    /// # Errors
    /// If the library does not serve, in words for whoever asked for a transfer.
    fn outgoing(&self) -> io::Result<(Vec<u8>, Box<dyn Outgoing>)>;

    /// The receiving end of a new connection, from what the sending end tells.
    ///
    /// # Errors
    /// If the library cannot make anything of it.
    fn incoming(&self, card: &[u8]) -> io::Result<Box<dyn Incoming>>;
}

/// Bytes that a sending end tells, at most.
pub const MOST_CARD: usize = 1 << 20;
/// Bytes of the parts of one frame, at most: what a room that is to be closed waits for.
pub const MOST_PARTS: usize = 32 << 20;

/// The sending end of a connection. It is dropped with the connection.
pub trait Outgoing: Send {
    /// Meets the other end, which meets this one at the same time. It gives up soon after `wanted` says that nobody waits.
    ///
    /// # Errors
    /// If they did not meet in bounded time.
    fn begin(&mut self, _wanted: &dyn Fn() -> bool) -> io::Result<()> {
        Ok(())
    }

    /// Serves the parts of one frame, in the order of frames, where the receiving end cannot fetch them alone. May return
    /// before they were fetched. It gives up soon after `wanted` says that nobody waits.
    ///
    /// # Errors
    /// If the connection is of no more use.
    ///
    /// # Safety
    /// The memory is valid and unchanged until the frame was answered or the end was dropped.
    unsafe fn serve(
        &mut self,
        _parts: &mut dyn Iterator<Item = (*const u8, usize)>,
        _wanted: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        Ok(())
    }
}

/// The receiving end of a connection. It is dropped with the connection.
pub trait Incoming: Send {
    /// Meets the other end, which meets this one at the same time. It gives up soon after `wanted` says that nobody waits.
    ///
    /// # Errors
    /// If they did not meet in bounded time.
    fn begin(&mut self, _wanted: &dyn Fn() -> bool) -> io::Result<()> {
        Ok(())
    }

    /// Fetches all parts of one frame, in the order of frames. Nothing writes them any more when this returns, whatever it
    /// returns. It gives up soon after `wanted` says that nobody waits.
    ///
    /// # Errors
    /// If not all bytes are in place; the connection is of no more use.
    ///
    /// # Safety
    /// The parts may be written until this returns.
    unsafe fn fetch(&mut self, parts: &[Part], wanted: &dyn Fn() -> bool) -> io::Result<()>;

    /// As [`Self::fetch`] of a frame that is refused, where the sending end serves it all the same.
    ///
    /// # Errors
    /// If the connection is of no more use.
    fn pass(&mut self, _lens: &[usize], _wanted: &dyn Fn() -> bool) -> io::Result<()> {
        Ok(())
    }
}
