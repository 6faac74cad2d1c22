//! Which cells a model has.

use crate::LayerClass;
use crate::cell::{Cell, CellId, Class};
use crate::seam::{Op, Phase, Seam, Topology};
use hotseam_loader::Shape;
use hotseam_model::ModelConfig;

/// What decides which cells there are, and the dimensions of pool entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Attention class of each layer.
    pub classes: Vec<LayerClass>,
    /// Whether each layer routes experts by token id; as long as `classes`.
    pub hash: Vec<bool>,
    /// Dimension of attention entries.
    pub head_dim: u32,
    /// Dimension of index keys.
    pub index_head_dim: u32,
    /// Roped values of both.
    pub rope_dim: u32,
    /// Placement of prefill and decode; `kv_transport` has a cell only when paired.
    pub topology: Topology,
    /// Ranks of the tensor-parallel group; each has all cells.
    pub ranks: u32,
    /// The rank whose cells this process calls.
    pub rank: u32,
}

impl Geometry {
    /// The geometry of a model.
    pub fn new(config: &ModelConfig, topology: Topology) -> Self {
        let layers = 0..config.num_hidden_layers;
        Self {
            classes: layers.clone().map(|l| config.class(l)).collect(),
            hash: layers.map(|l| config.is_hash(l)).collect(),
            head_dim: config.head_dim as u32,
            index_head_dim: config.index_head_dim as u32,
            rope_dim: config.qk_rope_head_dim as u32,
            topology,
            ranks: 1,
            rank: 0,
        }
    }

    /// The same model on rank `rank` of `ranks`.
    pub fn of_rank(self, rank: u32, ranks: u32) -> Self {
        Self { ranks, rank, ..self }
    }

    /// The number that the cells of a rank have in their names; `None` where there is one rank.
    pub(crate) fn named(&self, rank: u32) -> Option<u32> {
        (self.ranks > 1).then_some(rank)
    }

    /// What assignments of equal digests have alike: the same on all ranks.
    pub(crate) fn text(&self) -> String {
        format!("{:?}", Self { rank: 0, ..self.clone() })
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.classes.len()
    }

    /// Shape of the pool entries of a seam; zeros for seams without a pool.
    pub fn shape(&self, seam: Seam) -> Shape {
        let dim = match seam {
            Seam::Attention => self.head_dim,
            Seam::Indexer => self.index_head_dim,
            Seam::Moe | Seam::Mhc | Seam::KvTransport => return Shape::default(),
        };
        Shape { dim, rope_dim: self.rope_dim }
    }

    /// Whether a layer of class `class` has the op.
    pub fn has(class: LayerClass, seam: Seam, op: Op) -> bool {
        match (seam, op) {
            (Seam::Attention, Op::Compress) => class != LayerClass::Window,
            (Seam::Indexer, _) => class == LayerClass::Csa,
            (Seam::Mhc, Op::Head) | (Seam::KvTransport, _) => false,
            _ => seam.ops().contains(&op),
        }
    }

    /// All cells: by rank, this process's first; then phase, layer and seam; after the layers of a phase its `mhc.head`; last
    /// `kv_transport`.
    pub fn cells(&self) -> Vec<Cell> {
        let others = (0..self.ranks).filter(|rank| *rank != self.rank);
        std::iter::once(self.rank).chain(others).flat_map(|rank| self.cells_of(self.named(rank))).collect()
    }

    fn cells_of(&self, rank: Option<u32>) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &phase in Phase::ALL {
            for (layer, &class) in self.classes.iter().enumerate() {
                for &seam in Seam::ALL {
                    for &op in seam.ops().iter().filter(|op| Self::has(class, seam, **op)) {
                        let class = match seam {
                            Seam::Moe if self.hash[layer] => Class::Hash,
                            Seam::Moe => Class::Topk,
                            _ => class.into(),
                        };
                        let id = CellId { seam, op, phase: Some(phase), layer: Some(layer as u32), rank };
                        cells.push(Cell { id, class: Some(class) });
                    }
                }
            }
            let head = CellId { seam: Seam::Mhc, op: Op::Head, phase: Some(phase), layer: None, rank };
            cells.push(Cell { id: head, class: None });
        }
        if self.topology == Topology::Paired {
            let id = CellId { seam: Seam::KvTransport, op: Op::Transport, phase: None, layer: None, rank };
            cells.push(Cell { id, class: None });
        }
        cells
    }
}
