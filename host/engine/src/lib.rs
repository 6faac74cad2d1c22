//! The step loop: chunked prefill, continuous batching and sampling, over one assignment snapshot a step.
//!
//! One thread owns the KV stores and runs steps; everyone else talks to it through an [`Engine`] handle. A step runs
//! sequences of one assignment and one phase. It takes the assignment's snapshot once, at its start, so a swap takes
//! effect between two steps and a step never mixes two generations of a cell.
//!
//! The engine does embedding, norms, dense projections, rope on queries, inverse rope, grouped output projection,
//! shared expert, head and sampling; the seams do the rest, through [`hotseam_slots`].

pub mod bench;
mod config;
mod disagg;
mod engine;
mod error;
mod forward;
mod guard;
mod handoff;
pub mod observe;
mod prefix;
mod provenance;
mod ranks;
mod request;
mod sampler;
mod scheduler;
mod sequence;
mod shadow;
mod swaps;
mod transfer;
mod watch;

pub use config::{CublasLt, Device, EngineConfig, Role, Topology};
pub use disagg::{Finding, FindingKind, KvMap, KvRow, PdSettings};
pub use engine::{Engine, EngineStats};
pub use error::{EngineError, SubmitError};
pub use guard::{GuardReport, Violation, ViolationKind};
pub use hotseam_kv::PAGE_TOKENS;
pub use provenance::Origin;
pub use ranks::{Carrier, Leader, RankEnds, RankParts, RankSettings, follow};
pub use request::{Bootstrap, Event, FinishReason, Handle, Request, Sampling, StopToken};
pub use swaps::{GroupView, MemberView, PeerSwap, SwapError, SwapSettings, Swaps};
