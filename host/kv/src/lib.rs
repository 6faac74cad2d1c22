//! Paged pools, compressor states and the tables that address them. All of it is the host's memory.
//!
//! A *full page* covers 256 positions of one sequence: 64 ratio-4 entries and index keys, and 2 ratio-128 entries, in
//! every layer under the same page number. A *window page* covers 256 positions of window entries and is given back
//! when it has left the window. Compressor *state rows* are handed out singly: a step writes fresh rows and frees the
//! old ones when it commits, so a failed, repeated or shadowed step reads what it read before (design decision 2).
//!
//! Nothing here knows plugins or tensor names; a step is described to plugins by a [`Plan`].

mod alloc;
mod copies;
mod error;
mod footprint;
mod handoff;
mod memory;
mod plan;
mod saved;
mod seq;
mod store;
mod writer;

pub use error::KvError;
pub use footprint::Footprint;
pub use handoff::{Items, Transfer};
pub use plan::{CompressPlan, Plan};
pub use saved::Saved;
pub use seq::SeqKv;
pub use store::{KvConfig, KvStore, LayerLayout, Layout, Place};
pub use writer::{Code, History, LayerCode, PhaseCode, Reach, Run};

/// Positions of a page.
pub const PAGE_TOKENS: usize = 256;
/// State rows that a sequence keeps for ratio-4 groups: the previous group and the open one.
pub const C4_RING: usize = 8;
/// State rows that a sequence keeps for ratio-128 groups: the open one.
pub const C128_RING: usize = 128;
