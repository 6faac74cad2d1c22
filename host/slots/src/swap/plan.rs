//! What a swap would change.

use super::policy::SwapPolicy;
use crate::diff::CellChange;
use crate::digest::Digest;
use crate::effective::Resolved;
use crate::error::SlotsError;
use crate::generation::Generation;
use crate::rule::Rule;
use crate::snapshot::{Layout, Snapshot};
use crate::variant::VariantSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A change of the rules of an assignment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Adds rules, which win over those that are there. Only variants that they name are read from disk.
    Add(Vec<Rule>),
    /// Puts a whole list in place of the old one, as a new configuration does. Every variant is read from disk.
    Replace(Vec<Rule>),
    /// Takes the last change back.
    Back,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, rules: &[Rule]| {
            rules.iter().enumerate().try_for_each(|(i, rule)| {
                f.write_str(if i == 0 { "" } else { ", " })?;
                write!(f, "{rule}")
            })
        };
        match self {
            Self::Add(rules) => list(f, rules),
            Self::Replace(rules) => {
                f.write_str("all rules: ")?;
                list(f, rules)
            }
            Self::Back => f.write_str("take the last change back"),
        }
    }
}

/// A swap as it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct SwapRequest {
    /// The assignment.
    pub assignment: String,
    /// The change of its rules.
    pub change: Change,
    /// How careful.
    pub policy: SwapPolicy,
    /// Who asks, for the log.
    pub who: String,
}

/// A pool whose entries would look different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutMove {
    /// Layer.
    pub layer: usize,
    /// `kv` or `index key`.
    pub pool: String,
    /// Layout in use.
    pub from: String,
    /// Layout after the swap.
    pub to: String,
}

/// A generation that the swap brings in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newcomer {
    /// Its variant.
    pub variant: VariantSpec,
    /// Hash of code and options.
    pub hash: String,
    /// Hash of the plugin's file.
    pub plugin: String,
    /// Cells that it serves.
    pub cells: usize,
}

/// What a swap would change; everything that is needed to put it into force is ready. Nothing has changed yet.
#[derive(Debug, Clone, Serialize)]
pub struct SwapPlan {
    /// The assignment.
    pub assignment: String,
    /// Rules in force.
    pub rules_before: Vec<Rule>,
    /// Rules after the swap.
    pub rules_after: Vec<Rule>,
    /// Cells that change; empty if the assignment is already so.
    pub changes: Vec<CellChange>,
    /// Pools whose layout changes.
    pub layouts: Vec<LayoutMove>,
    /// Generations that no cell of the assignment uses now.
    pub newcomers: Vec<Newcomer>,
    /// Digest of all cells before.
    pub digest_before: Digest,
    /// Digest of all cells after.
    pub digest_after: Digest,
    /// The table in force when it was planned.
    #[serde(skip)]
    pub(crate) from: Arc<Snapshot>,
    /// The table to put in its place.
    #[serde(skip)]
    pub(crate) to: Arc<Snapshot>,
    /// Rules in force when it was planned, and how many of them came with the definition.
    #[serde(skip)]
    pub(crate) before: (Vec<Resolved>, usize),
    #[serde(skip)]
    pub(crate) rules: Vec<Resolved>,
    /// How many of them came with the definition.
    #[serde(skip)]
    pub(crate) defined: usize,
    /// Whether the change can be taken back afterwards.
    #[serde(skip)]
    pub(crate) is_rollback: bool,
}

impl SwapPlan {
    /// The table in force when it was planned.
    pub fn from(&self) -> &Arc<Snapshot> {
        &self.from
    }

    /// The table to put in its place.
    pub fn to(&self) -> &Arc<Snapshot> {
        &self.to
    }

    /// The generations that no cell of the assignment uses now.
    pub fn generations(&self) -> Vec<Arc<Generation>> {
        newcomers(&self.from, &self.to).into_values().map(|(generation, _)| generation).collect()
    }

    /// Refuses a plan that changes a layout.
    ///
    /// # Errors
    /// [`SlotsError::LayoutChange`] for the first such pool.
    pub fn refuse_layouts(&self) -> Result<(), SlotsError> {
        match self.layouts.first() {
            None => Ok(()),
            Some(first) => Err(SlotsError::layout_change(&self.assignment, first.clone())),
        }
    }

    pub(crate) fn describe_newcomers(from: &Snapshot, to: &Snapshot) -> Vec<Newcomer> {
        newcomers(from, to)
            .into_values()
            .map(|(generation, cells)| Newcomer {
                variant: generation.spec.clone(),
                hash: generation.hash.clone(),
                plugin: generation.instance.plugin().sha256().to_owned(),
                cells,
            })
            .collect()
    }
}

/// The generations of `to` that `from` does not use, by id, with the number of cells that they serve.
fn newcomers(from: &Snapshot, to: &Snapshot) -> BTreeMap<u64, (Arc<Generation>, usize)> {
    let known: Vec<u64> = from.generations().iter().map(|generation| generation.id).collect();
    let mut found = BTreeMap::new();
    for cell in to.cells().filter(|cell| !known.contains(&cell.generation.id)) {
        found.entry(cell.generation.id).or_insert_with(|| (Arc::clone(cell.generation), 0)).1 += 1;
    }
    found
}

/// The pools in which two snapshots differ.
pub(crate) fn moves(old: &Snapshot, new: &Snapshot) -> Vec<LayoutMove> {
    let mut found = Vec::new();
    for layer in 0..old.num_layers() {
        let mut compare = |pool: &str, from: Option<Layout>, to: Option<Layout>| {
            if let (Some(from), Some(to)) = (from, to)
                && from != to
            {
                let (from, to) = (from.to_string(), to.to_string());
                found.push(LayoutMove { layer, pool: pool.to_owned(), from, to });
            }
        };
        compare("kv", Some(old.kv_layout(layer)), Some(new.kv_layout(layer)));
        compare("index key", old.key_layout(layer), new.key_layout(layer));
    }
    found
}
