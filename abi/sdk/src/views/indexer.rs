//! View of `indexer.select`.

use super::{Pool, Rope, Rows};
use crate::tensor::{dim, f32s, mat, raw_mut, weight, weight_shape};
use crate::{Error, Result};
use hotseam_abi::SelectArgs;
use hotseam_ops::Mat;

/// `indexer.select`.
#[derive(Debug)]
pub struct Select<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Compression ratio.
    pub ratio: usize,
    /// Index heads.
    pub heads: usize,
    /// Dimension of an index head.
    pub dim: usize,
    /// Entries to keep a row.
    pub topk: usize,
    /// `[rows, q_lora_rank]`.
    pub q_lora: &'a [f32],
    /// `[rows, hidden]`.
    pub x: &'a [f32],
    /// `[heads * dim, q_lora_rank]`.
    pub wq_b: Mat<'a>,
    /// `[heads, hidden]`.
    pub weights_proj: Mat<'a>,
    /// Tables.
    pub rope: Rope<'a>,
    /// Index keys.
    pub keys: Pool<'a>,
    /// `[rows, topk]`, -1 padded.
    pub ids: &'a mut [i32],
    /// `[rows, scores_width]`, or empty when not wanted.
    pub scores: &'a mut [f32],
    /// Row length of `scores`.
    pub scores_width: usize,
}

impl Select<'_> {
    /// Number of complete entries at a row; 0 for padding.
    pub fn complete(&self, row: usize) -> usize {
        (self.rows.positions[row] + 1) as usize / self.ratio
    }

    /// # Safety
    /// The arguments are as the contract says for the view's life.
    pub unsafe fn from_raw(a: &SelectArgs) -> Result<Self> {
        let (heads, topk, ratio) = (a.heads as usize, a.topk as usize, a.ratio as usize);
        if heads == 0 || ratio == 0 {
            return Err(Error::argument(format!("{heads} index heads, ratio {ratio}")));
        }
        // SAFETY: the caller's contract.
        unsafe {
            let rows = Rows::from_raw(a.batch)?;
            let n = rows.len();
            let [all, rank] = weight_shape(&a.wq_b, "wq_b")?;
            let hidden = dim(&a.weights_proj, 1, "weights_proj")?;
            if all % heads != 0 {
                return Err(Error::argument(format!("wq_b has {all} rows for {heads} heads")));
            }
            let d = all / heads;
            let scores_width = a.scores_width as usize;
            let scores =
                if a.scores.is_null() { &mut [] } else { raw_mut(a.scores, n * scores_width, "scores")? };
            let rope = Rope::from_raw(&a.rope, d)?;
            if let Some(p) = rows.positions.iter().find(|p| i64::from(**p) >= rope.positions() as i64) {
                return Err(Error::argument(format!("position {p} is outside the rope tables")));
            }
            Ok(Self {
                rows,
                ratio,
                heads,
                dim: d,
                topk,
                q_lora: f32s(&a.q_lora, "q_lora", &[n, rank])?,
                x: f32s(&a.x, "x", &[n, hidden])?,
                wq_b: weight(&a.wq_b, "wq_b", [all, rank])?,
                weights_proj: mat(&a.weights_proj, "weights_proj", [heads, hidden])?,
                rope,
                keys: Pool::from_raw(&a.keys, rows.seqs.len(), d, "keys")?,
                ids: raw_mut(a.ids, n * topk, "ids")?,
                scores,
                scores_width,
            })
        }
    }
}
