//! How the workers of a pair meet. A prefill worker has a *registry* on its API port, where decode workers learn its control
//! address, and a *control* listener. A decode worker connects there, shows the fingerprint of its layouts, and for each
//! `bootstrap_room` names the pages and rows that the KV is to go to. The KV itself goes through the `kv_transport` seam.
//!
//! Nothing here knows engines, plugins or HTTP frameworks. Threads of this crate read and write the connections; an engine
//! hears of them through a function that it gives, and answers through channels, so that it never waits for a network.

mod decode;
mod fingerprint;
mod group;
mod http;
mod message;
mod prefill;
mod registry;

pub use decode::{DecodeEvent, DecodeSide, Patience};
pub use fingerprint::Fingerprint;
pub use group::{Group, GroupEvent, GroupMessage, Order, Pending, Prepare, ServedWith, shown};
pub use message::{
    COMPONENTS, Done, MOST_MESSAGE, Reserve, Sums, ToDecode, ToPrefill, WireError, Writer, WriterLayer, read,
    write,
};
pub use prefill::{PrefillEvent, PrefillSide};
pub use registry::{Rank, Registry};
