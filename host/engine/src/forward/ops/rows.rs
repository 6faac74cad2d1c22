//! Row-wise loops over buffers of the step.

use hotseam_model::{DType, Tensor};
use hotseam_ops::{Mat, Parallel, Weight};

/// A buffer whose rows are handed to the pieces of a parallel loop.
struct Rows(*mut f32);

// SAFETY: each piece of the loop touches its own rows only.
unsafe impl Sync for Rows {}

/// Calls `f(row, values)` for each row of `buffer`, `width` wide, on all threads.
pub(crate) fn for_rows(
    par: &dyn Parallel,
    buffer: &mut [f32],
    width: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    let rows = buffer.len().checked_div(width).unwrap_or(0);
    let base = Rows(buffer.as_mut_ptr());
    let base = &base;
    // A piece below a few thousand values costs less than waking a thread.
    let grain = (4096 / width.max(1)).max(1);
    par.run(rows, grain, &|range| {
        for row in range {
            // SAFETY: rows are disjoint and inside the buffer, which is borrowed mutably for the loop.
            f(row, unsafe { std::slice::from_raw_parts_mut(base.0.add(row * width), width) });
        }
    });
}

/// A tensor of plain numbers as a matrix of `n` rows.
pub(crate) fn mat(t: &Tensor) -> Mat<'_> {
    let n = t.shape[0];
    let data = match t.dtype {
        DType::Bf16 => Weight::Bf16(t.bf16()),
        _ => Weight::F32(t.f32()),
    };
    Mat { data, n, k: t.len() / n.max(1) }
}
