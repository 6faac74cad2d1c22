//! Index queries in the format of the keys.

use hotseam_cpu_kernels::scratch::{Lease, lease};
use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::quant;
use hotseam_sdk::ops::{Parallel, linear, rope};
use hotseam_sdk::views::Select;
use hotseam_sdk::{Error, Result, SharedMut};

/// Largest dimension of an index head: the official checkpoints have 128.
const MAX_DIM: usize = 512;
/// Rows that are worth a thread.
const GRAIN: usize = 16;

/// Queries `[rows, heads, dim]` and head weights `[rows, heads]`, the latter times `dim^-1/2 * heads^-1/2`.
pub(crate) struct Queries {
    pub(crate) q: Lease<f32>,
    pub(crate) weights: Lease<f32>,
}

impl Queries {
    /// # Errors
    /// If the index heads are larger than this plugin serves.
    pub(crate) fn new(par: &dyn Parallel, a: &Select<'_>) -> Result<Self> {
        let (rows, heads, dim) = (a.rows.len(), a.heads, a.dim);
        if dim > MAX_DIM {
            return Err(Error::argument(format!(
                "index heads of {dim} channels, expected at most {MAX_DIM}"
            )));
        }
        let mut q = lease::<f32>(rows * heads * dim);
        linear(par, a.q_lora, rows, a.wq_b, &mut q);
        let mut weights = lease::<f32>(rows * heads);
        linear(par, a.x, rows, a.weights_proj, &mut weights);
        let factor = ((dim * heads) as f32).sqrt().recip();
        weights.iter_mut().for_each(|w| *w *= factor);
        let shared = SharedMut::new(&mut q);
        par.run(rows, GRAIN, &|range| {
            for row in range.filter(|row| a.rows.positions[*row] >= 0) {
                let (cos, sin) = a.rope.row(a.rows.positions[row] as usize);
                // SAFETY: rows do not overlap.
                let of_row = unsafe { shared.slice(row * heads * dim..(row + 1) * heads * dim) };
                for head in of_row.chunks_exact_mut(dim) {
                    rope(head, cos, sin, false);
                    as_key(a.keys.form.layout, head);
                }
            }
        });
        Ok(Self { q, weights })
    }
}

/// Rounds a head as keys of `layout` are rounded; f32 keys leave it as it is.
fn as_key(layout: u32, head: &mut [f32]) {
    match layout {
        layout::KEY_BF16 => quant::round_to_bf16(head),
        other => quant::as_key(other, head, &mut [0; MAX_DIM]),
    }
}
