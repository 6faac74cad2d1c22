//! From the model's weights and tables to the contract's tensor descriptors, where the weights are.

use hotseam_abi::{ExpertRef, RopeTables, TensorRef, WeightRef, device, dtype, weight_format};
use hotseam_model::{DType, Format, Matrix, Model, RopeTable, Tensor};

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
    match t.device_address() {
        0 => describe(t.bytes_ptr(), device::CPU, dtype, &t.shape),
        address => describe(address as *const u8, device::CUDA, dtype, &t.shape),
    }
}

/// A tensor of plain numbers as a weight matrix.
#[cfg(feature = "cuda")]
pub(crate) fn plain(t: &Tensor) -> WeightRef {
    let format = if t.dtype == DType::Bf16 { weight_format::BF16 } else { weight_format::F32 };
    WeightRef::plain(format, tensor(t))
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

fn describe(data: *const u8, device: u32, dtype: u32, shape: &[usize]) -> TensorRef {
    let mut t = TensorRef {
        data: data.cast_mut().cast(),
        shape: [1; 4],
        strides: [1; 4],
        dtype,
        ndim: shape.len() as u32,
        device,
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
    let of = |values: &[f32], address: u64| match address {
        0 => describe(values.as_ptr().cast(), device::CPU, dtype::F32, &shape),
        address => describe(address as *const u8, device::CUDA, dtype::F32, &shape),
    };
    let [cos, sin] = table.device_addresses;
    RopeTables { cos: of(&table.cos, cos), sin: of(&table.sin, sin) }
}

/// Experts of each layer, as the moe seam takes them. Borrows `model` by pointer.
pub(crate) fn experts(model: &Model) -> Vec<Vec<ExpertRef>> {
    let of = |layer: &hotseam_model::LayerWeights| {
        let experts = layer.experts.iter();
        experts.map(|e| ExpertRef { w1: matrix(&e.w1), w2: matrix(&e.w2), w3: matrix(&e.w3) }).collect()
    };
    model.weights.layers.iter().map(of).collect()
}
