//! `attention.core`.
//!
//! A row attends its window entries by position, then its compressed entries by number, with one softmax. The order of
//! every sum is that order, so neither the order of `ids` nor the place of the pages matters. Rows that follow each
//! other share nearly all of their window; it is gathered once for a run of them, with channels as rows (a *panel*), so
//! that vectors run over keys.

use super::products::{Keys, NearScores, Softmax, WeightedSum, fill_panel, padded_width, panel_stride};
use crate::runs::cut;
use crate::scratch;
use hotseam_sdk::abi::layout;
use hotseam_sdk::ops::{Parallel, dispatch, gather_scores};
use hotseam_sdk::views::{Core, Pool};
use hotseam_sdk::{Error, Result, SharedMut};
use std::ops::Range;

/// Most rows of a run: the panel is then small against the work of its rows, and fits the L2 cache.
const ROWS: usize = 16;
/// Heads that are worth splitting off when there are few rows: a register tile of the products.
const HEADS: usize = 4;

/// `attention.core`. Padded rows give zeros.
///
/// # Errors
/// If a pool is not of the f32 layout, or its entries are too short for `dim`; nothing is written then.
pub fn core(par: &dyn Parallel, a: &mut Core<'_>) -> Result<()> {
    check_pool(&a.swa, a.dim, "swa")?;
    if let Some(entries) = &a.entries {
        check_pool(entries, a.dim, "entries")?;
    }
    let (heads, n, wanted) = (a.heads, a.rows.len(), 2 * par.threads());
    let mut ends = scratch::lease::<usize>(n);
    let runs = cut(&a.rows, (n / wanted).clamp(1, ROWS), &mut ends);
    let run = |i: usize| if i == 0 { 0..ends[0] } else { ends[i - 1]..ends[i] };
    // With few runs the heads are shared out as well.
    let split = if runs < wanted { (heads * runs).div_ceil(wanted).next_multiple_of(HEADS) } else { heads };
    let split = split.clamp(1, heads.max(1));
    let splits = heads.div_ceil(split);
    let out = std::mem::take(&mut a.out);
    {
        let shared = SharedMut::new(&mut *out);
        let view = &*a;
        par.run(runs * splits, 1, &|pieces| {
            for piece in pieces {
                let first = piece % splits * split;
                attend(view, run(piece / splits), first..heads.min(first + split), &shared);
            }
        });
    }
    a.out = out;
    Ok(())
}

fn check_pool(pool: &Pool<'_>, dim: usize, what: &str) -> Result<()> {
    if pool.layout != layout::KV_F32 || !pool.entry_bytes.is_multiple_of(4) || pool.entry_bytes < dim * 4 {
        return Err(Error::argument(format!(
            "{what}: layout {} with entries of {} bytes, expected layout {} with at least {}",
            pool.layout,
            pool.entry_bytes,
            layout::KV_F32,
            dim * 4
        )));
    }
    Ok(())
}

/// Some heads of a run of rows; writes only their outputs.
fn attend(a: &Core<'_>, rows: Range<usize>, heads: Range<usize>, out: &SharedMut<'_, f32>) {
    let (dim, n_heads) = (a.dim, heads.len());
    // SAFETY: pieces do not overlap.
    let out_of = |row: usize| unsafe {
        out.slice((row * a.heads + heads.start) * dim..(row * a.heads + heads.end) * dim)
    };
    if a.rows.positions[rows.start] < 0 {
        rows.for_each(|row| out_of(row).fill(0.0));
        return;
    }
    let seq = a.rows.seq(rows.start);
    let union = a.window_of(rows.start).start..a.window_of(rows.end - 1).end;
    let mut near = scratch::lease::<usize>(union.len());
    fill_run(&a.swa, seq, union.clone(), &mut near);
    let near = Keys { pool: a.swa.f32(), offsets: &near };
    let stride = panel_stride(union.len());
    let mut panel = scratch::lease::<f32>(dim * stride);
    fill_panel(near, dim, stride, &mut panel);
    let mut q = scratch::lease::<f32>(n_heads * dim);
    let mut factors = scratch::lease::<f32>(n_heads);
    for row in rows {
        let window = a.window_of(row);
        let column = window.start - union.start;
        let near = Keys { offsets: &near.offsets[column..column + window.len()], ..near };
        let far_offsets = far_offsets(a, row, seq);
        let far = Keys { pool: a.entries.map_or(&[], |pool| pool.f32()), offsets: &far_offsets };
        let all = &a.q[(row * a.heads + heads.start) * dim..][..n_heads * dim];
        q.iter_mut().zip(all).for_each(|(scaled, q)| *scaled = q * a.scale);

        let width = padded_width(near.offsets.len());
        let mut near_weights = scratch::lease::<f32>(n_heads * width);
        let mut far_weights = scratch::lease::<f32>(n_heads * far.offsets.len());
        let panel = &panel[column..];
        dispatch(NearScores { q: &q, dim, panel, stride, keys: window.len(), out: &mut near_weights });
        gather_scores(&q, n_heads, dim, far.pool, far.offsets, &mut far_weights);
        let (near_weights, far_weights) = (&mut *near_weights, &mut *far_weights);
        let sinks = &a.sinks[heads.clone()];
        dispatch(Softmax { near: near_weights, far: far_weights, sinks, factors: &mut factors });
        dispatch(WeightedSum {
            near,
            near_weights,
            far,
            far_weights,
            factors: &factors,
            dim,
            out: out_of(row),
        });
    }
}

/// Offsets of the compressed entries of a row, by rising number.
fn far_offsets(a: &Core<'_>, row: usize, seq: usize) -> scratch::Lease<usize> {
    let Some(pool) = &a.entries else {
        return scratch::lease(0);
    };
    let Some(ids) = a.ids_of(row) else {
        let mut offsets = scratch::lease::<usize>(a.complete(row));
        fill_run(pool, seq, 0..a.complete(row), &mut offsets);
        return offsets;
    };
    let mut offsets = scratch::lease::<usize>(ids.iter().filter(|id| **id >= 0).count());
    for (offset, id) in offsets.iter_mut().zip(ids.iter().filter(|id| **id >= 0)) {
        *offset = *id as usize;
    }
    if !offsets.is_sorted() {
        offsets.sort_unstable();
    }
    for offset in offsets.iter_mut() {
        *offset = pool.slot(seq, *offset) * (pool.entry_bytes / 4);
    }
    offsets
}

/// Offsets of consecutive entries, page by page.
fn fill_run(pool: &Pool<'_>, seq: usize, entries: Range<usize>, mut offsets: &mut [usize]) {
    let (stride, mut entry) = (pool.entry_bytes / 4, entries.start);
    while entry < entries.end {
        let run = (pool.entries_per_page - entry % pool.entries_per_page).min(entries.end - entry);
        let first = pool.slot(seq, entry) * stride;
        let (here, rest) = offsets.split_at_mut(run);
        for (i, offset) in here.iter_mut().enumerate() {
            *offset = first + i * stride;
        }
        (offsets, entry) = (rest, entry + run);
    }
}
