//! The part of a model that one rank of a tensor-parallel group runs.
//!
//! | weights | a rank has |
//! | --- | --- |
//! | `wq_b`, `attn_sink`, `wo_a`, `wo_b` | its heads: rows of the first three, and the columns of `wo_b` that read its groups |
//! | routed experts | those from `rank * E / world` to `(rank + 1) * E / world`; the router is whole |
//! | shared expert | a part of its width: rows of `w1` and `w3`, columns of `w2` |
//! | everything else | whole |
//!
//! The indexer is whole on every rank: a choice of entries needs the scores of all of its heads. The outputs of the attention block and
//! of the experts are then sums over all ranks.

use crate::matrix::FP8_BLOCK;
use crate::{Expert, Format, Matrix, Model, Tensor, TensorError};
use std::ops::Range;

/// Why a model has no part for each rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// A number that the ranks cannot share.
    #[error("{what} is {number}, which {world} ranks cannot share; expected a number of ranks that divides it, such as {}", fits(*number, *world))]
    Divide {
        /// Field of `config.json`.
        what: &'static str,
        /// Its value.
        number: usize,
        /// Ranks.
        world: u32,
    },
    /// More ranks than experts.
    #[error("n_routed_experts is {experts}, too few for {world} ranks; expected at most {experts} ranks")]
    Experts {
        /// Experts.
        experts: usize,
        /// Ranks.
        world: u32,
    },
    /// A part of a matrix that cuts a block of scales.
    #[error(
        "{axis} {start} to {end} of a {format} matrix of {size} cut a block of {block}; take fewer ranks, or a checkpoint in another \
         format (`hotseam checkpoint convert`)"
    )]
    Block {
        /// `rows` or `columns`.
        axis: &'static str,
        /// First of the part.
        start: usize,
        /// End of the part.
        end: usize,
        /// All of them.
        size: usize,
        /// Its format.
        format: Format,
        /// Values that share a scale.
        block: usize,
    },
    /// A part that cannot be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// The largest number of ranks below `world` that divides `number`.
fn fits(number: usize, world: u32) -> usize {
    (1..world as usize).rev().find(|ranks| number.is_multiple_of(*ranks)).unwrap_or(1)
}

/// The part of `number` things that a rank has; parts differ by one at most.
pub fn part(number: usize, rank: u32, world: u32) -> Range<usize> {
    let (rank, world) = (rank as usize, world as usize);
    rank * number / world..(rank + 1) * number / world
}

impl Model {
    /// The part of rank `rank` of `world`, whose configuration has the rank's heads and groups. Parts of files that are mapped stay
    /// mapped, but for the columns of output matrices, which are copied.
    ///
    /// # Errors
    /// If the ranks cannot share the heads, groups, experts or the width of the shared expert.
    pub fn of_rank(mut self, rank: u32, world: u32) -> Result<Self, ShardError> {
        if world <= 1 {
            return Ok(self);
        }
        let config = &mut self.config;
        let share = |what, number: usize| match number.is_multiple_of(world as usize) {
            true => Ok(part(number, rank, world)),
            false => Err(ShardError::Divide { what, number, world }),
        };
        let heads = share("num_attention_heads", config.num_attention_heads)?;
        let groups = share("o_groups", config.o_groups)?;
        let width = share("moe_intermediate_size", config.moe_intermediate_size)?;
        if config.n_routed_experts < world as usize {
            return Err(ShardError::Experts { experts: config.n_routed_experts, world });
        }
        let experts = part(config.n_routed_experts, rank, world);
        let (dim, lora) = (config.head_dim, config.o_lora_rank);
        let times = |range: &Range<usize>, by: usize| range.start * by..range.end * by;
        (config.num_attention_heads, config.o_groups) = (heads.len(), groups.len());
        for layer in &mut self.weights.layers {
            layer.wq_b = layer.wq_b.rows(times(&heads, dim))?;
            layer.attn_sink = layer.attn_sink.rows(heads.clone())?;
            layer.wo_a = layer.wo_a.rows(times(&groups, lora))?;
            layer.wo_b = layer.wo_b.columns(times(&groups, lora))?;
            layer.experts = layer.experts[experts.clone()].to_vec();
            let Expert { w1, w2, w3 } = &layer.shared;
            let (w1, w3) = (w1.rows(width.clone())?, w3.rows(width.clone())?);
            layer.shared = Expert { w1, w3, w2: w2.columns(width.clone())? };
        }
        Ok(self)
    }
}

