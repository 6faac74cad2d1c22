//! Rows and columns of tensors and matrices, as tensors and matrices of their own.

use crate::matrix::FP8_BLOCK;
use crate::{Format, Matrix, Tensor, TensorError};
use std::ops::Range;

/// Why there is no such part of a matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// It cuts a block of values that share a scale.
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
    /// It is not inside.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl Matrix {
    /// Rows `range`, shared with this matrix where its tensors are shared ([`Tensor::rows`]). With FP8 they begin at a block of rows
    /// and end at one or with the matrix, or lie within one.
    ///
    /// # Errors
    /// [`PartError`] otherwise, or if there are not so many rows.
    pub fn rows(&self, range: Range<usize>) -> Result<Self, PartError> {
        let scales = match (&self.scales, self.format) {
            (Some(scales), Format::Fp8Block) => {
                Some(scales.rows(self.blocks("rows", &range, self.n, FP8_BLOCK)?)?)
            }
            (scales, _) => scales.as_ref().map(|scales| scales.rows(range.clone())).transpose()?,
        };
        Ok(Self { n: range.len(), data: self.data.rows(range)?, scales, ..self.clone() })
    }

    /// Columns `range`, copied. They begin and end at blocks of values that share a scale; with FP8 they may end with the matrix or
    /// lie within one block as well.
    ///
    /// # Errors
    /// [`PartError`] otherwise, or if there are not so many columns.
    pub fn columns(&self, range: Range<usize>) -> Result<Self, PartError> {
        let group = self.format.group();
        let in_scales = match self.format {
            Format::F32 | Format::Bf16 => 0..0,
            Format::Fp8Block => self.blocks("columns", &range, self.k, FP8_BLOCK)?,
            Format::Mxfp4 | Format::Nvfp4 => {
                if !(range.start.is_multiple_of(group) && range.end.is_multiple_of(group)) {
                    return Err(self.cut("columns", &range, self.k, group));
                }
                range.start / group..range.end / group
            }
        };
        let scales = self.scales.as_ref().map(|scales| scales.columns(in_scales)).transpose()?;
        // Two codes of four bits share a byte.
        let packed = if group > 1 { 2 } else { 1 };
        let data = self.data.columns(range.start / packed..range.end / packed)?;
        Ok(Self { k: range.len(), data, scales, ..self.clone() })
    }

    /// The blocks of scales that a part has.
    fn blocks(
        &self,
        axis: &'static str,
        range: &Range<usize>,
        size: usize,
        block: usize,
    ) -> Result<Range<usize>, PartError> {
        let blocks = range.start / block..range.end.div_ceil(block);
        let ends = range.end.is_multiple_of(block) || range.end == size;
        match range.start.is_multiple_of(block) && ends || blocks.len() <= 1 {
            true => Ok(blocks),
            false => Err(self.cut(axis, range, size, block)),
        }
    }

    fn cut(&self, axis: &'static str, range: &Range<usize>, size: usize, block: usize) -> PartError {
        let (start, end, format) = (range.start, range.end, self.format);
        PartError::Block { axis, start, end, size, format, block }
    }
}

impl Tensor {
    /// Entries `range` of the first dimension. They are shared with this tensor where it lies in a mapped file or in other memory
    /// that it shares, and where they are aligned; else copied.
    ///
    /// # Errors
    /// If there are not so many.
    pub fn rows(&self, range: Range<usize>) -> Result<Self, TensorError> {
        let row = self.byte_len() / self.shape[0].max(1);
        self.part([&[range.len()], &self.shape[1..]].concat(), range.start * row..range.end * row)
    }

    /// Columns `range` of a matrix, copied.
    ///
    /// # Errors
    /// If there are not so many.
    pub fn columns(&self, range: Range<usize>) -> Result<Self, TensorError> {
        let (row, size) = (self.byte_len() / self.shape[0].max(1), self.dtype.size());
        let (shape, of_row) = (vec![self.shape[0], range.len()], range.start * size..range.end * size);
        if of_row.end > row {
            return Err(self.too_short(shape, of_row.end, row));
        }
        let mut bytes = Vec::with_capacity(self.shape[0] * of_row.len());
        if row > 0 {
            self.bytes().chunks_exact(row).for_each(|row| bytes.extend_from_slice(&row[of_row.clone()]));
        }
        match size {
            1 => Self::from_bytes(self.dtype, shape, bytes),
            _ => Self::copied(self.dtype, shape, &bytes),
        }
    }
}

#[cfg(test)]
mod tests;
