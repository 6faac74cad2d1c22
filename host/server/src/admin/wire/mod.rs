//! Bodies of the admin endpoints, for both sides.

mod swap;

use std::collections::BTreeMap;

use hotseam_engine::{GroupView, GuardReport, Origin};
use hotseam_slots::{CellId, Class, Digest, Loaded, Rule, SwapRecord, VariantSpec};
use serde::{Deserialize, Serialize};

pub use swap::{
    AssignmentReload, ReloadAnswer, ReloadRequest, RollbackRequest, SwapAnswer, SwapRequest, SwapsView, Wait,
};

/// Answer of `GET /slots`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotsView {
    /// Name of the served model.
    pub model: String,
    /// Every assignment by name.
    pub assignments: BTreeMap<String, AssignmentView>,
    /// Plugins whose code is mapped.
    pub loaded: Vec<Loaded>,
    /// Plugin files in the plugin directories, by variant name; not checked or opened.
    pub available: Vec<String>,
    /// The swap group of the worker, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupView>,
    /// The swap that runs, or is in its probation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<SwapRecord>,
    /// The last swap that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<SwapRecord>,
}

/// One assignment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssignmentView {
    /// Hash of all cells.
    pub digest: Digest,
    /// Hash of what prefill state depends on.
    pub prefill_digest: Digest,
    /// The rules in force, in order.
    pub rules: Vec<Rule>,
    /// Every cell and what serves it.
    pub cells: Vec<CellLine>,
}

/// What serves a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellLine {
    /// The cell in parts.
    #[serde(flatten)]
    pub cell: CellId,
    /// Class of its layer; absent outside the layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// The selector of just this cell.
    pub selector: String,
    /// The variant; a base, where the rule's variant leaves the op out.
    pub variant: VariantSpec,
    /// Hash of code and options.
    pub hash: String,
    /// Number of the live instance.
    pub generation: u64,
}

/// Answer of `GET /trace`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceView {
    /// The assignment.
    pub assignment: String,
    /// Hash of all cells.
    pub digest: Digest,
    /// Steps complete.
    pub step: u64,
    /// Every cell and how often it ran since the assignment was last changed.
    pub cells: Vec<TraceLine>,
    /// Whose KV the assignment, as it is now, has read.
    #[serde(default)]
    pub origins: Vec<Origin>,
}

/// A receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceLine {
    /// The cell and what serves it.
    #[serde(flatten)]
    pub line: CellLine,
    /// Calls.
    pub calls: u64,
    /// Rows in those calls; for `kv_transport` the items.
    pub rows: u64,
}

/// Answer of `GET /stats`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsView {
    /// Name of the served model.
    pub model: String,
    /// Steps complete.
    pub step: u64,
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Full KV pages that are free.
    pub free_pages: usize,
    /// Full KV pages.
    pub total_pages: usize,
    /// Prompt tokens processed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Replaced snapshots that a step still uses.
    pub retired_snapshots: usize,
    /// What the guard has seen; all zero unless `engine.guard` is set.
    #[serde(default)]
    pub guard: GuardReport,
}

/// Body of `PUT /assignments/NAME`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefineRequest {
    /// An assignment whose rules come first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extends: Option<String>,
    /// The rules; later ones win.
    pub rules: Vec<Rule>,
}

/// Body of `POST /variant`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantRequest {
    /// The variant.
    #[serde(rename = "use")]
    pub variant: VariantSpec,
}

/// Answer of `POST /variant`: what the variant is, without any cell using it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariantView {
    /// The variant with all its options, defaults included.
    pub variant: VariantSpec,
    /// SHA-256 of the plugin file.
    pub plugin: String,
    /// Hash of code and options.
    pub hash: String,
    /// Layout of its pool entries; variants of a seam with unlike layouts cannot read each other's.
    pub layout: String,
}
