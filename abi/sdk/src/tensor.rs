//! From [`TensorRef`] to slices, with every check that makes the slice sound and the shape right.

use crate::{Error, Result};
use hotseam_abi::{TensorRef, WeightRef, device, dtype, weight_format};
use hotseam_ops::{Mat, Weight};

fn elements(t: &TensorRef) -> Option<usize> {
    let mut n = 1usize;
    for d in 0..t.ndim as usize {
        n = n.checked_mul(usize::try_from(t.shape[d]).ok()?)?;
    }
    Some(n)
}

fn describe(t: &TensorRef) -> String {
    format!("{:?} dtype {}", &t.shape[..(t.ndim as usize).min(4)], t.dtype)
}

/// As [`check_on`], in host memory.
fn check(t: &TensorRef, what: &str, ndim: u32, want: &[u32], align: usize) -> Result<usize> {
    check_on(device::CPU, t, what, ndim, want, align)
}

/// Checks device, rank, dtype, contiguity and alignment; returns the number of elements.
pub(crate) fn check_on(
    device: u32,
    t: &TensorRef,
    what: &str,
    ndim: u32,
    want: &[u32],
    align: usize,
) -> Result<usize> {
    if t.ndim > 4 || t.ndim != ndim || !want.contains(&t.dtype) {
        return Err(Error::argument(format!(
            "{what} is {}, expected {ndim} dimensions, dtype {want:?}",
            describe(t)
        )));
    }
    if t.device != device {
        let place = if device == device::CPU { "the CPU" } else { "a CUDA device" };
        return Err(Error::argument(format!(
            "{what} is on a device of kind {}, this plugin runs on {place}",
            t.device
        )));
    }
    let mut stride = 1i64;
    for d in (0..ndim as usize).rev() {
        if t.shape[d] > 1 && t.strides[d] != stride {
            return Err(Error::argument(format!(
                "{what} is not contiguous: strides {:?}",
                &t.strides[..ndim as usize]
            )));
        }
        stride = stride.saturating_mul(t.shape[d]);
    }
    let n = elements(t)
        .ok_or_else(|| Error::argument(format!("{what} has an impossible shape {}", describe(t))))?;
    if n > 0 && t.data.is_null() {
        return Err(Error::argument(format!("{what} is missing")));
    }
    if !t.data.addr().is_multiple_of(align) {
        return Err(Error::argument(format!("{what} is not aligned to {align} bytes")));
    }
    Ok(n)
}

/// Slice of `n` elements at `ptr`; empty if `n` is 0.
///
/// # Safety
/// If `n > 0`, `ptr` is valid for `n` reads of `T` for `'a` and nothing writes them meanwhile.
pub(crate) unsafe fn raw<'a, T>(ptr: *const T, n: usize, what: &str) -> Result<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    if ptr.is_null() {
        return Err(Error::argument(format!("{what} is missing")));
    }
    // SAFETY: the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts(ptr, n) })
}

/// As [`raw`], mutable.
///
/// # Safety
/// If `n > 0`, `ptr` is valid for `n` reads and writes of `T` for `'a`, and nothing else touches them meanwhile.
pub(crate) unsafe fn raw_mut<'a, T>(ptr: *mut T, n: usize, what: &str) -> Result<&'a mut [T]> {
    if n == 0 {
        return Ok(&mut []);
    }
    if ptr.is_null() {
        return Err(Error::argument(format!("{what} is missing")));
    }
    // SAFETY: the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts_mut(ptr, n) })
}

/// Whether a tensor is just what is wanted, in a few comparisons, since calls make many views; returns the number of
/// elements. What does not fit is looked at again by [`check`] and [`same_shape`], which say why.
#[inline]
fn fits<const N: usize>(t: &TensorRef, shape: &[usize; N], dtype: u32, align: usize) -> Option<usize> {
    let mut fits = t.ndim as usize == N && t.dtype == dtype && t.device == device::CPU;
    let mut n = 1usize;
    for d in (0..N).rev() {
        fits &= t.shape[d] as usize == shape[d] && (t.shape[d] <= 1 || t.strides[d] as usize == n);
        n = n.checked_mul(shape[d])?;
    }
    fits &= t.data.addr().is_multiple_of(align) && (n == 0 || !t.data.is_null());
    fits.then_some(n)
}

/// Number of elements of an f32 tensor of `shape`.
#[inline]
fn f32_len<const N: usize>(t: &TensorRef, what: &str, shape: &[usize; N]) -> Result<usize> {
    match fits(t, shape, dtype::F32, 4) {
        Some(n) => Ok(n),
        None => {
            let n = check(t, what, N as u32, &[dtype::F32], 4)?;
            same_shape(t, what, shape).map(|()| n)
        }
    }
}

/// An f32 tensor of `shape`.
///
/// # Safety
/// The tensor's memory is valid for its shape for `'a`, and not written meanwhile.
#[inline]
pub(crate) unsafe fn f32s<'a, const N: usize>(
    t: &TensorRef,
    what: &str,
    shape: &[usize; N],
) -> Result<&'a [f32]> {
    let n = f32_len(t, what, shape)?;
    // SAFETY: the caller's contract; the checks above.
    unsafe { raw(t.data.cast::<f32>(), n, what) }
}

/// As [`f32s`], mutable.
///
/// # Safety
/// The tensor's memory is valid for its shape for `'a`, and touched by nobody else meanwhile.
#[inline]
pub(crate) unsafe fn f32s_mut<'a, const N: usize>(
    t: &TensorRef,
    what: &str,
    shape: &[usize; N],
) -> Result<&'a mut [f32]> {
    let n = f32_len(t, what, shape)?;
    // SAFETY: the caller's contract; the checks above.
    unsafe { raw_mut(t.data.cast::<f32>(), n, what) }
}

