//! Tensors over vectors.

use hotseam_sdk::abi::{PoolRef, TensorRef, WeightRef, dtype, weight_format};
use hotseam_sdk::layouts::{self, Shape};
use hotseam_sdk::ops::{Mat, Weight};

fn tensor(data: *mut std::ffi::c_void, dtype: u32, shape: &[usize]) -> TensorRef {
    let mut t = TensorRef { data, dtype, ndim: shape.len() as u32, shape: [1; 4], ..TensorRef::NONE };
    let mut stride = 1;
    for (d, extent) in shape.iter().enumerate().rev() {
        (t.shape[d], t.strides[d]) = (*extent as i64, stride);
        stride *= *extent as i64;
    }
    t
}

pub(crate) fn f32s(data: &mut [f32], shape: &[usize]) -> TensorRef {
    assert_eq!(data.len(), shape.iter().product::<usize>());
    tensor(data.as_mut_ptr().cast(), dtype::F32, shape)
}

pub(crate) fn bf16s(data: &mut [u16], columns: usize) -> TensorRef {
    tensor(data.as_mut_ptr().cast(), dtype::BF16, &[data.len() / columns, columns])
}

pub(crate) fn weight(data: &mut [u16], columns: usize) -> WeightRef {
    WeightRef::plain(weight_format::BF16, bf16s(data, columns))
}

pub(crate) fn i32s(data: &mut [i32], columns: usize) -> TensorRef {
    tensor(data.as_mut_ptr().cast(), dtype::I32, &[data.len() / columns, columns])
}

/// Entries of a page.
pub(crate) const PER_PAGE: usize = 4;

/// A pool with one sequence, in words so that it is aligned.
pub(crate) fn pool(memory: &mut [f32], layout: u32, shape: Shape, table: &[i32]) -> PoolRef {
    let parts = layouts::parts(layout, shape).unwrap();
    let page_bytes = PER_PAGE * (parts.data + parts.scale);
    PoolRef {
        bytes: tensor(memory.as_mut_ptr().cast(), dtype::U8, &[memory.len() * 4 / page_bytes, page_bytes]),
        layout,
        entries_per_page: PER_PAGE as u32,
        dim: shape.dim as u32,
        rope_dim: shape.rope_dim as u32,
        data_bytes: parts.data as u32,
        scale_bytes: parts.scale as u32,
        table: table.as_ptr(),
        table_width: table.len() as u32,
    }
}

pub(crate) fn mat(weight: &[u16], k: usize) -> Mat<'_> {
    Mat { data: Weight::Bf16(weight), n: weight.len() / k, k }
}
