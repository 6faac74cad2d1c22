//! The ranks of a tensor-parallel group. Each rank is a process with its part of the heads and experts; the outputs of the attention
//! block and of the experts are sums over all ranks.

mod collective;

pub use collective::{Collective, RankError, Values};
