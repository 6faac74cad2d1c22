//! Looking at the calls of one request while they are made.
//!
//! An [`Observer`] is given to [`crate::Engine::observe`] together with its request, whose steps are then run alone. It
//! stands around every seam call: it may run other variants on the same inputs with outputs of their own ([`Scratch`]),
//! read inputs and outputs, make the call or not, and replace what it wrote. Requests without an observer pay one branch
//! a call and nothing else.

mod block;
mod call;
mod handed;
mod places;
mod scratch;

pub use block::{Block, POISON};
pub use call::{Call, Observer, Stepping};
pub use handed::Handed;
pub use hotseam_slots::Args;
pub use places::{Entry, Kind, Place, places};
pub use scratch::{PoolLayout, Scratch, Stray};

pub(crate) use call::{Observed, Probe};
pub(crate) use places::{rows, slice};