/// A weight matrix `[n, k]` in f32 or bf16.
///
/// # Safety
/// As [`f32s`].
pub(crate) unsafe fn mat<'a>(t: &TensorRef, what: &str, shape: [usize; 2]) -> Result<Mat<'a>> {
    let align = if t.dtype == dtype::BF16 { 2 } else { 4 };
    let n = check(t, what, 2, &[dtype::F32, dtype::BF16], align)?;
    same_shape(t, what, &shape)?;
    // SAFETY: the caller's contract; dtype and alignment are checked above.
    let data = unsafe {
        match t.dtype {
            dtype::BF16 => Weight::Bf16(raw(t.data.cast::<u16>(), n, what)?),
            _ => Weight::F32(raw(t.data.cast::<f32>(), n, what)?),
        }
    };
    Ok(Mat { data, n: shape[0], k: shape[1] })
}

/// Outputs and inputs `[n, k]` of a weight matrix.
pub(crate) fn weight_shape(w: &WeightRef, what: &str) -> Result<[usize; 2]> {
    let k = dim(&w.data, 1, what)?;
    let packed = matches!(w.format, weight_format::MXFP4 | weight_format::NVFP4);
    Ok([dim(&w.data, 0, what)?, if packed { k.saturating_mul(2) } else { k }])
}

/// A weight matrix `[n, k]` in any format.
///
/// # Safety
/// The memory of data and scales is valid for their shapes for `'a`, and not written meanwhile.
pub(crate) unsafe fn weight<'a>(w: &WeightRef, what: &str, shape: [usize; 2]) -> Result<Mat<'a>> {
    let [n, k] = shape;
    // SAFETY: the caller's contract, here and below.
    let bytes = |t: &TensorRef, kind: u32, part: &str, shape: [usize; 2]| unsafe {
        let len = match fits(t, &shape, kind, 1) {
            Some(len) => len,
            None => {
                let what = format!("{what}{part}");
                let len = check(t, &what, 2, &[kind], 1)?;
                same_shape(t, &what, &shape)?;
                len
            }
        };
        raw(t.data.cast::<u8>(), len, what)
    };
    let groups = |size: usize| match k.is_multiple_of(size) {
        true => Ok(k / size),
        false => Err(Error::argument(format!("{what} has {k} inputs, its format has groups of {size}"))),
    };
    let data = match w.format {
        weight_format::F32 | weight_format::BF16 => {
            // SAFETY: the caller's contract.
            let plain = unsafe { mat(&w.data, what, shape) }?;
            let is_bf16 = matches!(plain.data, Weight::Bf16(_));
            if is_bf16 != (w.format == weight_format::BF16) {
                return Err(Error::argument(format!("{what} is {}, not of its format", describe(&w.data))));
            }
            plain.data
        }
        weight_format::FP8_BLOCK => Weight::Fp8 {
            codes: bytes(&w.data, dtype::E4M3, "", shape)?,
            scales: bytes(&w.scales, dtype::E8M0, " scales", [n.div_ceil(128), k.div_ceil(128)])?,
            skip: 0,
        },
        weight_format::MXFP4 => {
            let groups = groups(32)?;
            Weight::Mxfp4 {
                codes: bytes(&w.data, dtype::U8, "", [n, k / 2])?,
                scales: bytes(&w.scales, dtype::E8M0, " scales", [n, groups])?,
            }
        }
        weight_format::NVFP4 => {
            let groups = groups(16)?;
            Weight::Nvfp4 {
                codes: bytes(&w.data, dtype::U8, "", [n, k / 2])?,
                scales: bytes(&w.scales, dtype::E4M3, " scales", [n, groups])?,
                global: w.global_scale,
            }
        }
        other => {
            return Err(Error::argument(format!(
                "{what} is of weight format {other}, which this build does not know"
            )));
        }
    };
    Ok(Mat { data, n, k })
}

/// An i32 tensor of two dimensions, `width` wide.
///
/// # Safety
/// As [`f32s`].
pub(crate) unsafe fn i32s<'a>(t: &TensorRef, what: &str, width: usize) -> Result<&'a [i32]> {
    let n = check(t, what, 2, &[dtype::I32], 4)?;
    if t.shape[1] != width as i64 {
        return Err(Error::argument(format!("{what} is {}, expected {width} columns", describe(t))));
    }
    // SAFETY: the caller's contract; the checks above.
    unsafe { raw(t.data.cast::<i32>(), n, what) }
}

/// A pool `[pages, page_bytes]` of bytes, aligned for f32; returns (pages, page_bytes).
#[inline]
pub(crate) fn pool_shape(t: &TensorRef, what: &str) -> Result<(usize, usize)> {
    let shape = [t.shape[0] as usize, t.shape[1] as usize];
    if t.shape[0] < 0 || t.shape[1] < 0 || fits(t, &shape, dtype::U8, 4).is_none() {
        check(t, what, 2, &[dtype::U8], 4)?;
    }
    Ok((shape[0], shape[1]))
}

/// Extent of dimension `d`.
pub(crate) fn dim(t: &TensorRef, d: usize, what: &str) -> Result<usize> {
    if d >= t.ndim as usize || d >= 4 {
        return Err(Error::argument(format!("{what} is {}, expected more dimensions", describe(t))));
    }
    usize::try_from(t.shape[d]).map_err(|_| Error::argument(format!("{what} has a negative extent")))
}

pub(crate) fn same_shape(t: &TensorRef, what: &str, shape: &[usize]) -> Result<()> {
    if shape.iter().zip(&t.shape).any(|(want, have)| *want as i64 != *have) {
        return Err(Error::argument(format!("{what} is {}, expected {shape:?}", describe(t))));
    }
    Ok(())
}
