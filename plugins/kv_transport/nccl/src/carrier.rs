//! NCCL as a carrier: both ends take part in each frame. A communicator of two lives as long as its connection.
//!
//! The regions of the host are host memory, so every frame goes through a buffer on each device. With KV on the device the
//! addresses of the frame's ranges take the place of those in the buffers, and `Comm::load` and `Comm::store` go away; a receiving
//! side would then have to end a communicator before it gives pages back, as `kv_transport/nixl` ends its agent.

use crate::comm::{Comm, ID, RECEIVER, SENDER, id};
use hotseam_kv_wire::{Carrier, Incoming, Outgoing, Part, Span};
use hotseam_sdk::{Host, Result};
use std::fmt;
use std::io;
use std::time::Duration;

/// The carrier of one instance.
pub(crate) struct Nccl {
    pub(crate) device: usize,
    /// How long the other end may keep one waiting.
    pub(crate) patience: Duration,
    pub(crate) host: Host,
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Carrier for Nccl {
    fn word(&self) -> &'static str {
        "nccl"
    }

    unsafe fn register(&self, _sending: &[Span], _receiving: &[Span]) -> Result<()> {
        // Host memory is copied, and needs no registration.
        Ok(())
    }

    fn outgoing(&self) -> io::Result<(Vec<u8>, Box<dyn Outgoing>)> {
        let id = id()?;
        Ok((id.to_vec(), Box::new(self.end(id))))
    }

    fn incoming(&self, card: &[u8]) -> io::Result<Box<dyn Incoming>> {
        let id = card.try_into().map_err(|_| {
            io::Error::other(format!("the sender's card has {} bytes, expected {ID}", card.len()))
        })?;
        Ok(Box::new(self.end(id)))
    }
}

impl Nccl {
    fn end(&self, id: [u8; ID]) -> End {
        End { device: self.device, id, patience: self.patience, host: self.host, comm: None }
    }
}

/// One end of a connection.
struct End {
    device: usize,
    id: [u8; ID],
    patience: Duration,
    host: Host,
    comm: Option<Comm>,
}

impl End {
    fn meet(&mut self, rank: std::ffi::c_int, wanted: &dyn Fn() -> bool) -> io::Result<()> {
        self.comm = Some(self.told(Comm::meet(self.device, &self.id, rank, self.patience, wanted))?);
        Ok(())
    }

    fn comm(&self) -> io::Result<&Comm> {
        self.comm.as_ref().ok_or_else(|| io::Error::other("the ends did not meet"))
    }

    /// Logs a failure, of which the other end only sees that the connection ends.
    fn told<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|why| self.host.log("kv_transport/nccl", &why.to_string()))
    }
}

impl Outgoing for End {
    fn begin(&mut self, wanted: &dyn Fn() -> bool) -> io::Result<()> {
        self.meet(SENDER, wanted)
    }

    unsafe fn serve(
        &mut self,
        parts: &mut dyn Iterator<Item = (*const u8, usize)>,
        wanted: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let parts: Vec<(*const u8, usize)> = parts.collect();
        let serve = || {
            let comm = self.comm()?;
            let lens: Vec<usize> = parts.iter().map(|(_, len)| *len).collect();
            // The frame before has left the buffer. Once this one is in it the source is read no more.
            comm.finish("the frame before", wanted)?;
            // SAFETY: the caller's contract; frames are no longer than the buffer.
            unsafe { comm.load(&parts)? };
            comm.exchange(&lens, true, wanted)
        };
        let outcome = serve();
        self.told(outcome)
    }
}

impl Incoming for End {
    fn begin(&mut self, wanted: &dyn Fn() -> bool) -> io::Result<()> {
        self.meet(RECEIVER, wanted)
    }

    unsafe fn fetch(&mut self, parts: &[Part], wanted: &dyn Fn() -> bool) -> io::Result<()> {
        let fetch = || {
            let comm = self.comm()?;
            let lens: Vec<usize> = parts.iter().map(|part| part.len).collect();
            comm.exchange(&lens, false, wanted)?;
            comm.finish("a frame", wanted)?;
            // SAFETY: the caller's contract; only this call writes the parts, and it has ended when it returns.
            unsafe { comm.store(parts.iter().map(|part| (part.to, part.len))) }
        };
        let outcome = fetch();
        self.told(outcome)
    }

    fn pass(&mut self, lens: &[usize], wanted: &dyn Fn() -> bool) -> io::Result<()> {
        let pass = || {
            let comm = self.comm()?;
            comm.exchange(lens, false, wanted)?;
            comm.finish("a frame", wanted)
        };
        let outcome = pass();
        self.told(outcome)
    }
}
