//! Scores of a tile of keys: vectors run over keys, so that relu, weights and the sum over heads stay in registers.

use hotseam_sdk::ops::Kernel;
use hotseam_sdk::ops::lanes::{LANES, Lanes};
use hotseam_sdk::views::Pool;

/// Keys of a tile: two vectors.
pub(super) const TILE: usize = 2 * LANES;
/// Heads whose sums are in registers together: with two vectors 8 accumulators hide the latency of the multiply-add.
const HEADS: usize = 4;

/// Decodes entries `first .. first + count` of a sequence into `tile [dim, TILE]`; missing keys are zeros.
/// `row` has room for one key.
pub(super) fn load_tile(
    keys: &Pool<'_>,
    seq: usize,
    first: usize,
    count: usize,
    row: &mut [f32],
    tile: &mut [f32],
) {
    if count < TILE {
        tile.fill(0.0);
    }
    for j in 0..count {
        keys.decode(keys.slot(seq, first + j), row);
        for (column, value) in tile.chunks_exact_mut(TILE).zip(&*row) {
            column[j] = *value;
        }
    }
}

/// `out[j] = sum over heads of weights[h] * relu(q[h] . key j)` for the keys of a tile. Both sums are chains of fused
/// multiply-adds in rising order, so a score does not depend on the tile it is in.
pub(super) struct TileScores<'a> {
    /// `[heads, dim]`.
    pub(super) q: &'a [f32],
    /// `[heads]`.
    pub(super) weights: &'a [f32],
    /// `[dim, TILE]`.
    pub(super) tile: &'a [f32],
    /// `[TILE]`.
    pub(super) out: &'a mut [f32],
}

impl Kernel for TileScores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { q, weights, tile, out } = self;
        let (columns, _) = tile.as_chunks::<TILE>();
        let dim = columns.len();
        let mut total = [lanes.splat(0.0); 2];
        let mut blocks = q.chunks_exact(HEADS * dim);
        let mut heads = weights.chunks_exact(HEADS);
        for (q, weights) in blocks.by_ref().zip(heads.by_ref()) {
            add_heads::<L, HEADS>(lanes, q, weights, columns, &mut total);
        }
        for (q, weight) in blocks.remainder().chunks_exact(dim).zip(heads.remainder()) {
            add_heads::<L, 1>(lanes, q, std::slice::from_ref(weight), columns, &mut total);
        }
        let (out, _) = out.as_chunks_mut::<LANES>();
        out.iter_mut().zip(total).for_each(|(out, total)| lanes.put(total, out));
    }
}

/// Adds `M` heads to the scores.
#[inline(always)]
fn add_heads<L: Lanes, const M: usize>(
    lanes: L,
    q: &[f32],
    weights: &[f32],
    columns: &[[f32; TILE]],
    total: &mut [L::V; 2],
) {
    let (zero, dim) = (lanes.splat(0.0), columns.len());
    let mut sums = [[zero; 2]; M];
    assert!(q.len() == M * dim && weights.len() == M, "M heads");
    for (d, column) in columns.iter().enumerate() {
        // SAFETY: a column has two vectors, and `q` has `M * dim` values.
        unsafe {
            let (a, b) = (lanes.load(column.as_ptr()), lanes.load(column.as_ptr().add(LANES)));
            for (m, sums) in sums.iter_mut().enumerate() {
                let q = lanes.splat(*q.get_unchecked(m * dim + d));
                sums[0] = lanes.fma(q, a, sums[0]);
                sums[1] = lanes.fma(q, b, sums[1]);
            }
        }
    }
    for (sums, weight) in sums.iter().zip(weights) {
        for (total, sum) in total.iter_mut().zip(sums) {
            // The zero comes first, so that a NaN passes.
            *total = lanes.fma(lanes.splat(*weight), lanes.max(zero, *sum), *total);
        }
    }
}
