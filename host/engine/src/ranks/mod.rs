//! Tensor-parallel ranks: one engine over several processes.
//!
//! Rank 0 *leads*: it has the requests, the scheduler, the pages of all sequences, the head and the sampler. The others *follow*: each
//! holds its part of the heads and experts and pools of the same sizes, and runs the steps that it is told, on the pages that the
//! leader chose. Nothing but the sums after the attention block and after the experts ([`hotseam_ranks::Collective`]) goes between
//! them in a step.
//!
//! A step names its table by a number under which every rank has built it ([`hotseam_slots::Peers`]), so a swap takes effect on all
//! ranks at the same step, and a table that one rank cannot build is refused before any rank uses it.
//!
//! Each rank has two links to the leader: one for steps, and one for tables and counts, so that a plugin that is loaded for a swap
//! holds up no step.

mod follower;
mod leader;
mod wire;

use crate::{Device, EngineError};
use std::fmt;
use std::path::PathBuf;

pub use follower::{RankEnds, RankParts, follow};
pub use leader::Leader;
pub(crate) use leader::{Elsewhere, Steps};
pub(crate) use wire::StepHead;

/// The tensor-parallel group of an engine.
#[derive(Clone, PartialEq, Eq)]
pub struct RankSettings {
    /// Ranks, this process included.
    pub world: u32,
    /// The program that runs one of the others: `hotseam`.
    pub program: PathBuf,
    /// Its arguments before those that name the inherited files.
    pub args: Vec<String>,
    /// What it needs to know of the model and the plugins; it is handed to [`follow`]'s caller as it is.
    pub spec: String,
    /// What carries the sums.
    pub carrier: Carrier,
}

impl fmt::Debug for RankSettings {
    /// What makes answers differ: neither the program's place nor what it is told.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankSettings").field("world", &self.world).finish_non_exhaustive()
    }
}

/// What carries the sums of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carrier {
    /// NCCL where every rank has a device of its own and the library is there, shared memory otherwise.
    #[default]
    Auto,
    /// Shared host memory, through which values of a device go too.
    Shared,
    /// NCCL.
    Nccl,
}

/// Makes a device's context current on this thread: a rank joins its group before its forward pass has the device.
pub(crate) fn make_current(device: Device) -> Result<Option<hotseam_cuda::Device>, EngineError> {
    match device {
        Device::Cpu => Ok(None),
        Device::Cuda(ordinal) => Ok(Some(hotseam_cuda::Device::open(ordinal)?)),
    }
}
