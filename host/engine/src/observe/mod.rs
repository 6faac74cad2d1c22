//! Looking at the calls of one request while they are made.
//!
//! An [`Observer`] is given to [`crate::Engine::observe`] together with its request, whose steps are then run alone. It
//! stands around every seam call: it may run other variants on the same inputs with outputs of their own ([`Scratch`]),
//! read inputs and outputs, make the call or not, and replace what it wrote. Requests without an observer pay one branch
//! a call and nothing else.
//!
//! A call's arguments are in host memory or in a device's ([`Memory`]), and so are its scratch outputs. Nobody follows a
//! pointer of them without asking which. What computes on the CPU, truth above all, takes the inputs from [`OnHost`].

mod block;
mod call;
mod handed;
mod memory;
mod on_host;
mod places;
mod scratch;

pub use block::{Block, POISON};
pub use call::{Call, Observer, Stepping};
pub use handed::Handed;
pub use hotseam_slots::Args;
pub use memory::{Memory, Room};
pub use on_host::OnHost;
pub use places::{Entry, Kind, Place, places};
pub use scratch::{PoolLayout, Scratch, Stray};

pub(crate) use call::{Observed, Probe};
pub(crate) use on_host::HostCopies;
pub(crate) use places::rows;
