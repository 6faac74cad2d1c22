//! Cells: the smallest things that can be swapped.

use crate::seam::{Op, Phase, Seam, named};
use crate::selector::{Scope, Selector};
use crate::{LayerClass, NumberSet};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Kind of layer that a selector can name: attention classes, and for `moe` the kind of routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Ratio 0.
    Window,
    /// Ratio 4.
    Csa,
    /// Ratio 128.
    Hca,
    /// Experts by token id.
    Hash,
    /// Experts by score.
    Topk,
}

named!(Class, { Window = "window", Csa = "csa", Hca = "hca", Hash = "hash", Topk = "topk" });

impl Class {
    /// The classes that cells of `seam` can have.
    pub const fn of_seam(seam: Seam) -> &'static [Self] {
        match seam {
            Seam::Attention | Seam::Indexer | Seam::Mhc => &[Self::Window, Self::Csa, Self::Hca],
            Seam::Moe => &[Self::Hash, Self::Topk],
            Seam::KvTransport => &[],
        }
    }
}

impl From<LayerClass> for Class {
    fn from(class: LayerClass) -> Self {
        match class {
            LayerClass::Window => Self::Window,
            LayerClass::Csa => Self::Csa,
            LayerClass::Hca => Self::Hca,
        }
    }
}

/// Name of a cell. Prints as the selector that matches just it: `indexer.select@decode:layers=3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellId {
    /// Seam.
    pub seam: Seam,
    /// Op.
    pub op: Op,
    /// Phase; `None` for `kv_transport`, which lies between the two.
    pub phase: Option<Phase>,
    /// Layer number; `None` for `mhc.head` and `kv_transport`, which lie outside the layers.
    pub layer: Option<u32>,
    /// Tensor-parallel rank; `None` where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

impl CellId {
    /// The selector that matches just this cell.
    pub fn selector(&self) -> Selector {
        Selector {
            heal: false,
            seam: self.seam,
            op: (self.op != Op::Transport).then_some(self.op),
            phase: self.phase,
            scope: self.layer.map_or(Scope::All, |layer| Scope::Layers(NumberSet::one(layer))),
            ranks: self.rank.map(NumberSet::one),
            topology: None,
        }
    }
}

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.selector().fmt(f)
    }
}

/// A cell of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Its name.
    pub id: CellId,
    /// Class of its layer; `None` outside the layers.
    pub class: Option<Class>,
}
