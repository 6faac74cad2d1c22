//! What the guard found.

use hotseam_slots::CellId;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Violations that are kept; the oldest goes first.
const KEPT: usize = 64;

/// How a call broke the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViolationKind {
    /// A write before or past an output.
    OutOfBounds,
    /// A write to an entry or state row that is not the call's.
    StrayWrite,
    /// Part of an output was not written.
    Unwritten,
    /// NaN or infinity in an output.
    NotFinite,
    /// An id, gate or weight that cannot be.
    OutOfRange,
    /// The same id twice in a row.
    Duplicate,
    /// Fewer or other ids than the contract asks for.
    Missing,
    /// The call changed what it was to read.
    InputChanged,
    /// NaN or infinity came in, from the host's arithmetic after the cell before.
    InputNotFinite,
    /// A KV hand-off delivered other bytes than were sent.
    Transfer,
}

impl ViolationKind {
    /// Name as in codes and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfBounds => "out-of-bounds",
            Self::StrayWrite => "stray-write",
            Self::Unwritten => "unwritten",
            Self::NotFinite => "not-finite",
            Self::OutOfRange => "out-of-range",
            Self::Duplicate => "duplicate",
            Self::Missing => "missing",
            Self::InputChanged => "input-changed",
            Self::InputNotFinite => "input-not-finite",
            Self::Transfer => "transfer",
        }
    }
}

impl fmt::Display for ViolationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call that broke the contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The cell that was called: the writer.
    pub cell: CellId,
    /// Layer; of a hand-off, the layer whose component arrived wrong.
    pub layer: Option<u32>,
    /// Variant that serves the cell.
    pub variant: String,
    /// Hash of its code and options.
    pub hash: String,
    /// What was violated.
    pub kind: ViolationKind,
    /// Name of the argument, or of the component of a hand-off.
    pub argument: String,
    /// Where in it: row and coordinates.
    pub place: String,
    /// What was found there.
    pub detail: String,
    /// Step of the engine; 0 for a hand-off, which lies between steps.
    pub step: u64,
}

impl Violation {
    /// Begin of the codes of requests that failed by a violation.
    pub const CODE: &str = "E-GUARD-";

    /// Stable code: `E-GUARD-` and the kind in capitals.
    pub fn code(&self) -> String {
        format!("{}{}", Self::CODE, self.kind.name().to_uppercase())
    }

    /// The kind in a code that [`Violation::code`] made, as `unwritten`.
    pub fn kind_of(code: &str) -> Option<String> {
        code.strip_prefix(Self::CODE).map(str::to_lowercase)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cell, variant, kind, argument, place, detail, .. } = self;
        let of = match (cell.layer, self.layer) {
            (None, Some(layer)) => format!(" of layer {layer}"),
            _ => String::new(),
        };
        write!(f, "guard: {kind} by {cell}, variant `{variant}`: {argument}{of}, {place}: {detail}")
    }
}

/// What the guard has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardReport {
    /// Whether calls are guarded.
    pub on: bool,
    /// Calls checked.
    pub calls: u64,
    /// Violations in all.
    pub violations: u64,
    /// The last violations, oldest first.
    pub last: Vec<Violation>,
}

/// Where the engine thread writes.
#[derive(Debug, Default)]
pub(crate) struct Log {
    on: AtomicBool,
    calls: AtomicU64,
    violations: AtomicU64,
    last: Mutex<VecDeque<Violation>>,
}

impl Log {
    pub(super) fn turn_on(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    pub(super) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn push(&self, violation: Violation) {
        self.violations.fetch_add(1, Ordering::Relaxed);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(violation);
    }

    pub(crate) fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }

    pub(crate) fn report(&self) -> GuardReport {
        GuardReport {
            on: self.on.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            violations: self.violations(),
            last: self.last.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect(),
        }
    }
}