impl Matrix {
    /// Some of its rows. They begin and end at blocks of scales, or lie within one.
    ///
    /// # Errors
    /// [`ShardError::Block`] otherwise.
    pub fn rows(&self, range: Range<usize>) -> Result<Self, ShardError> {
        let scales = match (&self.scales, self.format) {
            (Some(scales), Format::Fp8Block) => {
                Some(scales.rows(self.blocks("rows", &range, self.n, FP8_BLOCK)?)?)
            }
            (scales, _) => scales.as_ref().map(|scales| scales.rows(range.clone())).transpose()?,
        };
        Ok(Self { n: range.len(), data: self.data.rows(range)?, scales, ..self.clone() })
    }

    /// Some of its columns, copied. They begin and end at blocks of scales, or for FP8 lie within one.
    ///
    /// # Errors
    /// [`ShardError::Block`] otherwise.
    pub fn columns(&self, range: Range<usize>) -> Result<Self, ShardError> {
        let packing = self.k / self.data.shape[1].max(1);
        let group = self.format.group();
        let scales = match (&self.scales, self.format) {
            (None, _) => None,
            (Some(scales), Format::Fp8Block) => {
                Some(scales.columns(self.blocks("columns", &range, self.k, FP8_BLOCK)?)?)
            }
            (Some(scales), _) => {
                if !(range.start.is_multiple_of(group) && range.end.is_multiple_of(group)) {
                    return Err(self.cut("columns", &range, self.k, group));
                }
                Some(scales.columns(range.start / group..range.end / group)?)
            }
        };
        let data = self.data.columns(range.start / packing..range.end / packing)?;
        Ok(Self { k: range.len(), data, scales, ..self.clone() })
    }

    /// The blocks of scales that a part has.
    fn blocks(
        &self,
        axis: &'static str,
        range: &Range<usize>,
        size: usize,
        block: usize,
    ) -> Result<Range<usize>, ShardError> {
        let blocks = range.start / block..range.end.div_ceil(block);
        let whole =
            range.start.is_multiple_of(block) && (range.end.is_multiple_of(block) || range.end == size);
        match whole || blocks.len() <= 1 {
            true => Ok(blocks),
            false => Err(self.cut(axis, range, size, block)),
        }
    }

    fn cut(&self, axis: &'static str, range: &Range<usize>, size: usize, block: usize) -> ShardError {
        let (start, end, format) = (range.start, range.end, self.format);
        ShardError::Block { axis, start, end, size, format, block }
    }
}

impl Tensor {
    /// Entries `range` of the first dimension; shared with this one where that is possible.
    ///
    /// # Errors
    /// If there are not so many.
    pub fn rows(&self, range: Range<usize>) -> Result<Self, TensorError> {
        let row = self.row_bytes();
        self.part([&[range.len()], &self.shape[1..]].concat(), range.start * row..range.end * row)
    }

    /// Columns `range` of a matrix, copied.
    ///
    /// # Errors
    /// If there are not so many.
    pub fn columns(&self, range: Range<usize>) -> Result<Self, TensorError> {
        let (row, size) = (self.row_bytes(), self.dtype.size());
        let shape = vec![self.shape[0], range.len()];
        let bytes = match row {
            0 => Vec::new(),
            _ if range.end * size > row => return Err(self.too_short(shape, range.end * size, row)),
            _ => {
                let rows = self.bytes().chunks_exact(row);
                rows.flat_map(|row| &row[range.start * size..range.end * size]).copied().collect()
            }
        };
        Self::copied(self.dtype, shape, &bytes)
    }

    fn row_bytes(&self) -> usize {
        self.byte_len() / self.shape[0].max(1)
    }
}

#[cfg(test)]
mod tests;
