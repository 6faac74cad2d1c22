//! What the KV transports share: registered regions with checked copies, and for those between processes a receiving side with
//! rooms, a sending side with peers, and the checksummed frames between them.
//!
//! The receiving side does every write itself and writes only items that the host has accepted for an open room, so neither a
//! late frame nor a stranger's reaches a page that belongs to another request. A frame is sent again after a broken connection
//! until it was acknowledged; writing it twice does no harm, since the source does not change until its ticket is done.

mod carrier;
mod frame;
mod memory;
mod net;
mod plugin;
mod receive;
mod regions;
mod rooms;
mod send;
mod sum;
mod tickets;
mod wire;

pub use carrier::{Carrier, Incoming, MOST_CARD, MOST_PARTS, Outgoing, Part, Span};
pub use net::{Address, Medium};
pub use plugin::{Options, Transport, address};
pub use regions::Regions;
pub use tickets::Progress;
pub use wire::{Settings, Wire};
