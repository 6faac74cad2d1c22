//! Why an assignment cannot be built or changed.

use crate::cell::CellId;
use crate::seam::{Phase, Seam};
use hotseam_loader::{Device, LoadError};
use thiserror::Error;

/// A refused assignment or change. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SlotsError {
    /// A plugin was not loaded.
    #[error(transparent)]
    Load(Box<LoadError>),
    /// The plugin that serves the ops a variant leaves out was not loaded.
    #[error("variant `{variant}` needs its base `{base}`: {source}")]
    Base {
        /// Variant asked for.
        variant: String,
        /// Base in its manifest.
        base: String,
        /// Why the base was not loaded.
        source: Box<LoadError>,
    },
    /// A chain of bases comes back to itself.
    #[error(
        "variant `{variant}`: its bases go round in a circle: {chain}. Correct `base` in one of the manifests."
    )]
    BaseCircle {
        /// Variant asked for.
        variant: String,
        /// The chain.
        chain: String,
    },
    /// A base serves another seam than the variant.
    #[error(
        "E-PLUG-206 variant `{variant}`: its base `{base}` serves another seam: expected {expected}, found {found}. \
         Correct `base` in its manifest."
    )]
    BaseSeam {
        /// Variant asked for.
        variant: String,
        /// Base in its manifest.
        base: String,
        /// Seam of the variant.
        expected: Seam,
        /// Seam of the base.
        found: Seam,
    },
    /// A variant runs on another device than what is to call it.
    #[error(
        "E-PLUG-210 variant `{variant}` runs on another device than the engine: expected {expected}, found {found}. Choose \
         a variant that runs on {expected}, or set `engine.device`; `hotseam plugin check` and `hotseam plugin bench` run \
         this one where it belongs.", expected = expected.name(), found = found.name()
    )]
    Device {
        /// The variant.
        variant: String,
        /// Device of the engine.
        expected: Device,
        /// Device of the variant.
        found: Device,
    },
    /// A base runs on another device than the variant.
    #[error(
        "E-PLUG-210 variant `{variant}`: its base `{base}` runs on another device: expected {expected}, found {found}. \
         Correct `base` in its manifest.", expected = expected.name(), found = found.name()
    )]
    BaseDevice {
        /// Variant asked for.
        variant: String,
        /// Base in its manifest.
        base: String,
        /// Device of the variant.
        expected: Device,
        /// Device of the base.
        found: Device,
    },
    /// A rule gives cells of one seam to a variant of another.
    #[error(
        "E-PLUG-206 rule `{selector}`: variant `{variant}` serves another seam: expected {expected}, found {found}. \
         Choose a variant of {expected}."
    )]
    Seam {
        /// Selector of the rule.
        selector: String,
        /// Variant of the rule.
        variant: String,
        /// Seam of the selector.
        expected: Seam,
        /// Seam of the variant.
        found: Seam,
    },
    /// A selector names a layer that the model does not have.
    #[error("selector `{selector}`: layer {layer} does not exist: the model has {layers} layers, 0 to {last}. Correct the range.", last = layers.saturating_sub(1))]
    Layer {
        /// The selector.
        selector: String,
        /// Largest layer in it.
        layer: u32,
        /// Number of layers of the model.
        layers: usize,
    },
    /// A selector matches no cell of this model.
    #[error("selector `{selector}` matches no cell: {why}")]
    NoMatch {
        /// The selector.
        selector: String,
        /// Which cells there are.
        why: String,
    },
    /// A healing rule names cells that no rule before it has given to a variant.
    #[error(
        "rule `{selector}` has nothing to heal: no earlier rule sets {cell}. Put it after the rules that it heals."
    )]
    NothingToHeal {
        /// The selector.
        selector: String,
        /// First such cell.
        cell: CellId,
    },
    /// Some cells have no variant.
    #[error(
        "assignment `{assignment}`: {count} cells have no variant, the first is {cell}. Add a rule, for example \
         {{select: {seam}, use: {seam}/cpu-stock}}."
    )]
    Unfilled {
        /// The assignment.
        assignment: String,
        /// First such cell.
        cell: CellId,
        /// Its seam.
        seam: Seam,
        /// How many there are.
        count: usize,
    },
    /// A variant leaves an op out and has no base for it.
    #[error("cell {cell}: variant `{variant}` has no op `{op}` and no base that has it. {next}")]
    MissingOp {
        /// The cell.
        cell: CellId,
        /// Variant of the cell.
        variant: String,
        /// The op.
        op: String,
        /// What to do.
        next: String,
    },
    /// A variant does not serve a phase.
    #[error(
        "cell {cell}: variant `{variant}` serves {served}, expected {phase}. Give it the cells of that phase only, for \
         example `{hint}`."
    )]
    Phase {
        /// The cell.
        cell: CellId,
        /// Variant that serves the cell.
        variant: String,
        /// Phases that it serves.
        served: String,
        /// Phase of the cell.
        phase: Phase,
        /// A selector that would do.
        hint: String,
    },
    /// Two cells that share a pool have different layouts.
    #[error(
        "cells {a} and {b} share a pool but differ in layout: {a_layout}, but {b_layout}. Give both cells variants of \
         one layout."
    )]
    Layouts {
        /// One cell.
        a: CellId,
        /// Its variant and layout.
        a_layout: String,
        /// The other cell.
        b: CellId,
        /// Its variant and layout.
        b_layout: String,
    },
    /// A change would alter the layout of a pool in use.
    #[error(
        "E-PLUG-402 assignment `{assignment}`: layer {layer}: {pool} layout would change: expected {from}, found {to}. \
         The old variants stay. Sequences in flight hold entries of the old layout: define another assignment, or \
         swap with the policy `drain` or `recompute`."
    )]
    LayoutChange {
        /// The assignment.
        assignment: String,
        /// First such layer.
        layer: usize,
        /// `kv` or `index key`.
        pool: String,
        /// Layout in use.
        from: String,
        /// Layout after the change.
        to: String,
    },
    /// No assignment of that name.
    #[error("no assignment `{name}`. {hint}")]
    UnknownAssignment {
        /// Name asked for.
        name: String,
        /// Nearest name, or all.
        hint: String,
    },
    /// The assignment is no longer what it was when a change was planned.
    #[error("assignment `{name}` was changed by someone else meanwhile. Plan the change again.")]
    Changed {
        /// The assignment.
        name: String,
    },
    /// Another rank of the tensor-parallel group does not hold the same table.
    #[error("E-PLUG-406 rank {rank}: {message}")]
    Rank {
        /// The rank.
        rank: u32,
        /// Its reason.
        message: String,
    },
    /// There is no earlier rule list to go back to.
    #[error(
        "assignment `{name}` has no change to roll back. One change is kept; `hotseam swap '!SELECTOR'` takes older ones \
         back."
    )]
    NothingToRollBack {
        /// The assignment.
        name: String,
    },
}

impl SlotsError {
    pub(crate) fn layout_change(assignment: &str, moved: crate::LayoutMove) -> Self {
        let crate::LayoutMove { layer, pool, from, to } = moved;
        Self::LayoutChange { assignment: assignment.to_owned(), layer, pool, from, to }
    }

    /// Number of the error among the `E-PLUG` numbers, if it has one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Load(error) | Self::Base { source: error, .. } => Some(error.code()),
            Self::BaseSeam { .. } | Self::Seam { .. } => Some(206),
            Self::Device { .. } | Self::BaseDevice { .. } => Some(210),
            Self::LayoutChange { .. } => Some(402),
            Self::Rank { .. } => Some(406),
            _ => None,
        }
    }
}

impl From<LoadError> for SlotsError {
    fn from(error: LoadError) -> Self {
        Self::Load(Box::new(error))
    }
}
