//! How careful a swap is.

use serde::{Deserialize, Serialize};

/// What becomes of sequences in flight where a swap changes the layout of their KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvPolicy {
    /// The swap is refused (402).
    #[default]
    Refuse,
    /// They end as they are; the assignment admits no new ones meanwhile. If the deadline passes first, the swap is
    /// refused (403).
    Drain,
    /// Their pages are dropped, and prompt and answer so far are prefilled again by the new variants.
    Recompute,
}

/// How much of the conformance suite a new generation must pass before it is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckDepth {
    /// Nothing is checked.
    Off,
    /// One or two cases an op and phase.
    #[default]
    Quick,
    /// Every case.
    Full,
}

/// The time after a commit in which the old generations are kept ready.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Probation {
    /// Steps of the assignment after which it is over; 0 for no probation. Only those count that use a cell that changed:
    /// steps of its phase, or hand-offs.
    pub steps: u32,
    /// Milliseconds after which it is over even if fewer steps ran.
    pub ms: u64,
    /// Milliseconds in a row after which it is over if no request of the assignment runs or waits.
    pub idle_ms: u64,
    /// Whether a step whose numbers are not finite is given up, repeated on the old generations, and rolls the swap back.
    /// It holds for the first `steps` steps, also for those that come after [`Probation::ms`] or [`Probation::idle_ms`].
    pub nan_guard: bool,
    /// How many times slower than before a step may be; `null` for no limit. Steps of as many rows are compared, and only
    /// [`Probation::SLOW_STEPS`] slow ones in a row count.
    pub latency_factor: Option<f32>,
}

impl Probation {
    /// Slow steps in a row that roll a swap back.
    pub const SLOW_STEPS: u32 = 6;
}

impl Default for Probation {
    fn default() -> Self {
        Self { steps: 32, ms: 10_000, idle_ms: 2_000, nan_guard: true, latency_factor: Some(10.0) }
    }
}

/// How careful a swap is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SwapPolicy {
    /// What becomes of sequences whose KV layout changes.
    pub kv: KvPolicy,
    /// Milliseconds that [`KvPolicy::Drain`] waits.
    pub drain_ms: u64,
    /// Conformance of new generations.
    pub conformance: CheckDepth,
    /// Milliseconds that loading, creating and conformance may take together.
    pub prepare_ms: u64,
    /// Steps of the assignment in which new and old variants run side by side before the commit; 0 for none.
    pub shadow_steps: u32,
    /// Largest difference that the shadow lets pass, over the largest value of an output; for ids, share that differs.
    pub shadow_tolerance: f32,
    /// Milliseconds after which the shadow is over even if fewer steps ran.
    pub shadow_ms: u64,
    /// What follows the commit.
    pub probation: Probation,
    /// Whether a swap of a swap group goes on without members that were connected and are not now.
    pub without_absent: bool,
}

impl Default for SwapPolicy {
    fn default() -> Self {
        Self {
            kv: KvPolicy::Refuse,
            drain_ms: 30_000,
            conformance: CheckDepth::Quick,
            prepare_ms: 60_000,
            shadow_steps: 0,
            shadow_tolerance: 0.1,
            shadow_ms: 10_000,
            probation: Probation::default(),
            without_absent: false,
        }
    }
}
