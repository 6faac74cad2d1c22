//! What happens on the way of a swap.

use crate::cell::CellId;
use serde::{Deserialize, Serialize};

/// Something that happened. The last event of a swap is one for which [`SwapStage::is_end`] holds; events about old
/// generations may follow it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwapEvent {
    /// Number of the swap, rising in the process.
    pub id: u64,
    /// The assignment.
    pub assignment: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Steps that the engine had run.
    pub step: u64,
    /// What happened.
    #[serde(flatten)]
    pub stage: SwapStage,
}

/// Stages of a swap, in order, and the ways in which it ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum SwapStage {
    /// New generations exist and the difference is known.
    Planned {
        /// Cells that change.
        cells: usize,
        /// Pools whose layout changes.
        layouts: usize,
        /// Time it took.
        ms: u64,
    },
    /// A new generation passed the conformance cases.
    Conformed {
        /// Its variant.
        variant: String,
        /// Its hash.
        hash: String,
        /// Whether the verdict was remembered.
        cached: bool,
        /// Cases that passed.
        cases: usize,
        /// Time it took.
        ms: u64,
    },
    /// New and old ran side by side.
    Shadowed {
        /// Steps.
        steps: u32,
        /// Calls that were compared.
        calls: u64,
        /// Largest difference, as the tolerance counts it.
        worst: f32,
        /// Where it was.
        cell: Option<CellId>,
    },
    /// A worker of the swap group has come so far with this swap.
    Member {
        /// The worker.
        worker: String,
        /// How far it is. Not `step`, which is a number of the event around this.
        reached: MemberStep,
        /// Why, if it does not go along.
        message: Option<String>,
    },
    /// The assignment waits for its sequences to end.
    Draining {
        /// Sequences left.
        left: usize,
    },
    /// Steps from here on use the new variants.
    Committed {
        /// Cells that changed.
        cells: usize,
        /// Time that it took to put the new table in place. Steps did not wait for it.
        micros: u64,
    },
    /// A step failed on the new variants and was repeated on the old ones.
    Retried {
        /// `E-PLUG` number: 501 or 502.
        code: u16,
        /// What failed.
        message: String,
    },
    /// End: the swap is done and probation is over.
    Kept {
        /// Steps of the assignment in probation.
        steps: u32,
        /// Sequences that were prefilled again for another layout.
        recomputed: usize,
        /// Mean step time against that before, where both are known.
        latency: Option<f32>,
    },
    /// End: nothing to do, every cell already runs this code.
    AlreadyActive,
    /// End: refused before the commit; nothing has changed.
    Refused {
        /// `E-PLUG` number, if it has one.
        code: Option<u16>,
        /// Why.
        message: String,
    },
    /// End: the old variants are back.
    RolledBack {
        /// `E-PLUG` number: 501 or 502; 0 if a person took the swap back.
        code: u16,
        /// Why.
        message: String,
    },
    /// Old generations have ended.
    Retired {
        /// Time since the commit or the rollback.
        ms: u64,
    },
    /// Old generations are still in use (503).
    RetireStuck {
        /// Snapshots in use.
        holders: usize,
        /// Time since the commit or the rollback.
        ms: u64,
    },
    /// More plugin files are mapped than the limit (504); code is never unmapped, so a restart is advised.
    MappedOverLimit {
        /// Files mapped.
        mapped: usize,
        /// The limit.
        limit: usize,
    },
}

/// How far a worker of a swap group is with a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberStep {
    /// It has been asked to prepare.
    Asked,
    /// It is ready to commit.
    Prepared,
    /// Nothing of the old layout is on the way to it or from it.
    Quiet,
    /// Its steps use the new variants.
    Committed,
    /// Its probation is over, and all is well.
    Well,
    /// It keeps the new variants.
    Kept,
    /// The old variants are back, or were never left.
    Back,
    /// It does not go along.
    Failed,
    /// Its connection has ended.
    Gone,
}

impl SwapStage {
    /// Whether the swap has ended with it.
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Self::Kept { .. } | Self::AlreadyActive | Self::Refused { .. } | Self::RolledBack { .. }
        )
    }

    /// `E-PLUG` number of what went wrong.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Retried { code, .. } | Self::RolledBack { code, .. } => Some(*code),
            Self::Refused { code, .. } => *code,
            Self::RetireStuck { .. } => Some(503),
            Self::MappedOverLimit { .. } => Some(504),
            _ => None,
        }
    }
}

/// One swap, past or running.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwapRecord {
    /// Number of the swap.
    pub id: u64,
    /// The assignment.
    pub assignment: String,
    /// Who asked for it.
    pub who: String,
    /// The change in words.
    pub change: String,
    /// Milliseconds since 1970 at which it began.
    pub began_ms: u64,
    /// Hashes of the generations that it brings in; empty until it is planned.
    pub hashes: Vec<String>,
    /// The last stage; `None` until it is planned.
    pub stage: Option<SwapStage>,
    /// How it ended; `None` while it runs.
    pub end: Option<SwapStage>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stage lies flat in its event, so none of its fields may have the name of one of the event's.
    #[test]
    fn an_event_of_a_member_is_read_back() {
        let stage = SwapStage::Member {
            worker: "w".into(),
            reached: MemberStep::Prepared,
            message: Some("late".into()),
        };
        let event = SwapEvent { id: 3, assignment: "live".into(), at_ms: 5, step: 7, stage };
        let text = serde_json::to_string(&event).expect("JSON");
        assert_eq!(serde_json::from_str::<SwapEvent>(&text).expect(&text), event);
    }
}
