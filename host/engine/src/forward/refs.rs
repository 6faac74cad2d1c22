//! From the engine's slices and weights to the contract's tensor descriptors.

use hotseam_abi::{ExpertRef, RopeTables, TensorRef, device, dtype};
use hotseam_model::{DType, Model, RopeTable, Tensor};

/// A contiguous f32 tensor over `data`. The contract decides whether a callee may write it.
pub(crate) fn f32s<const N: usize>(data: &[f32], shape: [usize; N]) -> TensorRef {
    debug_assert_eq!(data.len(), shape.iter().product::<usize>());
    describe(data.as_ptr().cast(), dtype::F32, &shape)
}

/// A contiguous f32 tensor over `data` that the callee writes.
pub(crate) fn f32s_mut<const N: usize>(data: &mut [f32], shape: [usize; N]) -> TensorRef {
    debug_assert_eq!(data.len(), shape.iter().product::<usize>());
    describe(data.as_mut_ptr().cast_const().cast(), dtype::F32, &shape)
}

/// A weight tensor in the dtype it is stored in.
pub(crate) fn weight(t: &Tensor) -> TensorRef {
    let dtype = match t.dtype {
        DType::F32 => dtype::F32,
        DType::Bf16 => dtype::BF16,
        DType::I32 => dtype::I32,
    };
    describe(t.bytes_ptr(), dtype, &t.shape)
}

fn describe(data: *const u8, dtype: u32, shape: &[usize]) -> TensorRef {
    let mut t = TensorRef {
        data: data.cast_mut().cast(),
        shape: [1; 4],
        strides: [1; 4],
        dtype,
        ndim: shape.len() as u32,
        device: device::CPU,
        device_id: 0,
    };
    let mut stride = 1;
    for d in (0..shape.len()).rev() {
        t.shape[d] = shape[d] as i64;
        t.strides[d] = stride;
        stride *= shape[d] as i64;
    }
    t
}

/// Rope tables.
pub(crate) fn rope(table: &RopeTable) -> RopeTables {
    let shape = [table.positions(), table.half];
    RopeTables { cos: f32s(&table.cos, shape), sin: f32s(&table.sin, shape) }
}

/// Experts of each layer, as the moe seam takes them. Borrows `model` by pointer.
pub(crate) fn experts(model: &Model) -> Vec<Vec<ExpertRef>> {
    let of = |layer: &hotseam_model::LayerWeights| {
        let experts = layer.experts.iter();
        experts.map(|e| ExpertRef { w1: weight(&e.w1), w2: weight(&e.w2), w3: weight(&e.w3) }).collect()
    };
    model.weights.layers.iter().map(of).collect()
}
