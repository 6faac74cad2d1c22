//! Bodies of the endpoints that change assignments.

use hotseam_slots::{
    CellChange, Change, KvPolicy, LayoutMove, Newcomer, Rule, Selector, SwapPolicy, SwapRecord, SwapStage,
    VariantSpec,
};
use serde::{Deserialize, Serialize};

/// What `POST /swap` waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Nothing: the answer is the swap's number, and `GET /events` tells how it goes on.
    Begin,
    /// Steps use the new variants, or they were refused.
    #[default]
    Commit,
    /// Probation is over: the new variants stay, or the old ones are back.
    End,
}

/// Body of `POST /swap`. It names cells and their variant, or a whole list of rules.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwapRequest {
    /// The cells; with `!` they go back to what the assignment was defined with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select: Option<Selector>,
    /// The variant; absent exactly for a selector with `!`.
    #[serde(rename = "use", default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<VariantSpec>,
    /// All rules, in place of those that are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<Rule>>,
    /// The assignment; `live` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignment: Option<String>,
    /// Load the variant and say what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// How careful.
    #[serde(default)]
    pub policy: SwapPolicy,
    /// What to wait for.
    #[serde(default)]
    pub wait: Wait,
}

impl SwapRequest {
    /// The change that is asked for.
    ///
    /// # Errors
    /// Text that says what is there beside what, or what is missing.
    pub(crate) fn change(&self) -> Result<Change, String> {
        match (&self.select, &self.rules) {
            (Some(select), None) => Ok(Change::Add(vec![Rule::new(select.clone(), self.variant.clone())?])),
            (None, Some(rules)) if self.variant.is_none() => Ok(Change::Replace(rules.clone())),
            (None, None) => Err("expected `select`, or all `rules`, found neither".to_owned()),
            _ => Err("expected `select` and `use`, or all `rules`, found both".to_owned()),
        }
    }
}

/// Body of `POST /rollback`; may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// The assignment; `live` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignment: Option<String>,
    /// Say what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// What becomes of sequences whose KV layout changes, if the swap is out of its probation.
    #[serde(default)]
    pub kv: KvPolicy,
    /// Whether a swap of a swap group goes on without members that are not connected.
    #[serde(default)]
    pub without_absent: bool,
}

/// Answer of `POST /swap` and `POST /rollback`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwapAnswer {
    /// Number of the swap; absent if nothing was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<u64>,
    /// The assignment.
    pub assignment: String,
    /// True if nothing was changed because nothing was to be.
    pub dry_run: bool,
    /// Steps complete when the change was made. Every step that began after it uses the new variants, so step
    /// `step + 2` surely does, and step `step + 1` does unless it was already running.
    pub step: u64,
    /// The cells that change, or changed; empty if it was already so.
    pub changes: Vec<CellChange>,
    /// Pools whose KV layout changes: without a policy for it, such a swap is refused with E-PLUG-402.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layouts: Vec<LayoutMove>,
    /// Generations that come in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub newcomers: Vec<Newcomer>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<SwapStage>,
}

/// Answer of `GET /swaps`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwapsView {
    /// The last swaps, oldest first; one that runs is the last.
    pub swaps: Vec<SwapRecord>,
}

/// Body of `POST /reload`; may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReloadRequest {
    /// Read the file and say what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// What becomes of sequences whose KV layout changes.
    #[serde(default)]
    pub kv: KvPolicy,
}

/// What a reload does to one assignment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum AssignmentReload {
    /// It is as the file says.
    Unchanged {
        /// The assignment.
        assignment: String,
    },
    /// It is new.
    Defined {
        /// The assignment.
        assignment: String,
    },
    /// The file names it no more.
    Removed {
        /// The assignment.
        assignment: String,
    },
    /// Its rules changed.
    Swapped(SwapAnswer),
    /// Its rules changed, and the change was refused; it stays as it was.
    Refused {
        /// The assignment.
        assignment: String,
        /// `E-PLUG` number, or a word.
        code: String,
        /// Why.
        message: String,
    },
}

impl AssignmentReload {
    /// Assignment and outcome, for the log.
    pub(crate) fn summary(&self) -> String {
        match self {
            Self::Unchanged { assignment } => format!("{assignment}: unchanged"),
            Self::Defined { assignment } => format!("{assignment}: defined"),
            Self::Removed { assignment } => format!("{assignment}: removed"),
            Self::Swapped(SwapAnswer { assignment, swap: Some(id), .. }) => {
                format!("{assignment}: swap {id}")
            }
            Self::Swapped(SwapAnswer { assignment, .. }) => format!("{assignment}: unchanged"),
            Self::Refused { assignment, code, .. } => format!("{assignment}: refused, {code}"),
        }
    }
}

/// Answer of `POST /reload`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReloadAnswer {
    /// The file.
    pub file: String,
    /// True if nothing was changed because nothing was to be.
    pub dry_run: bool,
    /// What became of each assignment.
    pub assignments: Vec<AssignmentReload>,
    /// Fields that differ and take effect only at the next start.
    pub needs_restart: Vec<String>,
}
