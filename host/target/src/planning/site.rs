//! Where assignments live: the slots of an engine in this process, or those of a server.

use std::error::Error;

use hotseam_slots::{Cell, Rule, VariantSpec};
use serde_json::Value;

/// Why an assignment or a variant is refused.
pub(crate) type Refused = Box<dyn Error + Send + Sync>;

/// What a planner asks of the place where assignments live.
pub(crate) trait Site {
    /// Defines an assignment anew, with receipts at zero, and says what its cells run.
    fn define(&self, name: &str, rules: &[Rule]) -> Result<Resolved, Refused>;

    /// Removes an assignment; it may be gone already.
    fn remove(&self, name: &str);

    /// Whether a variant has an option and takes a value for it.
    fn accepts(&self, variant: &str, option: &str, value: &Value) -> Result<bool, Refused>;

    /// Identity of the pool layout of a variant: two variants of a seam that differ in it cannot read each other's
    /// entries.
    fn layout(&self, variant: &VariantSpec) -> Result<String, Refused>;
}

/// An assignment as it is defined.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    /// Identity of all its cells.
    pub(crate) digest: String,
    pub(crate) cells: Vec<Served>,
}

/// A cell and what serves it.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) cell: Cell,
    pub(crate) by: End,
}

/// What serves a cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct End {
    /// The variant with all its options, defaults included.
    pub(crate) spec: VariantSpec,
    /// Identity of the plugin's code.
    pub(crate) plugin: String,
    /// Identity of code and options.
    pub(crate) hash: String,
}
