//! The changes between two ends.

use std::collections::BTreeSet;
use std::fmt;

use hotseam_slots::NumberSet;
use serde::{Deserialize, Serialize};

/// A set of atoms that are switched to the bad side; all others are on the good side.
pub type Arm = BTreeSet<usize>;

/// The phases a change touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Span {
    /// Decode steps.
    #[serde(rename = "decode")]
    Decode,
    /// Prefill steps.
    #[serde(rename = "prefill")]
    Prefill,
    /// Both, coupled: they can only flip together.
    #[serde(rename = "prefill+decode")]
    Both,
    /// The hand-off from prefill to decode.
    #[serde(rename = "handoff")]
    Handoff,
}

impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::Both => "prefill+decode",
            Self::Handoff => "handoff",
        })
    }
}

/// The kind of layers a change touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Sliding window only.
    Window,
    /// Ratio 4.
    Csa,
    /// Ratio 128.
    Hca,
    /// Hash-routed MoE.
    Hash,
    /// Top-k MoE.
    Topk,
    /// Outside the layers: the head, the transport.
    Model,
}

impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Window => "window",
            Self::Csa => "csa",
            Self::Hca => "hca",
            Self::Hash => "hash",
            Self::Topk => "topk",
            Self::Model => "model",
        })
    }
}

/// What differs: the variant, or one of its options.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delta {
    /// Another plugin, or another build of the same; options that both know keep the good end's value.
    Variant {
        /// Name on the good side.
        from: String,
        /// Name on the bad side, with the options that belong to it.
        to: String,
    },
    /// One option.
    Option {
        /// Name of the option.
        name: String,
        /// Value on the good side, if the good variant has the option or a default stands for it.
        from: String,
        /// Value on the bad side.
        to: String,
    },
}

impl fmt::Display for Delta {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variant { from, to } => write!(out, "{from} -> {to}"),
            Self::Option { name, from, to } => write!(out, "{name}: {from} -> {to}"),
        }
    }
}

/// The smallest thing that is switched: a change on one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Atom {
    /// Number in the plan, from 0.
    pub id: usize,
    /// Layer in the checkpoint; `None` outside the layers.
    pub layer: Option<usize>,
    /// Atoms without which this one means nothing, such as the variant that an option belongs to.
    pub requires: Vec<usize>,
}

/// One delta on all layers of one class in one phase, on the same ranks: what the search treats as one item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Seam.
    pub seam: String,
    /// Ops of the seam whose code or options differ.
    pub ops: Vec<String>,
    /// Phases.
    pub phase: Span,
    /// Class of the layers.
    pub class: Class,
    /// Tensor-parallel ranks, if it is not on all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// What differs.
    pub delta: Delta,
    /// The variants, with options, that run when only this change (and what it requires) is switched.
    pub variants: Vec<String>,
    /// One per layer, in order of layers.
    pub atoms: Vec<Atom>,
}

impl Change {
    /// Where the change applies, such as `indexer@decode csa`, or `moe@decode topk /ranks=1`.
    pub fn place(&self) -> String {
        let cells = match (self.phase, self.class) {
            (Span::Handoff, _) => self.seam.clone(),
            (phase, Class::Model) => format!("{}.{}@{phase}", self.seam, self.ops.join("+")),
            (phase, class) => format!("{}@{phase} {class}", self.seam),
        };
        match self.ranks.is_empty() {
            true => cells,
            false => format!("{cells} /ranks={}", NumberSet::of(self.ranks.iter().copied())),
        }
    }

    /// What differs, and on which ranks if not on all.
    pub fn what(&self) -> String {
        match self.ranks.as_slice() {
            [] => self.delta.to_string(),
            [rank] => format!("{} on rank {rank}", self.delta),
            ranks => format!("{} on ranks {}", self.delta, NumberSet::of(ranks.iter().copied())),
        }
    }

    /// Place and delta.
    pub fn title(&self) -> String {
        format!("{}: {}", self.place(), self.delta)
    }

    /// The layers, in order.
    pub fn layers(&self) -> Vec<usize> {
        self.atoms.iter().filter_map(|atom| atom.layer).collect()
    }

    /// True if both are the same delta of the same seam, in whatever phase and class.
    pub fn same_patch(&self, other: &Self) -> bool {
        self.seam == other.seam && self.delta == other.delta
    }
}

/// All changes between a good and a bad end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the good assignment.
    pub good: String,
    /// Name of the bad assignment.
    pub bad: String,
    /// The changes; atoms are numbered through them.
    pub changes: Vec<Change>,
    /// Seams that are the same code and options at both ends.
    pub unchanged: Vec<String>,
    /// What the reader should know about how the plan was made, such as changes that could not be split.
    pub notes: Vec<String>,
}

impl Plan {
    /// Every atom: the bad end.
    pub fn all(&self) -> Arm {
        self.atoms().map(|atom| atom.id).collect()
    }

    /// All atoms of all changes.
    pub fn atoms(&self) -> impl Iterator<Item = &Atom> {
        self.changes.iter().flat_map(|change| &change.atoms)
    }

    /// `arm` and everything it requires.
    pub fn with_required(&self, arm: &Arm) -> Arm {
        let mut result = arm.clone();
        loop {
            let missing: Vec<usize> = self
                .atoms()
                .filter(|atom| result.contains(&atom.id))
                .flat_map(|atom| atom.requires.iter().copied())
                .filter(|id| !result.contains(id))
                .collect();
            if missing.is_empty() {
                return result;
            }
            result.extend(missing);
        }
    }

    /// `arm` without `removed` and without what requires it.
    pub fn without(&self, arm: &Arm, removed: &Arm) -> Arm {
        let mut result: Arm = arm.difference(removed).copied().collect();
        loop {
            let orphans: Vec<usize> = self
                .atoms()
                .filter(|atom| result.contains(&atom.id))
                .filter(|atom| atom.requires.iter().any(|id| !result.contains(id)))
                .map(|atom| atom.id)
                .collect();
            if orphans.is_empty() {
                return result;
            }
            for id in orphans {
                result.remove(&id);
            }
        }
    }
}
