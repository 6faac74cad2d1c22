//! From the engine's slices and weights to the contract's tensor descriptors.

use hotseam_abi::{ExpertRef, RopeTables, TensorRef, WeightRef, device, dtype, weight_format};
use hotseam_model::{DType, Format, Matrix, Model, RopeTable, Tensor};

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

/// A tensor in the dtype it is stored in.
pub(crate) fn tensor(t: &Tensor) -> TensorRef {
    let dtype = match t.dtype {
        DType::F32 => dtype::F32,
        DType::Bf16 => dtype::BF16,
        DType::I32 => dtype::I32,
        DType::E4m3 => dtype::E4M3,
        DType::E8m0 => dtype::E8M0,
        DType::U8 => dtype::U8,
    };
    describe(t.bytes_ptr(), dtype, &t.shape)
}

/// A weight matrix in the format it is stored in.
pub(crate) fn matrix(m: &Matrix) -> WeightRef {
    WeightRef {
        format: match m.format {
            Format::F32 => weight_format::F32,
            Format::Bf16 => weight_format::BF16,
            Format::Fp8Block => weight_format::FP8_BLOCK,
            Format::Mxfp4 => weight_format::MXFP4,
            Format::Nvfp4 => weight_format::NVFP4,
        },
        global_scale: m.global_scale,
        data: tensor(&m.data),
        scales: m.scales.as_ref().map_or(TensorRef::NONE, tensor),
    }
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
        experts.map(|e| ExpertRef { w1: matrix(&e.w1), w2: matrix(&e.w2), w3: matrix(&e.w3) }).collect()
    };
    model.weights.layers.iter().map(of).collect()
}
