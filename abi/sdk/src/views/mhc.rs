//! Views of `mhc.pre`, `mhc.post` and `mhc.head`.

use super::Rows;
use crate::tensor::{dim, f32s, f32s_mut};
use crate::{Error, Result};
use hotseam_abi::{MhcHeadArgs, MhcPostArgs, MhcPreArgs, TensorRef};

fn widths(streams: &TensorRef) -> Result<(usize, usize)> {
    let (hc, hidden) = (dim(streams, 1, "streams")?, dim(streams, 2, "streams")?);
    if hc == 0 || hc > 16 || hidden == 0 {
        return Err(Error::argument(format!("{hc} streams of {hidden}")));
    }
    Ok((hc, hidden))
}

/// `mhc.pre`.
#[derive(Debug)]
pub struct MhcPre<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Streams.
    pub hc: usize,
    /// Width of a stream.
    pub hidden: usize,
    /// Sinkhorn iterations.
    pub iters: usize,
    /// Floor of gates and normalisations.
    pub hc_eps: f32,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// `[rows, hc, hidden]`.
    pub streams: &'a [f32],
    /// `[(2 + hc) * hc, hc * hidden]`.
    pub fn_weight: &'a [f32],
    /// `[(2 + hc) * hc]`.
    pub base: &'a [f32],
    /// `[3]`.
    pub scale: &'a [f32],
    /// `[hidden]`, for variants that fuse the norm.
    pub next_norm: &'a [f32],
    /// `[rows, hidden]`.
    pub x: &'a mut [f32],
    /// `[rows, hc]`.
    pub post: &'a mut [f32],
    /// `[rows, hc, hc]`.
    pub comb: &'a mut [f32],
}

impl MhcPre<'_> {
    /// # Safety
    /// The arguments are as the contract says for the view's life.
    pub unsafe fn from_raw(a: &MhcPreArgs) -> Result<Self> {
        let (hc, hidden) = widths(&a.streams)?;
        let mix = (2 + hc) * hc;
        // SAFETY: the caller's contract.
        unsafe {
            let rows = Rows::from_raw(a.batch)?;
            let n = rows.len();
            Ok(Self {
                rows,
                hc,
                hidden,
                iters: a.iters as usize,
                hc_eps: a.hc_eps,
                norm_eps: a.norm_eps,
                streams: f32s(&a.streams, "streams", &[n, hc, hidden])?,
                fn_weight: f32s(&a.fn_weight, "fn_weight", &[mix, hc * hidden])?,
                base: f32s(&a.base, "base", &[mix])?,
                scale: f32s(&a.scale, "scale", &[3])?,
                next_norm: f32s(&a.next_norm, "next_norm", &[hidden])?,
                x: f32s_mut(&a.x, "x", &[n, hidden])?,
                post: f32s_mut(&a.post, "post", &[n, hc])?,
                comb: f32s_mut(&a.comb, "comb", &[n, hc, hc])?,
            })
        }
    }
}

/// `mhc.post`.
#[derive(Debug)]
pub struct MhcPost<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Streams.
    pub hc: usize,
    /// Width of a stream.
    pub hidden: usize,
    /// `[rows, hidden]`.
    pub f: &'a [f32],
    /// `[rows, hc]`.
    pub post: &'a [f32],
    /// `[rows, hc, hc]`.
    pub comb: &'a [f32],
    /// `[rows, hc, hidden]`: the streams on entry, the output on return. The shim copies the streams here when the host
    /// passed a separate output, so that a plugin writes in place only.
    pub streams: &'a mut [f32],
}

impl MhcPost<'_> {
    /// # Safety
    /// The arguments are as the contract says for the view's life.
    pub unsafe fn from_raw(a: &MhcPostArgs) -> Result<Self> {
        let (hc, hidden) = widths(&a.streams)?;
        // SAFETY: the caller's contract.
        unsafe {
            let rows = Rows::from_raw(a.batch)?;
            let n = rows.len();
            if a.out.data != a.streams.data && n > 0 {
                let from = f32s(&a.streams, "streams", &[n, hc, hidden])?;
                f32s_mut(&a.out, "out", &[n, hc, hidden])?.copy_from_slice(from);
            }
            Ok(Self {
                rows,
                hc,
                hidden,
                f: f32s(&a.f, "f", &[n, hidden])?,
                post: f32s(&a.post, "post", &[n, hc])?,
                comb: f32s(&a.comb, "comb", &[n, hc, hc])?,
                streams: f32s_mut(&a.out, "out", &[n, hc, hidden])?,
            })
        }
    }
}

/// `mhc.head`.
#[derive(Debug)]
pub struct MhcHead<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Streams.
    pub hc: usize,
    /// Width of a stream.
    pub hidden: usize,
    /// Floor of the gate.
    pub hc_eps: f32,
    /// Epsilon of the RMS norm.
    pub norm_eps: f32,
    /// `[rows, hc, hidden]`.
    pub streams: &'a [f32],
    /// `[hc, hc * hidden]`.
    pub fn_weight: &'a [f32],
    /// `[hc]`.
    pub base: &'a [f32],
    /// `[1]`.
    pub scale: &'a [f32],
    /// `[rows, hidden]`.
    pub x: &'a mut [f32],
}

impl MhcHead<'_> {
    /// # Safety
    /// The arguments are as the contract says for the view's life.
    pub unsafe fn from_raw(a: &MhcHeadArgs) -> Result<Self> {
        let (hc, hidden) = widths(&a.streams)?;
        // SAFETY: the caller's contract.
        unsafe {
            let rows = Rows::from_raw(a.batch)?;
            let n = rows.len();
            Ok(Self {
                rows,
                hc,
                hidden,
                hc_eps: a.hc_eps,
                norm_eps: a.norm_eps,
                streams: f32s(&a.streams, "streams", &[n, hc, hidden])?,
                fn_weight: f32s(&a.fn_weight, "fn_weight", &[hc, hc * hidden])?,
                base: f32s(&a.base, "base", &[hc])?,
                scale: f32s(&a.scale, "scale", &[1])?,
                x: f32s_mut(&a.x, "x", &[n, hidden])?,
            })
        }
    }
}
