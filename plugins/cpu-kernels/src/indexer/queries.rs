//! Queries and head weights of the indexer.

use super::score::pack;
use crate::scratch::{self, Lease};
use hotseam_sdk::SharedMut;
use hotseam_sdk::layouts::quant::as_key;
use hotseam_sdk::ops::{Parallel, linear, rope};
use hotseam_sdk::views::Select;

/// Rows that are worth a thread.
const GRAIN: usize = 32;
/// Most dimensions of a head that quantise on the stack.
pub(super) const MOST_DIM: usize = 1024;

/// What scores a row's entries.
pub(super) struct Queries {
    /// Index heads.
    pub(super) heads: usize,
    /// Dimension of a head.
    pub(super) dim: usize,
    /// `[rows, heads, dim]`, roped, in the space of the keys' layout; of each row as [`pack`] leaves them.
    pub(super) q: Lease<f32>,
    /// `[rows, heads]`, with both scales of the score.
    pub(super) weights: Lease<f32>,
}

impl Queries {
    /// Computes those of all rows; of padded rows they are unspecified.
    pub(super) fn new(par: &dyn Parallel, a: &Select<'_>) -> Self {
        let (n, heads, dim) = (a.rows.len(), a.heads, a.dim);
        let width = heads * dim;
        let mut q = scratch::lease::<f32>(n * width);
        let mut weights = scratch::lease::<f32>(n * heads);
        linear(par, a.q_lora, n, a.wq_b, &mut q);
        linear(par, a.x, n, a.weights_proj, &mut weights);
        let factor = (heads as f32).sqrt().recip() * (dim as f32).sqrt().recip();
        weights.iter_mut().for_each(|w| *w *= factor);
        let layout = a.keys.form.layout;
        let shared = SharedMut::new(&mut q);
        par.run(n, GRAIN, &|rows| {
            let (mut plain, mut codes) = (scratch::lease::<f32>(width), [0; MOST_DIM]);
            for row in rows.filter(|row| a.rows.positions[*row] >= 0) {
                let (cos, sin) = a.rope.row(a.rows.positions[row] as usize);
                // SAFETY: rows do not overlap.
                let q = unsafe { shared.slice(row * width..(row + 1) * width) };
                for head in q.chunks_exact_mut(dim) {
                    rope(head, cos, sin, false);
                    as_key(layout, head, &mut codes);
                }
                plain.copy_from_slice(q);
                pack(&plain, dim, q);
            }
        });
        Self { heads, dim, q, weights }
    }
}
