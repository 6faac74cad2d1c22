//! Swaps as data: what is asked for, what would change, under which policy, and what happens on the way.
//!
//! [`crate::Slots::plan`] turns a [`Change`] into a [`SwapPlan`] without changing anything; [`crate::Slots::commit`] puts
//! a plan into force. The engine runs the protocol between the two and tells of it in [`SwapEvent`]s.

mod conform;
mod event;
mod marker;
mod plan;
mod policy;

pub use conform::{Verdict, Verdicts, check_conformance, device_memory};
pub use event::{MemberStep, SwapEvent, SwapRecord, SwapStage};
pub use marker::SwapMarker;
pub(crate) use plan::moves;
pub use plan::{Change, LayoutMove, Newcomer, SwapPlan, SwapRequest};
pub use policy::{CheckDepth, KvPolicy, Probation, SwapPolicy};
