//! Views of `moe.route` and `moe.experts`.

use super::Rows;
use crate::tensor::{dim, f32s, f32s_mut, i32s, mat, raw, raw_mut, weight, weight_shape};
use crate::{Error, Result};
use hotseam_abi::{ExpertRef, ExpertsArgs, RouteArgs};
use hotseam_ops::Mat;

/// `moe.route`.
#[derive(Debug)]
pub struct Route<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Experts to choose a row.
    pub topk: usize,
    /// Factor of the checkpoint.
    pub routed_scale: f32,
    /// `[rows, hidden]`.
    pub x: &'a [f32],
    /// `[n_experts, hidden]`.
    pub gate: Mat<'a>,
    /// `[n_experts]`; absent in hash layers.
    pub bias: Option<&'a [f32]>,
    /// `[vocab, topk]`; absent in top-k layers.
    pub tid2eid: Option<&'a [i32]>,
    /// `[rows]`.
    pub input_ids: &'a [i32],
    /// `[rows, topk]`.
    pub ids: &'a mut [i32],
    /// `[rows, topk]`.
    pub weights: &'a mut [f32],
}

impl Route<'_> {
    /// # Safety
    /// The arguments are as the contract says for the view's life.
    pub unsafe fn from_raw(a: &RouteArgs) -> Result<Self> {
        let topk = a.topk as usize;
        // SAFETY: the caller's contract.
        unsafe {
            let rows = Rows::from_raw(a.batch)?;
            let n = rows.len();
            let (experts, hidden) = (dim(&a.gate, 0, "gate")?, dim(&a.gate, 1, "gate")?);
            if topk > experts {
                return Err(Error::argument(format!("{topk} experts a row, of {experts}")));
            }
            let input_ids = raw(a.input_ids, n, "input_ids")?;
            let tid2eid = match a.tid2eid.data.is_null() {
                true => None,
                false => Some(i32s(&a.tid2eid, "tid2eid", topk)?),
            };
            if let Some(table) = tid2eid {
                let vocab = (table.len() / topk.max(1)) as i32;
                if let Some(id) =
                    rows.positions.iter().zip(input_ids).find(|(p, id)| **p >= 0 && !(0..vocab).contains(*id))
                {
                    return Err(Error::argument(format!(
                        "token {} is outside the expert table of {vocab}",
                        id.1
                    )));
                }
            }
            Ok(Self {
                rows,
                topk,
                routed_scale: a.routed_scale,
                x: f32s(&a.x, "x", &[n, hidden])?,
                gate: mat(&a.gate, "gate", [experts, hidden])?,
                bias: if a.bias.data.is_null() { None } else { Some(f32s(&a.bias, "bias", &[experts])?) },
                tid2eid,
                input_ids,
                ids: raw_mut(a.ids, n * topk, "ids")?,
                weights: raw_mut(a.weights, n * topk, "weights")?,
            })
        }
    }
}

/// One routed expert.
#[derive(Debug, Clone, Copy)]
pub struct Expert<'a> {
    /// `[inter, hidden]` gate projection.
    pub w1: Mat<'a>,
    /// `[hidden, inter]` down projection.
    pub w2: Mat<'a>,
    /// `[inter, hidden]` up projection.
    pub w3: Mat<'a>,
}

/// `moe.experts`.
#[derive(Debug)]
pub struct Experts<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Experts chosen a row.
    pub topk: usize,
    /// Clamp of gate and up.
    pub swiglu_limit: f32,
    /// Factor still to be applied.
    pub routed_scale: f32,
    /// Width of a row.
    pub hidden: usize,
    /// Inner width of an expert.
    pub inter: usize,
    /// `[rows, hidden]`.
    pub x: &'a [f32],
    /// `[rows, topk]`, -1 is skipped.
    pub ids: &'a [i32],
    /// `[rows, topk]`.
    pub weights: &'a [f32],
    /// `[rows, hidden]`, overwritten.
    pub out: &'a mut [f32],
    experts: &'a [ExpertRef],
}

// SAFETY: the pointers in `experts` are only read, and stay valid for `'a` by the contract of `from_raw`.
unsafe impl Sync for Experts<'_> {}

impl<'a> Experts<'a> {
    /// Number of experts.
    pub fn n_experts(&self) -> usize {
        self.experts.len()
    }

    /// An expert's weights.
    pub fn expert(&self, id: usize) -> Result<Expert<'a>> {
        let e = &self.experts[id];
        // SAFETY: the pointers are valid for `'a` by the contract of `from_raw`.
        unsafe {
            Ok(Expert {
                w1: weight(&e.w1, "w1", [self.inter, self.hidden])?,
                w2: weight(&e.w2, "w2", [self.hidden, self.inter])?,
                w3: weight(&e.w3, "w3", [self.inter, self.hidden])?,
            })
        }
    }

    /// # Safety
    /// The arguments are as the contract says for `'a`.
    pub unsafe fn from_raw(a: &ExpertsArgs) -> Result<Self> {
        let topk = a.topk as usize;
        // SAFETY: the caller's contract.
        unsafe {
            let rows = Rows::from_raw(a.batch)?;
            let n = rows.len();
            let experts = raw(a.experts, a.n_experts as usize, "experts")?;
            let hidden = dim(&a.x, 1, "x")?;
            let inter = experts.first().map_or(Ok(0), |e| weight_shape(&e.w1, "w1").map(|[n, _]| n))?;
            let ids = raw(a.ids, n * topk, "ids")?;
            if let Some(bad) = ids.iter().find(|id| **id >= experts.len() as i32) {
                return Err(Error::argument(format!("expert {bad} of {}", experts.len())));
            }
            Ok(Self {
                rows,
                topk,
                swiglu_limit: a.swiglu_limit,
                routed_scale: a.routed_scale,
                hidden,
                inter,
                x: f32s(&a.x, "x", &[n, hidden])?,
                ids,
                weights: raw(a.weights, n * topk, "weights")?,
                out: f32s_mut(&a.out, "out", &[n, hidden])?,
                experts,
            })
        }
    }
}
