//! Checks of tensors.

use hotseam_sdk::abi::{TensorRef, WeightRef, device, dtype, weight_format};
use hotseam_sdk::{Error, Result};

/// Address of the first element.
pub(super) fn address(t: &TensorRef) -> u64 {
    t.data as u64
}

/// Fails unless `t` is a contiguous tensor of this dtype and shape on a device.
pub(super) fn expect(t: &TensorRef, what: &str, dtype: u32, shape: &[i64]) -> Result<()> {
    let n = t.ndim as usize;
    let mut stride = 1;
    let dense = n <= 4
        && (0..n).rev().all(|d| {
            let dense = t.shape[d] <= 1 || t.strides[d] == stride;
            stride *= t.shape[d];
            dense
        });
    if n > 4 || t.shape[..n] != *shape || t.dtype != dtype || !dense || t.device != device::CUDA {
        return Err(Error::argument(format!(
            "{what} is {t:?}, expected dtype {dtype}, shape {shape:?}, on a device"
        )));
    }
    Ok(())
}

/// Number of elements of an f32 tensor.
pub(super) fn elements(t: &TensorRef, what: &str) -> Result<u64> {
    let shape = &t.shape[..(t.ndim as usize).min(4)];
    expect(t, what, dtype::F32, shape)?;
    Ok(shape.iter().product::<i64>() as u64)
}

/// Outputs and inputs of a weight matrix.
pub(super) fn of_weight(w: &WeightRef) -> (i64, i64) {
    let packed = matches!(w.format, weight_format::MXFP4 | weight_format::NVFP4);
    (w.data.shape[0], w.data.shape[1] * if packed { 2 } else { 1 })
}
