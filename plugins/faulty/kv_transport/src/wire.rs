//! Between two processes: what a fault makes of the items is written into memory of this plugin, and sent from there over TCP.
//!
//! So every fault acts on the sending side, as it would inside one process, and what it leaves out arrives as zeros.

use crate::regions;
use hotseam_kv_wire::{Medium, Settings, Wire};
use hotseam_sdk::Result;
use hotseam_sdk::abi::Region;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// How long a receiving side may be out of reach before puts to it fail.
const PATIENCE: Duration = Duration::from_secs(5);

/// A wire with the memory that it sends from.
pub(crate) struct Shadowed {
    /// Dropped first: its threads read `memory`.
    wire: Wire,
    memory: Vec<Vec<u64>>,
}

impl Shadowed {
    pub(crate) fn new() -> Self {
        let settings = Settings {
            medium: Medium::Tcp,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            patience: PATIENCE,
        };
        Self { wire: Wire::new(settings), memory: Vec::new() }
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Registers `regions` with the wire. Returns them as faults are to see them: where no receiving side is in this process,
    /// it is memory of the same shape as the sending side, from which the wire sends.
    pub(crate) fn register(&mut self, all: &[Region]) -> Result<Vec<Region>> {
        let (mut seen, mut sent, mut memory) = (all.to_vec(), all.to_vec(), Vec::new());
        for (seen, sent) in seen.iter_mut().zip(&mut sent).filter(|(region, _)| region.dst_items == 0) {
            let bytes = (sent.src_items * sent.item_bytes) as usize;
            let mut own = vec![0u64; bytes.div_ceil(8)];
            (seen.dst, seen.dst_items) = (own.as_mut_ptr().cast(), seen.src_items);
            (sent.src, sent.src_fd) = (own.as_ptr().cast(), -1);
            memory.push(own);
        }
        // SAFETY: the host keeps its sides valid until the next register or the end of the instance (contract); `memory` is kept
        // as long, and is only replaced after the threads that read the old one have ended, which this call waits for.
        unsafe { self.wire.register(&sent)? };
        self.memory = memory;
        Ok(seen)
    }
}

/// Zeros the memory that stands for the receiving side, so that what a fault leaves out is not sent from the request before.
pub(crate) fn clear(region: &Region, items: &[i32]) {
    let zeros = vec![0; region.item_bytes as usize];
    items.iter().for_each(|item| regions::write(region, *item, &zeros));
}
