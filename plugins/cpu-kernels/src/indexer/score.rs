//! Scores of a tile of keys: vectors run over keys, so that relu, weights and the sum over heads stay in registers.

use hotseam_sdk::ops::Kernel;
use hotseam_sdk::ops::lanes::{LANES, Lanes};
use hotseam_sdk::views::Pool;

/// Keys of a tile: two vectors.
pub(super) const TILE: usize = 2 * LANES;
/// Keys that are decoded together and exchanged with their dimensions four by four.
pub(super) const FOUR: usize = 4;

/// Heads whose sums are in registers together: with two vectors a head 12 accumulators, two vectors of keys and a query
/// value fit the 16 registers. Eight are two groups of four rather than one of six and two of one.
fn group(heads: usize) -> usize {
    match heads {
        8 | 4 | 5 => 4,
        6.. => 6,
        _ => 1,
    }
}

/// Lays the queries `[heads, dim]` of a row out as the tiles read them: by groups of heads, in a group by dimension.
pub(super) fn pack(q: &[f32], dim: usize, packed: &mut [f32]) {
    let (mut head, heads) = (0, q.len() / dim);
    while head < heads {
        let n = group(heads - head);
        let packed = &mut packed[head * dim..(head + n) * dim];
        for (m, q) in q[head * dim..(head + n) * dim].chunks_exact(dim).enumerate() {
            packed.iter_mut().skip(m).step_by(n).zip(q).for_each(|(to, from)| *to = *from);
        }
        head += n;
    }
}

/// Decodes entries `first .. first + count` of a sequence into `tile [dim, TILE]`; missing keys are zeros.
/// `rows` has room for [`FOUR`] keys.
pub(super) fn load_tile(
    keys: &Pool<'_>,
    seq: usize,
    first: usize,
    count: usize,
    rows: &mut [f32],
    tile: &mut [f32],
) {
    let dim = rows.len() / FOUR;
    for j in (0..TILE).step_by(FOUR) {
        for (i, row) in rows.chunks_exact_mut(dim).enumerate() {
            match j + i < count {
                true => keys.decode(keys.slot(seq, first + j + i), row),
                false => row.fill(0.0),
            }
        }
        let (a, rest) = rows.split_at(dim);
        let (b, rest) = rest.split_at(dim);
        let (c, d) = rest.split_at(dim);
        let columns = a.iter().zip(b).zip(c).zip(d);
        for (column, (((a, b), c), d)) in tile.chunks_exact_mut(TILE).zip(columns) {
            column[j..j + FOUR].copy_from_slice(&[*a, *b, *c, *d]);
        }
    }
}

/// `out[j] = sum over heads of weights[h] * relu(q[h] . key j)` for the keys of a tile. Both sums are chains of fused
/// multiply-adds in rising order, so a score does not depend on the tile it is in.
pub(super) struct TileScores<'a> {
    /// Queries as [`pack`] leaves them.
    pub(super) q: &'a [f32],
    /// `[heads]`.
    pub(super) weights: &'a [f32],
    /// `[dim, TILE]`.
    pub(super) tile: &'a [f32],
    /// `[TILE]`.
    pub(super) out: &'a mut [f32; TILE],
}

impl Kernel for TileScores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { q, weights, tile, out } = self;
        let (columns, _) = tile.as_chunks::<TILE>();
        let dim = columns.len();
        let mut total = [lanes.splat(0.0); 2];
        let (mut q, mut weights) = (q, weights);
        while !weights.is_empty() {
            let n = group(weights.len());
            let (of_group, rest) = q.split_at(n * dim);
            let (factors, others) = weights.split_at(n);
            match n {
                6 => add_heads::<L, 6>(lanes, of_group, factors, columns, &mut total),
                4 => add_heads::<L, 4>(lanes, of_group, factors, columns, &mut total),
                _ => add_heads::<L, 1>(lanes, of_group, factors, columns, &mut total),
            }
            (q, weights) = (rest, others);
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
    let zero = lanes.splat(0.0);
    let mut sums = [[zero; 2]; M];
    let (q, _) = q.as_chunks::<M>();
    for (column, q) in columns.iter().zip(q) {
        // SAFETY: a column has two vectors.
        let (a, b) = unsafe { (lanes.load(column.as_ptr()), lanes.load(column.as_ptr().add(LANES))) };
        for (sums, q) in sums.iter_mut().zip(q) {
            let q = lanes.splat(*q);
            sums[0] = lanes.fma(q, a, sums[0]);
            sums[1] = lanes.fma(q, b, sums[1]);
        }
    }
    for (sums, weight) in sums.iter().zip(weights) {
        for (total, sum) in total.iter_mut().zip(sums) {
            // The zero comes first, so that a NaN passes.
            *total = lanes.fma(lanes.splat(*weight), lanes.max(zero, *sum), *total);
        }
    }
}
