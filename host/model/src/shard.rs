//! The part of a model that one rank of a tensor-parallel group runs.
//!
//! | weights | a rank has |
//! | --- | --- |
//! | `wq_b`, `attn_sink`, `wo_a`, `wo_b` | its heads: rows of the first three, and the columns of `wo_b` that read its groups |
//! | routed experts | those from `rank * E / world` to `(rank + 1) * E / world`; the router is whole |
//! | shared expert | a part of its width: rows of `w1` and `w3`, columns of `w2` |
//! | everything else | whole |
//!
//! The indexer is whole on every rank: a choice of entries needs the scores of all of its heads, so with a part of them the ranks
//! would have to sum scores before each choice. The outputs of the attention block and of the experts are sums over all ranks.

use crate::{Expert, LayerWeights, Matrix, Model, ModelConfig, PartError};
use std::ops::Range;

/// Why a model has no part for a rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// A number that the ranks cannot share.
    #[error(
        "{field} is {number}, which {world} ranks cannot share; expected a number of ranks that this model can have: {}",
        list(worlds)
    )]
    Divide {
        /// Field of `config.json`.
        field: &'static str,
        /// Its value.
        number: usize,
        /// Ranks asked for.
        world: u32,
        /// Numbers of ranks that share everything.
        worlds: Vec<u32>,
    },
    /// A rank that the group does not have.
    #[error("rank {rank} of {world}: expected a rank below the number of ranks, which is at least 1")]
    Rank {
        /// The rank.
        rank: u32,
        /// Ranks asked for.
        world: u32,
    },
    /// A weight that has no such part in its format.
    #[error("layer {layer}, {weight}: {error}")]
    Weight {
        /// Layer.
        layer: usize,
        /// Role of the weight in it.
        weight: &'static str,
        /// What is wrong.
        error: PartError,
    },
}

fn list(worlds: &[u32]) -> String {
    worlds.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The part of `number` things that a rank has; parts differ by one at most.
pub fn part(number: usize, rank: u32, world: u32) -> Range<usize> {
    let (rank, world) = (rank as usize, world as usize);
    rank * number / world..(rank + 1) * number / world
}

impl ModelConfig {
    /// Numbers of ranks that can share the heads, groups and experts of the model. The formats of its weights may allow fewer.
    pub fn worlds(&self) -> Vec<u32> {
        let fits = |world: &u32| self.shared_by(*world).is_none();
        (1..=self.o_groups as u32).filter(fits).collect()
    }

    /// The first number that `world` ranks cannot share, with its field.
    fn shared_by(&self, world: u32) -> Option<(&'static str, usize)> {
        let divided = [
            ("num_attention_heads", self.num_attention_heads),
            ("o_groups", self.o_groups),
            ("moe_intermediate_size", self.moe_intermediate_size),
        ];
        let experts = ("n_routed_experts", self.n_routed_experts);
        let uneven = divided.into_iter().find(|(_, number)| !number.is_multiple_of(world as usize));
        uneven.or((self.n_routed_experts < world as usize).then_some(experts))
    }
}

/// What a rank has of each layer.
struct Parts {
    /// Rows of `wq_b`.
    queries: Range<usize>,
    heads: Range<usize>,
    /// Rows of `wo_a`, columns of `wo_b`.
    outputs: Range<usize>,
    experts: Range<usize>,
    /// Of the shared expert.
    width: Range<usize>,
}

impl Model {
    /// The part of rank `rank` of `world`. Its configuration has the rank's heads and groups, and the numbers of the whole model
    /// otherwise. Weights in mapped files stay there, but for the columns of output matrices, which are copied; the experts of other
    /// ranks are let go. Where weights are to be copied into memory, that comes after this, or it holds the whole model.
    ///
    /// # Errors
    /// If there is no such rank, or the ranks cannot share the heads, groups, experts or the width of the shared expert.
    pub fn of_rank(mut self, rank: u32, world: u32) -> Result<Self, ShardError> {
        if rank >= world {
            return Err(ShardError::Rank { rank, world });
        }
        if world == 1 {
            return Ok(self);
        }
        if let Some((field, number)) = self.config.shared_by(world) {
            return Err(ShardError::Divide { field, number, world, worlds: self.config.worlds() });
        }
        let config = &mut self.config;
        let heads = part(config.num_attention_heads, rank, world);
        let groups = part(config.o_groups, rank, world);
        let times = |range: &Range<usize>, by: usize| range.start * by..range.end * by;
        let parts = Parts {
            queries: times(&heads, config.head_dim),
            outputs: times(&groups, config.o_lora_rank),
            experts: part(config.n_routed_experts, rank, world),
            width: part(config.moe_intermediate_size, rank, world),
            heads,
        };
        (config.num_attention_heads, config.o_groups) = (parts.heads.len(), groups.len());
        for (layer, weights) in self.weights.layers.iter_mut().enumerate() {
            let cut = weights.keep(&parts);
            cut.map_err(|(weight, error)| ShardError::Weight { layer, weight, error })?;
        }
        Ok(self)
    }
}

impl LayerWeights {
    /// Lets go of all but `parts`.
    fn keep(&mut self, parts: &Parts) -> Result<(), (&'static str, PartError)> {
        let rows = |weight, matrix: &Matrix, range: &Range<usize>| {
            matrix.rows(range.clone()).map_err(|error| (weight, error))
        };
        let columns = |weight, matrix: &Matrix, range: &Range<usize>| {
            matrix.columns(range.clone()).map_err(|error| (weight, error))
        };
        self.wq_b = rows("wq_b", &self.wq_b, &parts.queries)?;
        self.attn_sink =
            self.attn_sink.rows(parts.heads.clone()).map_err(|error| ("attn_sink", error.into()))?;
        self.wo_a = rows("wo_a", &self.wo_a, &parts.outputs)?;
        self.wo_b = columns("wo_b", &self.wo_b, &parts.outputs)?;
        self.experts = self.experts.drain(..).take(parts.experts.end).skip(parts.experts.start).collect();
        self.shared = Expert {
            w1: rows("w1 of the shared expert", &self.shared.w1, &parts.width)?,
            w2: columns("w2 of the shared expert", &self.shared.w2, &parts.width)?,
            w3: rows("w3 of the shared expert", &self.shared.w3, &parts.width)?,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
