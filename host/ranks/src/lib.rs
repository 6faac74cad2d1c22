//! The ranks of a tensor-parallel group. Each rank is a process with its part of the heads and experts; the outputs of the attention
//! block and of the experts are sums over all ranks ([`Collective`]).
//!
//! Rank 0 starts the others as its children ([`Children`]), which inherit two sockets ([`Link`]) and a piece of memory ([`Shared`])
//! and end when it ends. When a rank ends, every sum that the others wait for fails and names it: a group ends as a whole. What is
//! said over the links is the engine's.

mod children;
mod collective;
mod link;
mod memory;
mod nccl;
mod shared;

pub use children::{Children, Links, Program};
pub use collective::{Collective, RankError, Values};
pub use link::{Link, LinkError};
pub use nccl::{NCCL_ID, Nccl};
pub use shared::{Breaker, Shared};
